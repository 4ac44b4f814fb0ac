"""What was written before, found fast: token ids in, drafts out.

Knows token ids and nothing else (NumPy and Numba, never torch), so it can be
used and measured without a model.
"""

from importlib import import_module

_HOME = {
    "CostModel": ".cost",
    "Draft": ".draft",
    "Drafter": ".draft",
    "LookupConfig": ".config",
    "LookupDrafter": ".drafter",
    "SuffixIndex": ".index",
}

__all__ = list(_HOME)


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module 'draftless.lookup' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value
