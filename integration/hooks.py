"""The only file that changes a model: some of its methods are wrapped, and a pickle is kept plain.

Wrappers are attributes of the one model object, never of its class. They keep the
signature, hold the model weakly, and do nothing but ask which call, if any, is running
in this thread (`_RUNNING`) and let it decide. They go when nobody wants them any more
and the last call that started with them has ended.
"""

import contextlib
import contextvars
import functools
import inspect
import sys
import threading
import weakref

import numpy as np
import torch

from . import cache as caches
from . import versions
from .call import Call, Guarded, Watched
from .handle import checked_config

_RUNNING = contextvars.ContextVar("draftless_call", default=None)
_GIVEN = contextvars.ContextVar("draftless_given", default=None)  # see Hooks._note_arguments
_LOCK = threading.RLock()
_HOOKED = weakref.WeakKeyDictionary()  # model -> Hooks
_PROBED = weakref.WeakKeyDictionary()  # model -> reasons by probe; hooks may live for one call only
_ABSENT = object()
PLAIN = object()  # in the place of a call: `lookup=False`
_PLACEHOLDERS = ("image", "video", "audio", "vision", "speech")


def hooks_of(model) -> "Hooks | None":
    """Return the hooks on a model, None if it has none."""
    return _HOOKED.get(model)


def running_call():
    """Return the call whose loop runs in this thread, None outside `generate`, PLAIN in a plain call."""
    call = _RUNNING.get()
    while isinstance(call, Call) and call.over:  # ended from another thread, by its finalizer
        call = call.before
    return call


class Hooks:
    """The wrappers on one model: who wants them, what they replaced, what was learned about the model.

    Attributes
    ----------
    handles : list of Handle
        `attach`'s, and those of the `attached` blocks entered since; the last one counts.
    processors : int
        Living `LookupProcessor`s of the model.
    positions : int or None
        Positions that the model can tell apart.
    boundary : int or None
        First position with which a whole forward is computed otherwise.
    """

    def __init__(self, model):
        self.model = weakref.ref(model)
        self.handles = []
        self.processors = 0
        self._calls = 0
        self._replaced = {}
        self._wrappers = {}
        replaced = vars(model).keys() & {"forward", "prepare_inputs_for_generation"}
        self._probed = {} if replaced else _PROBED.setdefault(model, {})
        self._vocabulary, self._no_words = _ids_to_avoid(model)
        self.positions = _positions(model)
        self.boundary = _boundary(model)

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

    @property
    def handle(self):
        """The handle that counts; None if the model is not attached."""
        return self.handles[-1] if self.handles else None

    # -- wrappers ----------------------------------------------------------------------------------

    def _install(self, model):
        self._wrap(model, "generate", self._generate)
        for name, enter in {
            "prepare_inputs_for_generation": self._prepare,
            "forward": self._forward,
            "_get_stopping_criteria": self._stopping_criteria,
            "get_compiled_call": self._compiled_call,
        }.items():
            if hasattr(model, name):
                self._wrap(model, name, enter, self._mine)
        for name, enter in {
            "_extract_generation_mode_kwargs": self._note_arguments,
            "_get_logits_processor": self._logits_processor,
        }.items():
            self._wrap(model, name, enter, self._call_to_come)
        self._wrap(model, "_replicate_for_data_parallel", self._replicate)
        self._put(model, "__reduce_ex__", functools.partial(self._reduce, self.model))

    def _wrap(self, model, name, enter, ask=lambda: _ABSENT):
        """Put `enter(call, original, args, kwargs)` in a method's place, where `ask` names a call."""
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
            call = ask()
            return original(*args, **kwargs) if call is None else enter(call, original, args, kwargs)

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
        if self.handles or self.processors or self._calls or model is None:
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
        made[2] = self._without_wrappers(made[2])
        return tuple(made)

    def _replicate(self, _, original, args, kwargs):
        replica = original()
        plain = self._without_wrappers(vars(replica))
        vars(replica).clear()
        vars(replica).update(plain)
        return replica

    def _without_wrappers(self, attributes):
        plain = dict(attributes)
        for name, wrapper in self._wrappers.items():
            if plain.get(name) is wrapper:
                del plain[name]
                if self._replaced[name] is not _ABSENT:
                    plain[name] = self._replaced[name]
        return plain

    # -- what the wrappers do ----------------------------------------------------------------------

    def _generate(self, _, original, args, kwargs):
        self._end_left()
        call = self._new_call(args, kwargs)
        before = _RUNNING.set(call)
        if not isinstance(call, Call):
            try:
                return original(*args, **kwargs)
            finally:
                _RUNNING.reset(before)
        with _LOCK:
            self._calls += 1
        ended = False
        try:
            result = original(*args, **kwargs)
            ended = True
            return result
        finally:
            _RUNNING.reset(before)
            self._end(call, ended)

    # -- a call whose `generate` was looked up before it was wrapped --------------------------------
    #
    # model.generate(..., logits_processor=[LookupProcessor(model)]): Python finds `generate` first, and
    # makes the processor after. Such a call begins where the loop's processors are gathered. It ends with
    # its loop, or with an error that passes through one of the wrappers, its processors or its criteria. An
    # error elsewhere in the loop ends it at the next `generate`, or with the loop's frames, which alone
    # hold its criteria.

    def _call_to_come(self):
        """Whether such a call may begin, answered as `_wrap` asks: None where a wrapped `generate` runs."""
        wrapped = running_call() is PLAIN or self._mine() is not None and not self._mine().late
        return _ABSENT if self.processors and not wrapped else None

    def _note_arguments(self, _, original, args, kwargs):
        self._end_left()
        names = ("custom_generate", "kwargs", "synced_gpus", "assistant_model")
        given = {**dict(zip(names, args)), **kwargs}
        _GIVEN.set({name: given.get(name) for name in names if name != "kwargs"})
        return original(*args, **kwargs)

    def _end_left(self):
        """End a call whose loop failed, and is kept from ending by whoever keeps its frames."""
        left = self._mine()
        if left is not None and left.late and not _is_on_stack(left.frame):
            self._end_late(left, False)

    def _logits_processor(self, _, original, args, kwargs):
        processors = original(*args, **kwargs)
        speculation = self._processor_in((), kwargs)
        outer = self._mine()
        if outer is not None:
            outer.run_plainly("another generate of the model, looked up before, runs within it")
            self._end_late(outer, False)
        if speculation is not None:
            given = {**(_GIVEN.get() or {}), "inputs": kwargs.get("encoder_input_ids")}
            call = Call(self, speculation, speculation.config, _arguments(self.model(), (), given))
            call.late, call.before, call.frame = True, running_call(), _frame_of_generate()
            _RUNNING.set(call)
            with _LOCK:
                self._calls += 1
            processors = Guarded(processors, lambda: self._end_late(call, False))
        _GIVEN.set(None)
        return processors

    def _watch_late(self, call, criteria):
        left = weakref.finalize(criteria, self._end_late, call, False)
        left.atexit = False
        if isinstance(criteria, Watched):
            criteria.when_done = lambda: left.detach() and self._end_late(call, True)
            criteria.when_failed = lambda: self._end_late(call, False)

    def _end_late(self, call, ended):
        if not call.late:
            return
        call.late = False
        if _RUNNING.get() is call:
            _RUNNING.set(call.before)
        self._end(call, ended)
        call.model = call.speculation = None  # another thread's context may go on holding the call

    def _end(self, call, ended):
        try:
            call.close(ended)
        finally:
            call.over = True
            with _LOCK:
                self._calls -= 1
                self._remove_if_unused()

    def _new_call(self, args, kwargs):
        """Return the call to run with drafts, PLAIN if that was asked for; takes `lookup` out of `kwargs`."""
        speculation = self._processor_in(args, kwargs) or self.handle
        if speculation is None:
            return None
        lookup = kwargs.pop("lookup", None)
        if lookup is False:
            return PLAIN
        config = speculation.config if lookup is None or lookup is True else checked_config(lookup)
        return Call(self, speculation, config, _arguments(self.model(), args, kwargs))

    def _processor_in(self, args, kwargs):
        from .processor import LookupProcessor

        processors = kwargs.get("logits_processor", args[2] if len(args) > 2 else None) or ()
        mine = (one for one in processors if isinstance(one, LookupProcessor) and one.serves(self))
        return next(mine, None)

    def _mine(self):
        call = running_call()
        return call if isinstance(call, Call) and call.hooks is self else None

    @staticmethod
    def _prepare(call, original, args, kwargs):
        if len(args) != 1:
            return original(*args, **kwargs)
        with _ending_if_late(call):
            return call.prepare(original, args[0], kwargs)

    @staticmethod
    def _forward(call, original, args, kwargs):
        with _ending_if_late(call):
            return call.forward(original, args, kwargs)

    @staticmethod
    def _stopping_criteria(call, original, args, kwargs):
        config = args[0] if args else kwargs["generation_config"]
        with _ending_if_late(call):
            criteria = call.plan(config, original(*args, **kwargs))
        if call.late:
            call.hooks._watch_late(call, criteria)
        return criteria

    @staticmethod
    def _compiled_call(call, original, args, kwargs):
        call.run_plainly("generate compiles the forward for this cache; pass disable_compile=True to draft")
        return original(*args, **kwargs)

    # -- what is known about the model -------------------------------------------------------------

    def is_word(self, token) -> bool:
        """Whether an id may stand in a wide forward."""
        return 0 <= token < self._vocabulary and token not in self._no_words

    def words_of(self, draft):
        """Return the draft cut before the first id that is no word: see `_ids_to_avoid`."""
        bad = (draft.tokens < 0) | (draft.tokens >= self._vocabulary)
        if self._no_words:
            bad |= np.isin(draft.tokens, list(self._no_words))
        return draft.head(int(bad.argmax())) if bad.any() else draft

    def searchable(self, ids):
        """Return ids to index, those outside the vocabulary as one that is never drafted."""
        return np.where((ids < 0) | (ids >= self._vocabulary), self._vocabulary, ids)

    def is_probed(self, cache, settings) -> bool:
        """Whether `reason_by_probe` has been answered for this kind of cache and these settings."""
        return self._kind(cache, settings) in self._probed

    def reason_by_probe(self, prepare, ids, kwargs, settings) -> str | None:
        """Return why wide forwards of this model cannot be trusted, None if they can; found out once.

        `settings`: the arguments of the forward that are no tensors. Models run other code by them.
        """
        kind = self._kind(versions.cache_of(kwargs), settings)
        if kind not in self._probed:
            forward = functools.partial(self.own_forward, **{**settings, "return_dict": True})
            self._probed[kind] = caches.probe(self.model(), prepare, forward, ids, kwargs)
        return self._probed[kind]

    def _kind(self, cache, settings):
        model = self.model()
        attention = getattr(model.config, "_attn_implementation", None)
        on = tuple(sorted(name for name, value in settings.items() if value is True))
        return (caches.kind(cache), model.dtype, attention, on)


class _ending_if_late:
    """Ends a call that has no `generate` of ours around it with the error that leaves the block."""

    def __init__(self, call):
        self._call = call

    def __enter__(self):
        pass

    def __exit__(self, kind, error, trace):
        if kind is not None and self._call.late:
            self._call.hooks._end_late(self._call, False)


def _frame_of_generate():
    """The frame, by its identity, of the `generate` that gathers its processors: it must not be kept."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "generate":
        frame = frame.f_back
    return id(frame)


def _is_on_stack(identity):
    frame = sys._getframe(1)
    while frame is not None and id(frame) != identity:
        frame = frame.f_back
    return frame is not None


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
    """The fewest positions that the configuration names for what is generated; None if it names none."""
    sizes = [
        value
        for name, value in vars(_text_config(model)).items()
        if isinstance(value, int)
        and value > 0
        and ((name.startswith("max_") and "position" in name) or name in ("n_positions", "n_ctx"))
        and "relative" not in name
        and not any(word in name for word in ("encoder", "source") if f"de{word}" not in name)
    ]
    return min(sizes, default=None)


def _boundary(model):
    """The position from which on LongRoPE uses its other factors, for all positions of a forward.

    Ding et al., LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens, 2024.
    """
    config, found = _text_config(model), []

    def look(values):
        for name, value in values.items():
            if name == "original_max_position_embeddings" and isinstance(value, int):
                found.append(value)
            elif isinstance(value, dict):  # by kind of layer
                look(value)

    ropes = {name: getattr(config, name, None) for name in ("rope_parameters", "rope_scaling")}
    if "longrope" in repr(ropes):
        look({**ropes, **vars(config)})
    return min(found, default=None)


def _ids_to_avoid(model):
    """Return the size of the vocabulary, and ids that are no words: pads, and what stands for images."""
    sizes = [getattr(_text_config(model), "vocab_size", None)]
    holders = [model]
    if model.config.is_encoder_decoder and hasattr(model, "get_decoder"):
        holders.append(model.get_decoder())
    pads = (
        {model.config.pad_token_id} if isinstance(getattr(model.config, "pad_token_id", None), int) else set()
    )
    for holder in holders:
        try:
            embeddings = holder.get_input_embeddings()
        except (AttributeError, NotImplementedError):
            continue
        sizes.append(getattr(embeddings, "num_embeddings", None))
        pads.add(getattr(embeddings, "padding_idx", None))
    placeholders = {
        value
        for name, value in vars(model.config).items()
        if isinstance(value, int)
        and name.endswith(("_token_id", "_token_index"))
        and any(word in name for word in _PLACEHOLDERS)
    }
    known = [size for size in sizes if isinstance(size, int)]
    no_words = placeholders | {pad for pad in pads if pad is not None}
    return min(known, default=2**31 - 2), frozenset(no_words)
