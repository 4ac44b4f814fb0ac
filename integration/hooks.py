"""The only file that changes a model: five of its methods are wrapped, and a pickle is kept plain.

Wrappers are attributes of the one model object, never of its class. They keep the
signature, hold the model weakly, and do nothing but ask which call, if any, is running
in this thread (`_RUNNING`) and let it decide. They go when nobody wants them any more
and the last call that started with them has ended.
"""

import contextlib
import contextvars
import functools
import inspect
import threading
import weakref

import numpy as np
import torch

from . import cache as caches
from . import versions
from .call import Call
from .handle import checked_config

_RUNNING = contextvars.ContextVar("draftless_call", default=None)
_LOCK = threading.RLock()
_HOOKED = weakref.WeakKeyDictionary()  # model -> Hooks
_ABSENT = object()
_PLACEHOLDERS = ("image", "video", "audio", "vision", "speech")


def hooks_of(model) -> "Hooks | None":
    """Return the hooks on a model, None if it has none."""
    return _HOOKED.get(model)


def running_call():
    """Return the call whose loop runs in this thread, None outside `generate` or in a plain call."""
    return _RUNNING.get()


class Hooks:
    """The wrappers on one model: who wants them, what they replaced, what was learned about the model.

    Attributes
    ----------
    handle : Handle or None
        Set while the model is attached.
    processors : int
        Living `LookupProcessor`s of the model.
    positions : int or None
        Positions that the model can tell apart.
    """

    def __init__(self, model):
        self.model = weakref.ref(model)
        self.handle = None
        self.processors = 0
        self._calls = 0
        self._replaced = {}
        self._wrappers = {}
        self._probed = {}
        self._vocabulary, self._placeholders = _ids_to_avoid(model)
        self.positions = _positions(model)

    @classmethod
    @contextlib.contextmanager
    def changing(cls, model):
        """Yield the hooks on `model`, installed if they were not; removed after if nobody wants them."""
        with _LOCK:
            hooks = _HOOKED.get(model)
            if hooks is None:
                hooks = _HOOKED[model] = cls(model)
                hooks._install(model)
            try:
                yield hooks
            finally:
                hooks._remove_if_unused()

    # -- wrappers ----------------------------------------------------------------------------------

    def _install(self, model):
        for name, enter in {
            "generate": self._generate,
            "prepare_inputs_for_generation": self._prepare,
            "forward": self._forward,
            "_get_stopping_criteria": self._stopping_criteria,
            "get_compiled_call": self._compiled_call,
        }.items():
            if hasattr(model, name):
                self._wrap(model, name, enter)
        self._put(model, "__reduce_ex__", functools.partial(self._reduce, self.model))

    def _wrap(self, model, name, enter):
        held = vars(model).get(name, _ABSENT)
        bound = getattr(model, name)
        function = getattr(bound, "__func__", bound)
        if held is _ABSENT:
            held_by = self.model

            def original(*args, **kwargs):
                return function(held_by(), *args, **kwargs)
        else:
            original = held

        def wrapper(*args, **kwargs):
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            return enter(original, *args, **kwargs)

        functools.update_wrapper(wrapper, function)
        wrapper.__signature__ = inspect.signature(bound)
        if name == "forward":
            self.own_forward = original
        self._put(model, name, wrapper)

    def _put(self, model, name, value):
        self._replaced[name] = vars(model).get(name, _ABSENT)
        self._wrappers[name] = vars(model)[name] = value

    def _remove_if_unused(self):
        model = self.model()
        if self.handle is not None or self.processors or self._calls or model is None:
            return
        _HOOKED.pop(model, None)
        for name, wrapper in self._wrappers.items():
            if vars(model).get(name) is wrapper:  # else someone wrapped or replaced it since: leave theirs
                del vars(model)[name]
                if self._replaced[name] is not _ABSENT:
                    vars(model)[name] = self._replaced[name]

    def _reduce(self, held_by, protocol):
        """Deep copies and pickles are of the plain model."""
        model = held_by()
        made = list(type(model).__reduce_ex__(model, protocol))
        state = dict(made[2])
        for name, wrapper in self._wrappers.items():
            if state.get(name) is wrapper:
                del state[name]
                if self._replaced[name] is not _ABSENT:
                    state[name] = self._replaced[name]
        made[2] = state
        return tuple(made)

    # -- what the wrappers do ----------------------------------------------------------------------

    def _generate(self, original, *args, **kwargs):
        call = self._new_call(args, kwargs)
        if call is not None:
            with _LOCK:
                self._calls += 1
        before = _RUNNING.set(call)
        ended = False
        try:
            result = original(*args, **kwargs)
            ended = True
            return result
        finally:
            _RUNNING.reset(before)
            if call is not None:
                self._end(call, ended)

    def _end(self, call, ended):
        try:
            call.close(ended)
        finally:
            with _LOCK:
                self._calls -= 1
                self._remove_if_unused()

    def _new_call(self, args, kwargs):
        """Return the call to run with drafts, None to run plainly; takes `lookup` out of `kwargs`."""
        speculation = self._processor_in(args, kwargs) or self.handle
        if speculation is None:
            return None
        lookup = kwargs.pop("lookup", None)
        if lookup is False:
            return None
        config = speculation.config if lookup is None or lookup is True else checked_config(lookup)
        return Call(self, speculation, config, _arguments(self.model(), args, kwargs))

    def _processor_in(self, args, kwargs):
        from .processor import LookupProcessor

        processors = kwargs.get("logits_processor", args[2] if len(args) > 2 else None) or ()
        mine = (one for one in processors if isinstance(one, LookupProcessor) and one.serves(self))
        return next(mine, None)

    def _mine(self):
        call = _RUNNING.get()
        return call if call is not None and call.hooks is self else None

    def _prepare(self, original, *args, **kwargs):
        call = self._mine()
        if call is None or len(args) != 1:
            return original(*args, **kwargs)
        return call.prepare(original, args[0], kwargs)

    def _forward(self, original, *args, **kwargs):
        call = self._mine()
        return original(*args, **kwargs) if call is None else call.forward(original, args, kwargs)

    def _stopping_criteria(self, original, *args, **kwargs):
        criteria = original(*args, **kwargs)
        call = self._mine()
        if call is None:
            return criteria
        return call.plan(args[0] if args else kwargs["generation_config"], criteria)

    def _compiled_call(self, original, *args, **kwargs):
        call = self._mine()
        if call is not None:
            call.run_plainly(
                "generate compiles the forward for this cache; pass disable_compile=True to draft"
            )
        return original(*args, **kwargs)

    # -- what is known about the model -------------------------------------------------------------

    def within_vocabulary(self, draft):
        """Return the draft cut before the first id outside the vocabulary, or of a placeholder."""
        bad = draft.tokens >= self._vocabulary
        if len(self._placeholders):
            bad |= np.isin(draft.tokens, self._placeholders)
        return draft.head(int(bad.argmax())) if bad.any() else draft

    def rolls_back(self, prepare, ids, kwargs) -> bool:
        """Whether a rollback of this kind of cache leaves no trace in the logits; found out once."""
        kind = caches.kind(versions.cache_of(kwargs))
        if kind not in self._probed:
            self._probed[kind] = caches.rolls_back(
                prepare, self.own_forward, ids, kwargs, functools.partial(versions.lengthened, self.model())
            )
        return self._probed[kind]


def _arguments(model, args, kwargs):
    """Those arguments of `generate` that decide how it is served, and ids to search besides the output."""
    names = ("inputs", "generation_config", "logits_processor")
    given = {**dict(zip(names, args)), **kwargs}
    ids = np.empty(0, dtype=np.int64)
    if model.config.is_encoder_decoder:
        inputs = given.get("inputs") if given.get("inputs") is not None else given.get("input_ids")
        if (
            isinstance(inputs, torch.Tensor)
            and inputs.ndim == 2
            and len(inputs) == 1
            and not inputs.is_floating_point()
        ):
            ids = inputs[0].cpu().numpy()
    wanted = {name: given.get(name) for name in ("assistant_model", "custom_generate", "synced_gpus")}
    return {**wanted, "encoder_ids": ids}


def _text_config(model):
    return model.config.get_text_config(decoder=True)


def _positions(model):
    config = _text_config(model)
    for name in ("max_position_embeddings", "max_target_positions"):
        if isinstance(getattr(config, name, None), int):
            return getattr(config, name)
    return None


def _ids_to_avoid(model):
    """Return the size of the vocabulary, and the ids that stand for images and the like."""
    embeddings = model.get_input_embeddings()
    size = getattr(embeddings, "num_embeddings", None) or getattr(
        _text_config(model), "vocab_size", 2**31 - 1
    )
    ids = {
        value
        for name, value in vars(model.config).items()
        if isinstance(value, int)
        and name.endswith(("_token_id", "_token_index"))
        and any(word in name for word in _PLACEHOLDERS)
    }
    return size, np.array(sorted(ids), dtype=np.int64)
