"""Kernels are loaded beside the first prefill, and the first time compiled in a process of their own.

Compiling takes seconds with the interpreter's lock held, and a thread that holds it slows
every step of a model's forward. So another process compiles into Numba's cache, once a
machine; each process then loads from there. Until that is done calls draft nothing.
"""

import os
import subprocess
import sys
import threading

_ready = threading.Event()
_lock = threading.Lock()
_thread: threading.Thread | None = None
_COMPILE = "from draftless.lookup.drafter import warm_up; warm_up()"
_PATIENCE = 120  # seconds that the compiling process may take


def begin() -> None:
    """Start loading the kernels in the background, once in a process."""
    global _thread
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_load, name="draftless-warm-up")
            _thread.start()


def _after_fork():
    """A child has no thread of its parent's; it loads for itself when it generates."""
    global _thread, _lock, _ready
    _lock = threading.Lock()
    if not _ready.is_set():
        _ready, _thread = threading.Event(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def ready(wait: bool = False) -> bool:
    """Whether the kernels are loaded; with `wait`, once they are."""
    if not _ready.is_set():
        begin()
        if wait:
            _ready.wait()
    return _ready.is_set()


def _load():
    try:
        from ..lookup import kernels
        from ..lookup.drafter import warm_up

        if not kernels.are_cached():
            _compile_elsewhere()
        warm_up()
    finally:  # a failure shows again, with its traceback, where the drafter is used
        _ready.set()


def _compile_elsewhere():
    """Fill Numba's cache from another process; where that cannot be, kernels compile here."""
    if not sys.executable or getattr(sys, "frozen", False):
        return
    paths = os.pathsep.join(path for path in sys.path if path)
    try:
        subprocess.run(
            [sys.executable, "-c", _COMPILE],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return
