"""What differs between the transformers versions that are served, and nothing else.

5.17 on: `prepare_inputs_for_generation` is told `next_sequence_length`, kwargs grow by
any number of tokens, `cache_position` is gone; later the cache is called `cache`.
Before: kwargs grow by one token, and the width is the length of `cache_position`.
"""

import inspect

import torch
from transformers import Cache, GenerationMixin
from transformers.utils import ModelOutput

try:
    from transformers import EncoderDecoderCache
except ImportError:  # pragma: no cover
    EncoderDecoderCache = ()

_PREPARES = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
TOLD_WIDTH = "next_sequence_length" in _PREPARES
CACHE = "cache" if "cache" in _PREPARES else "past_key_values"
CACHE_KEYS = ("cache", "past_key_values")
POSITION_KEYS = ("position_ids", "decoder_position_ids")


def cache_of(kwargs):
    """Return the cache among a call's keyword arguments, None if there is none."""
    for key in CACHE_KEYS:
        if kwargs.get(key) is not None:
            return kwargs[key]
    return None


def cache_key(kwargs):
    """Return the name under which these arguments carry their cache."""
    return next(key for key in CACHE_KEYS if kwargs.get(key) is not None)


def self_attention(cache):
    """Return the part of a cache that grows with the output."""
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def is_decode_step(ids, kwargs):
    """Whether this asks for the inputs of one decode step: one new token over a filled cache."""
    cache = cache_of(kwargs)
    if not isinstance(cache, Cache) or ids.ndim != 2 or kwargs.get("is_first_iteration"):
        return False
    if TOLD_WIDTH:
        return kwargs.get("next_sequence_length") == 1
    if ids.shape[1] < 2 and kwargs.get("inputs_embeds") is None:  # a chunk of the prefill, one token long
        return False
    position = kwargs.get("cache_position")
    return (
        kwargs.get("use_cache", True)
        and position is not None
        and position.shape[0] == 1
        and int(position) > 0
    )


def lengthened(model, kwargs, n):
    """Return the arguments of `prepare_inputs_for_generation` for `n` more tokens than `kwargs` are for."""
    outputs = ModelOutput()
    outputs[cache_key(kwargs)] = cache_of(kwargs)
    longer = dict(kwargs)
    longer.pop("next_sequence_length", None)
    grow = model._update_model_kwargs_for_generation
    encoder_decoder = model.config.is_encoder_decoder
    if TOLD_WIDTH:
        longer = grow(outputs, longer, is_encoder_decoder=encoder_decoder, num_new_tokens=n)
        types = kwargs.get("token_type_ids")
        if types is not None:  # one by one every new token gets the last one's type; n at once get the last n
            longer["token_type_ids"] = torch.cat(
                [types, types[..., -1:].expand(*types.shape[:-1], n)], dim=-1
            )
        longer["next_sequence_length"] = n + 1
        return longer
    for _ in range(n):
        longer = grow(outputs, longer, is_encoder_decoder=encoder_decoder)
    start = kwargs["cache_position"]
    longer["cache_position"] = torch.arange(n + 1, device=start.device, dtype=start.dtype) + start[-1]
    for key in POSITION_KEYS:  # these versions use the last given position for every new token
        if longer.get(key) is not None:
            last = longer[key][..., -1:]
            longer[key] = torch.cat([longer[key], last.expand(*last.shape[:-1], n)], dim=-1)
    return longer


def last_position(kwargs):
    """Return the position of the token of a decode step; None if the model is not told."""
    for key in POSITION_KEYS:
        if kwargs.get(key) is not None:
            return int(kwargs[key][..., -1].max())
    return None


def narrowed(kwargs):
    """Return lengthened arguments cut to their last token."""
    if TOLD_WIDTH:
        return {**kwargs, "next_sequence_length": 1}
    return {**kwargs, "cache_position": kwargs["cache_position"][-1:]}


def remove(layers, n):
    """Remove the last `n` entries (0 or more) from cache layers; see `cache.roll_back`."""
    for layer in layers:
        if n or hasattr(layer, "activate_past_recording"):
            layer.crop(-n)


def stops_late(model):
    """Whether this version checks for the end one step late on this model's device."""
    from transformers.generation import utils

    return hasattr(utils, "DeferredStopCheck") and model.device.type == "mps"


def in_step_with_other_ranks(model, synced_gpus):
    """Whether `generate` will run every forward on all ranks, asked for or by default."""
    if synced_gpus is not None:
        return bool(synced_gpus)
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False
    from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
    from transformers.integrations.fsdp import is_fsdp_managed_module

    return torch.distributed.get_world_size() > 1 and (
        is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model)
    )
