"""Commit and roll back: the cache of one call, whatever its kind; and the probe that tries it."""

import copy

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import outputs, versions

_JUNK = 3  # tokens of the probe's wide forward, besides the first
PROBE_ROOM = 1 + _JUNK  # entries that the probe writes, and takes back
# How far logits may be from those of the same forward (rolled back before), and of a narrower one.
_SAME = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
_NARROW = {torch.float64: 1e-6, torch.float32: 5e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


class CallCache:
    """The cache of one `generate` call, and how to take entries back.

    Owns nothing but the notes needed to undo: which layers recorded their past before.

    Parameters
    ----------
    cache : transformers.Cache
        After the prefill; `reason_against` has been asked and said None.

    Attributes
    ----------
    size : int or None
        Entries that fit; None if the cache grows.
    """

    def __init__(self, cache):
        self.cache = cache
        self._inner = versions.self_attention(cache)
        # some layers stand in for others and hold nothing; those with a convolution's state have no length
        self._holding = [layer for layer in self._inner.layers if hasattr(layer, "crop")]
        self._recorded = [
            (layer, layer.record_past) for layer in self._inner.layers if hasattr(layer, "record_past")
        ]
        sizes = [layer.max_cache_len for layer in self._inner.layers if hasattr(layer, "max_cache_len")]
        self.size = min(sizes) if sizes else None
        if self._recorded:
            self._inner.activate_past_recording()

    def __len__(self) -> int:
        return int(self._inner.get_seq_length())

    @property
    def records_past(self) -> bool:
        """Whether layers record what falls out of their windows, until the next `roll_back`."""
        return bool(self._recorded)

    def roll_back(self, n: int) -> None:
        """Remove the last `n` entries. With 0, let layers that record their past forget what is too old."""
        if n or self._recorded:
            versions.remove(self._holding, n)

    def roll_back_to(self, length: int) -> None:
        """Remove what an interrupted forward left: every layer back to `length` entries."""
        for layer in self._holding:
            extra = _extra(layer, length)
            if extra > 0:
                versions.remove([layer], extra)

    def snapshot(self) -> list:
        """Return what `restore` needs: growing layers make new tensors, so their attributes will do."""
        growing = [layer for layer in self._inner.layers if not hasattr(layer, "max_cache_len")]
        return [(layer, _copied(vars(layer))) for layer in growing]

    def restore(self, snapshot, length: int) -> None:
        """Undo a forward that broke off, inside a layer's own update perhaps, over `length` entries."""
        for layer, attributes in snapshot:
            vars(layer).clear()
            vars(layer).update(_copied(attributes))
        self.roll_back_to(length)

    def release(self) -> None:
        """Leave the cache as a plain call would: past recording as it was."""
        for layer, recorded in self._recorded:
            layer.record_past = recorded


def _copied(attributes):
    """Attributes, dictionaries of states copied too."""
    return {name: dict(value) if isinstance(value, dict) else value for name, value in attributes.items()}


def _extra(layer, length):
    """How many entries a layer holds beyond `length`."""
    if hasattr(layer, "get_seq_length"):
        return int(layer.get_seq_length()) - length
    kernels = getattr(layer, "conv_kernel_size", {})
    grown = [
        layer.conv_states[i].shape[-1] - size
        for i, size in kernels.items()
        if size is not None and layer.conv_states[i] is not None
    ]
    return max(grown, default=0)


def reason_against(cache) -> str | None:
    """Return why a filled cache cannot be rolled back, None if it says it can.

    Ask after the prefill: before it, a sliding window or a recurrent state is not yet known.
    """
    inner = versions.self_attention(cache)
    name = type(inner).__name__
    if not hasattr(inner, "layers") or not hasattr(inner, "crop"):
        return f"its cache, a {name}, cannot be rolled back"
    stores = [getattr(type(part), "update", None) for part in (inner, *inner.layers)]
    if not all(_is_transformers(store) for store in stores if store is not None):
        return f"its cache, a {name}, stores entries in a way of its own"
    if not getattr(inner, "is_croppable", True):
        return f"its cache, a {name}, says that it cannot be rolled back"
    if _entries(inner) == 0:
        return "the model leaves its cache empty, and keeps what it has read elsewhere"
    if hasattr(inner, "is_croppable"):
        return None
    for layer in inner.layers:
        if not hasattr(layer, "crop"):
            return f"its cache has layers, {type(layer).__name__}, that cannot be rolled back"
        if getattr(layer, "is_sliding", False):
            return "its cache has a sliding window, which this version of transformers cannot roll back"
    return None


def _entries(cache):
    try:
        return int(cache.get_seq_length())
    except ValueError:  # a cache of recurrent states alone
        return 0


def kind(cache) -> tuple:
    """Return what makes two caches alike for a probe: their classes and their layers' classes."""
    inner = versions.self_attention(cache)
    return (type(cache), type(inner), *sorted({repr(type(layer)) for layer in inner.layers}))


def _is_word_enough(cache):
    """Whether the cache says of itself that it rolls back, and is of the kinds that all models share.

    Layers of one model's own, and those with a state besides keys, may give that word without keeping it.
    """
    inner = versions.self_attention(cache)
    return hasattr(inner, "is_croppable") and all(
        type(part).__module__ == "transformers.cache_utils" and not hasattr(part, "conv_states")
        for part in (inner, *inner.layers)
    )


def _is_transformers(thing):
    return (thing.__module__ or "").startswith("transformers.")


def probe(model, prepare, forward, ids, kwargs) -> str | None:
    """Try a wide forward and its rollback; return what is wrong with them, None if nothing is.

    A few tokens are checked one by one and in one wide forward, and the first again after the
    rollback. The logits must agree: the wide ones as far as another width rounds, the last as
    the same forward does. A cache that has not said it rolls back is deep-copied first, so
    that nothing is lost where the answer is no. Random number generators stay as they were.

    Parameters
    ----------
    prepare, forward : callables
        The model's own `prepare_inputs_for_generation` and `forward`, the latter with its settings.
    ids, kwargs
        As the loop gave them to `prepare`, for one decode step.
    """
    cache = versions.cache_of(kwargs)
    before = _generators(model.device)
    try:
        held = CallCache(cache if _is_word_enough(cache) else copy.deepcopy(cache))
    except Exception as error:
        return f"its cache, a {type(cache).__name__}, cannot be copied to try a rollback: {error}"
    length, own = len(held), _with(kwargs, held.cache)
    try:
        reason = _try(model, prepare, forward, ids, own, held)
        reason = _reason_to_draw(model.device, before, lambda: forward(**prepare(ids, **own))) or reason
    except Exception as error:  # a model that cannot do a wide forward is not served
        if is_out_of_memory(error):
            raise
        reason = f"a forward of several tokens fails: {type(error).__name__}: {error}"
    held.roll_back_to(length)
    return reason


def is_out_of_memory(error) -> bool:
    """Whether an error says that memory ran out, on an accelerator or on the CPU."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError)
        and any(words in str(error) for words in ("out of memory", "can't allocate memory"))
    )


def _try(model, prepare, forward, ids, kwargs, held):
    def run(width, given=kwargs, more=0):
        inputs = prepare(_longer(ids, width - 1 + more), **given)
        if "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = width
        return forward(**inputs)

    length = len(held)
    wider = versions.lengthened(model, kwargs, _JUNK)
    with torch.no_grad():
        first = run(1)
        next_step = versions.narrowed(versions.lengthened(model, kwargs, 1))
        if held.records_past:  # it keeps what one forward pushed out of its windows, not two
            twin = CallCache(copy.deepcopy(held.cache))
            twin.roll_back(0)
            second = run(1, _with(next_step, twin.cache), more=1)
        else:
            second = run(1, next_step, more=1)
        held.roll_back(len(held) - length)
        again = run(1)
        held.roll_back(1)
        wide = run(1 + _JUNK, wider)
        if wide.logits.shape[1] != 1 + _JUNK:
            return f"the model gives logits for {wide.logits.shape[1]} of {1 + _JUNK} tokens"
        if len(held) != length + 1 + _JUNK:
            return "its cache does not grow by the tokens of a forward"
        held.roll_back(1 + _JUNK)
        after = run(1)
        held.roll_back(1)
    if not (_close(again, first, _SAME) and _close(after, first, _SAME) and len(held) == length):
        return f"logits after rolling back its cache, a {type(held.cache).__name__}, differ from those before"
    if not (_close(wide, first, _NARROW, at=0) and _close(wide, second, _NARROW, at=1)):
        return "a forward of several tokens gives other logits than forwards of one"
    return outputs.reason_against_states(first, wide)


def _close(found, expected, allowed, at=-1):
    """Whether the logits of position `at` are those of a forward of one token, as far as is `allowed`."""
    limit = allowed.get(expected.logits.dtype, 0.1)
    pair = found.logits[:, at], expected.logits[:, -1]
    found, expected = (torch.nan_to_num(logits.double(), posinf=0.0, neginf=0.0) for logits in pair)
    return bool((found - expected).norm() <= limit * expected.norm())


class _Draws(TorchDispatchMode):
    """Notes whether this thread draws random numbers; attention kernels could, but not outside training."""

    seen = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if torch.Tag.nondeterministic_seeded in func.tags and "attention" not in func.name():
            self.seen = True
        return func(*args, **(kwargs or {}))


def _generators(device):
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _restore(device, states):
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)


def _reason_to_draw(device, before, again) -> str | None:
    """Say so if forwards draw random numbers, and put the generators back; other threads may draw too."""
    if all(torch.equal(now, then) for now, then in zip(_generators(device), before)):
        return None
    with _Draws() as draws:
        again()
    if not draws.seen:
        return None
    _restore(device, before)
    return "its forward draws random numbers, however many tokens it is of"


def _with(kwargs, cache):
    return {**kwargs, versions.cache_key(kwargs): cache}


def _longer(ids, n):
    """`ids` and `n` more like the last, which is a word: others may stand for images."""
    return torch.cat([ids, ids[:, -1:].expand(-1, n)], dim=1)
