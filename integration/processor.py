"""LookupProcessor: speculation for one call, passed like any logits processor."""

import weakref

from transformers import LogitsProcessor

from . import warm
from .attach import generating_module
from .handle import Speculation
from .hooks import PLAIN, Hooks, hooks_of, running_call


class LookupProcessor(Speculation, LogitsProcessor):
    """A logits processor that changes no logits: the calls it is passed to draft by lookup.

        model.generate(**inputs, logits_processor=[LookupProcessor(model)])

    Calls without it are plain. May be used for many calls; `close` it, or let it go, and
    the model is as it was.

    Parameters
    ----------
    model : transformers model that can generate
        The one it will be used with.
    config, drafter, cost
        As for `attach`.
    """

    def __init__(self, model, config=None, *, drafter=None, cost=None):
        target = generating_module(model)
        super().__init__(target, config, drafter, cost)
        with Hooks.changing(target) as hooks:
            hooks.processors += 1
        self._hooks = hooks
        self._close = weakref.finalize(self, _release, weakref.ref(target))
        self._close.atexit = False
        warm.begin()

    def __call__(self, input_ids, scores):
        call = running_call()
        if call is not PLAIN and (call is None or call.speculation is not self):
            self.say_once(
                "LookupProcessor has no effect here: pass it in logits_processor=[...] to generate of the "
                "model that it was made for, before it is closed"
            )
        return scores

    def close(self) -> None:
        """Take the hook off the model; the processor then does nothing. Safe to call twice."""
        self._close()

    def serves(self, hooks) -> bool:
        """Whether a call of the model with these hooks is this processor's."""
        return self._close.alive and hooks is self._hooks

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self) -> str:
        return f"LookupProcessor({self.config})"


def _release(held_by):
    model = held_by()
    if model is not None and hooks_of(model) is not None:
        with Hooks.changing(model) as hooks:
            hooks.processors -= 1
