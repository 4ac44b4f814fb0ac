"""One line on any model: `attach`, and back: `detach`."""

import contextlib

from transformers import GenerationMixin

from . import warm
from .handle import Handle
from .hooks import Hooks, hooks_of


def attach(model, config=None, *, drafter=None, cost=None) -> Handle:
    """Let `model.generate` draft by lookup; it writes what it would have written anyway.

    Greedy search and sampling of one row are served, with every cache that can be rolled
    back; whatever cannot be served exactly runs plainly and says why once. Attaching to a
    model that is attached replaces the configuration and keeps the statistics.

    While attached, `model.generate` takes one more argument: `lookup=False` runs that call
    plainly, `lookup=LookupConfig(...)` gives it other settings.

    Parameters
    ----------
    model : transformers model that can generate
        Or a PEFT model or `torch.compile`d module around one.
    config : LookupConfig, optional
    drafter : callable, optional
        `LookupConfig` to `Drafter`, called for every `generate` call; the lookup if not given.
    cost : CostModel, optional
        What a forward costs by width; measured from live forwards if not given.

    Returns
    -------
    Handle
        Statistics (`stats`, `last`), `configure`, `reset`, `detach`.

    Raises
    ------
    TypeError
        If the model cannot generate, or an option is of the wrong type.

    Notes
    -----
    Verification of a copied continuation in one forward: prompt lookup decoding (Saxena
    2023, github.com/apoorvumang/prompt-lookup-decoding), after speculative decoding
    (Leviathan et al. 2023, arXiv:2211.17192). Here the loop's own choice of token is the
    verification, so nothing is drawn anew.
    """
    target = generating_module(model)
    with Hooks.changing(target) as hooks:
        handle = hooks.handle
        if handle is None:
            hooks.handles.append(handle := Handle(target, config, drafter, cost))
        else:
            handle.configure(config, drafter, cost)
    warm.begin()
    return handle


def detach(model) -> None:
    """Undo `attach`: the model is as if it had never been attached.

    Calls of `generate` that are running end as they began. Does nothing if the model is
    not attached.
    """
    target = generating_module(model)
    if hooks_of(target) is not None:
        with Hooks.changing(target) as hooks:
            hooks.handles.clear()


@contextlib.contextmanager
def attached(model, config=None, *, drafter=None, cost=None):
    """`attach` for a `with` block, with statistics of its own; afterwards the model is as it was before.

    Blocks may overlap: the one entered last counts.

    Parameters are those of `attach`; yields the `Handle`.
    """
    target = generating_module(model)
    with Hooks.changing(target) as hooks:
        hooks.handles.append(handle := Handle(target, config, drafter, cost))
    warm.begin()
    try:
        yield handle
    finally:
        if hooks_of(target) is not None:
            with Hooks.changing(target) as hooks:
                hooks.handles = [one for one in hooks.handles if one is not handle]


def generating_module(model) -> GenerationMixin:
    """Return the module whose `generate` loop runs, inside whatever wraps it.

    Raises
    ------
    TypeError
        If there is none.
    """
    module = model
    while not (isinstance(module, GenerationMixin) and hasattr(module, "forward")):
        for inner in ("_orig_mod", "get_base_model", "module"):
            found = getattr(module, inner, None)
            if found is not None:
                module = found() if inner == "get_base_model" else found
                break
        else:
            raise TypeError(
                "expected a transformers model that can generate (a GenerationMixin, or a PEFT or compiled "
                f"model around one); found {type(model).__name__}"
            )
    return module
