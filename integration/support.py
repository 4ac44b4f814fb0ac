"""What can be served exactly, asked of the model and the call; no list of models."""

from transformers.generation.configuration_utils import GenerationMode

from . import cache as caches
from . import versions

_SETTINGS = (bool, int, float, str, type(None))  # the loop itself adds return_dict and the like
_SERVED = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)


def reason_at_start(model, generation_config, arguments) -> str | None:
    """Return why a call cannot be served, as far as it can be told before the prefill; None if it can.

    Parameters
    ----------
    model : transformers model
    generation_config : GenerationConfig
        Final, as the loop will use it.
    arguments : dict
        `assistant_model`, `custom_generate`, `synced_gpus` as passed to `generate`.
    """
    mode = generation_config.get_generation_mode(arguments.get("assistant_model"))
    if arguments.get("custom_generate") is not None:
        return "custom_generate brings a loop of its own"
    if mode not in _SERVED:
        return f"its mode is {mode.value.replace('_', ' ')}; greedy search and sampling are served"
    if not generation_config.use_cache:
        return "use_cache=False leaves nothing to verify against"
    if model.training:
        return "the model is in training mode, where dropout draws by width; call model.eval()"
    if generation_config.is_assistant:
        return "the model is an assistant of another one"
    if versions.in_step_with_other_ranks(model, arguments.get("synced_gpus")):
        return "synced_gpus needs every rank in every forward"
    if versions.stops_late(model):
        return "on this device generate checks for the end one step late"
    return None


def reason_after_prefill(ids, kwargs) -> str | None:
    """Return why a call cannot go on with drafts, asked at its first decode step; None if it can."""
    if ids.shape[0] != 1:
        return "it generates several rows at once; one is served"
    return caches.reason_against(versions.cache_of(kwargs))


def is_edited(prepared, given) -> bool:
    """Whether someone changed the model's inputs between `prepare_inputs_for_generation` and `forward`."""
    found = 0
    for name, value in given.items():
        if name in prepared:
            found += 1
            if value is not prepared[name]:
                return True
        elif not isinstance(value, _SETTINGS):
            return True
    return found < len(prepared) and any(
        prepared[name] is not None for name in prepared.keys() - given.keys()
    )
