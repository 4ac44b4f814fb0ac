"""Commit and roll back: the cache of one call, whatever its kind."""

import copy

import torch

from . import versions

_JUNK = 5  # tokens that the probe writes and rolls back
_NOISE = 5.0  # times the rounding seen (or the machine's, if larger) that a rollback may leave


class CallCache:
    """The cache of one `generate` call, and how many of its entries are committed.

    Owns nothing but the notes needed to undo: which layers recorded their past before.

    Parameters
    ----------
    cache : transformers.Cache
        After the prefill; `reason_against` has been asked and said None.
    """

    def __init__(self, cache):
        self.cache = cache
        self._inner = versions.self_attention(cache)
        self._recorded = [
            (layer, layer.record_past) for layer in self._inner.layers if hasattr(layer, "record_past")
        ]
        sizes = [layer.max_cache_len for layer in self._inner.layers if hasattr(layer, "max_cache_len")]
        self.size = min(sizes) if sizes else None  # entries that fit; None if the cache grows
        if self._recorded:
            self._inner.activate_past_recording()

    def __len__(self) -> int:
        return int(self._inner.get_seq_length())

    def roll_back(self, n: int) -> None:
        """Remove the last `n` entries. With 0, let layers that record their past forget what is too old."""
        if n or self._recorded:
            versions.remove(self._inner.layers, n)

    def roll_back_to(self, length: int) -> None:
        """Remove what an interrupted forward left: every layer back to `length` entries."""
        for layer in self._inner.layers:
            extra = int(layer.get_seq_length()) - length
            if extra > 0:
                versions.remove([layer], extra)

    def release(self) -> None:
        """Leave the cache as a plain call would: past recording as it was."""
        for layer, recorded in self._recorded:
            layer.record_past = recorded


def reason_against(cache) -> str | None:
    """Return why a filled cache cannot be rolled back, None if it says it can.

    Ask after the prefill: before it, a sliding window or a recurrent state is not yet known.
    """
    inner = versions.self_attention(cache)
    name = type(inner).__name__
    if not hasattr(inner, "layers") or not hasattr(inner, "crop"):
        return f"its cache, a {name}, cannot be rolled back"
    if hasattr(inner, "is_croppable"):
        return None if inner.is_croppable else f"its cache, a {name}, says that it cannot be rolled back"
    for layer in inner.layers:
        if not hasattr(layer, "crop"):
            return f"its cache has layers, {type(layer).__name__}, that cannot be rolled back"
        if getattr(layer, "is_sliding", False):
            return "its cache has a sliding window, which this version of transformers cannot roll back"
    return None


def kind(cache) -> tuple:
    """Return what makes two caches alike for a probe: their classes and their layers' classes."""
    inner = versions.self_attention(cache)
    return (
        type(cache),
        type(inner),
        *sorted({f"{type(layer).__module__}.{type(layer).__name__}" for layer in inner.layers}),
    )


def needs_probe(cache) -> bool:
    """Whether a cache's word on rolling back is not enough: it is silent, or not transformers' own."""
    inner = versions.self_attention(cache)
    parts = [inner, *inner.layers]
    return not hasattr(inner, "is_croppable") or any(
        not type(part).__module__.startswith("transformers.") for part in parts
    )


def rolls_back(prepare, forward, ids, kwargs, lengthen) -> bool:
    """Whether logits after a rollback equal those of a cache that never saw the rejected tokens.

    Works on deep copies of the call's cache, so nothing is lost where the answer is no.

    Parameters
    ----------
    prepare, forward : callables
        The model's own `prepare_inputs_for_generation` and `forward`.
    ids, kwargs
        As the loop gave them to `prepare`, for one decode step.
    lengthen : callable
        `(kwargs, n)` to the arguments for `n` more tokens.
    """
    cache = versions.cache_of(kwargs)
    try:
        rolled, clean, other = (copy.deepcopy(cache) for _ in range(3))
        _run(prepare, forward, _longer(ids, _JUNK), lengthen(_with(kwargs, rolled), _JUNK))
        before = int(versions.self_attention(rolled).get_seq_length())
        versions.remove(versions.self_attention(rolled).layers, _JUNK)
        if int(versions.self_attention(rolled).get_seq_length()) != before - _JUNK:
            return False
        _run(prepare, forward, ids, _with(kwargs, clean))
        logits, expected = (
            _run(prepare, forward, _longer(ids, 1), _second(lengthen, kwargs, each))
            for each in (rolled, clean)
        )
        wide = _run(prepare, forward, _longer(ids, 1), lengthen(_with(kwargs, other), 1))
    except Exception:  # whatever this cache cannot do, it cannot be rolled back
        return False
    rounding = max(float((wide - expected).norm() / expected.norm()), torch.finfo(logits.dtype).eps)
    return bool((logits - expected).norm() <= _NOISE * rounding * expected.norm())


def _second(lengthen, kwargs, cache):
    """The arguments of the decode step after this one: one token longer, one token wide."""
    longer = lengthen(_with(kwargs, cache), 1)
    if "next_sequence_length" in longer:
        longer["next_sequence_length"] = 1
    if longer.get("cache_position") is not None:
        longer["cache_position"] = longer["cache_position"][-1:]
    return longer


def _with(kwargs, cache):
    return {**kwargs, versions.cache_key(kwargs): cache}


def _longer(ids, n):
    """`ids` and `n` more like the last, which is a word: others may stand for images."""
    return torch.cat([ids, ids[:, -1:].expand(-1, n)], dim=1)


def _run(prepare, forward, ids, kwargs):
    with torch.no_grad():
        return forward(**prepare(ids, **kwargs), return_dict=True).logits[:, -1]
