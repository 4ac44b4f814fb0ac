"""Kernels are loaded, or the first time compiled, beside the first prefill: nobody waits for them."""

import threading

_ready = threading.Event()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def begin() -> None:
    """Start loading the kernels in the background, once in a process."""
    global _thread
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_load, name="draftless-warm-up")
            _thread.start()


def ready(wait: bool = False) -> bool:
    """Whether the kernels are loaded; with `wait`, once they are."""
    if not _ready.is_set() and wait:
        begin()
        _ready.wait()
    return _ready.is_set()


def _load():
    try:
        from ..lookup.drafter import warm_up

        warm_up()
    finally:  # a failure shows again, with its traceback, where the drafter is used
        _ready.set()
