"""Speculative decoding with no draft model, for Hugging Face transformers.

    import draftless

    draftless.attach(model)
    model.generate(**inputs)          # plain generate's tokens, in fewer forwards

Everything public is here; names are imported on first use, so that importing
`draftless` costs nothing beyond torch and transformers.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_here = os.path.dirname(os.path.abspath(__file__))
if not os.path.isdir(os.path.join(_here, "lookup")):  # a checkout, where lookup/ lies beside this folder
    __path__.append(os.path.dirname(_here))

_HOME = {
    "attach": ".integration.attach",
    "attached": ".integration.attach",
    "detach": ".integration.attach",
    "Handle": ".integration.handle",
    "DraftlessWarning": ".integration.handle",
    "LookupProcessor": ".integration.processor",
    "Stats": ".integration.stats",
    "CostModel": ".lookup.cost",
    "Draft": ".lookup.draft",
    "Drafter": ".lookup.draft",
    "LookupConfig": ".lookup.config",
    "LookupDrafter": ".lookup.drafter",
    "SuffixIndex": ".lookup.index",
}

__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from .integration.attach import attach, attached, detach
    from .integration.handle import DraftlessWarning, Handle
    from .integration.processor import LookupProcessor
    from .integration.stats import Stats
    from .lookup.config import LookupConfig
    from .lookup.cost import CostModel
    from .lookup.draft import Draft, Drafter
    from .lookup.drafter import LookupDrafter
    from .lookup.index import SuffixIndex


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module 'draftless' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(__all__)
