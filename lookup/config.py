"""What a user may set about drafting, checked once, at the border."""

import dataclasses
import difflib
import math
from dataclasses import dataclass


@dataclass(frozen=True)
class LookupConfig:
    """How far back to look, how much to draft, and what a drafted token must be worth.

    None of these changes what `generate` writes; all of them change how fast.

    Parameters
    ----------
    window : int or None, default None
        How many of the latest tokens (prompt and output) are searched. None searches all.
        A small window bounds memory and forgets text that no longer matters.
    min_match : int, default 1
        Shortest match, in tokens, that may propose a draft. Larger is pickier. The default
        leaves the choice to the price: short matches are seldom right, and drafted little.
    max_match : int or None, default None
        Longest match looked for, in tokens; longer ones count as this long, and of those the
        latest is used. None sets no cap: a longer, older match beats a shorter, later one.
    max_draft : int, default 64
        Most tokens drafted for one forward.
    price : float, default 1.0
        What a drafted token is charged, relative to what it costs: with 1 a token is drafted
        if the tokens it is expected to save are worth the wider forward, with 2 it must be
        worth twice that, with 0 everything up to `max_draft` is drafted.
    deterministic : bool, default False
        Draft by a fixed cost curve instead of measured seconds, so that the same call drafts
        the same twice. (The tokens written are the same either way.)

    Raises
    ------
    TypeError, ValueError
        For a value of the wrong type or outside its range.

    Examples
    --------
    >>> LookupConfig(window=4096).replace(max_draft=16)
    LookupConfig(window=4096, min_match=1, max_match=None, max_draft=16, price=1.0, deterministic=False)
    """

    window: int | None = None
    min_match: int = 1
    max_match: int | None = None
    max_draft: int = 64
    price: float = 1.0
    deterministic: bool = False

    def __post_init__(self):
        _check_count("window", self.window, 1, optional=True)
        _check_count("min_match", self.min_match, 1)
        _check_count("max_match", self.max_match, 1, optional=True)
        _check_count("max_draft", self.max_draft, 0, most=4096)
        if self.max_match is not None and self.max_match < self.min_match:
            raise ValueError(
                f"max_match must be at least min_match, found max_match={self.max_match} and "
                f"min_match={self.min_match}; raise the one or lower the other"
            )
        if isinstance(self.price, bool) or not isinstance(self.price, (int, float)):
            raise TypeError(f"price must be a number, found {self.price!r}")
        if not math.isfinite(self.price) or self.price < 0:
            raise ValueError(f"price must be finite and at least 0, found {self.price!r}; 1 is the default")
        if not isinstance(self.deterministic, bool):
            raise TypeError(f"deterministic must be True or False, found {self.deterministic!r}")

    def replace(self, **changes) -> "LookupConfig":
        """Return a copy with some values changed; unknown names are refused as in `from_dict`."""
        return type(self).from_dict({**self.to_dict(), **changes})

    def to_dict(self) -> dict:
        """Return the values as plain Python objects, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> "LookupConfig":
        """Make a configuration from `to_dict`'s form; missing names keep their defaults.

        Raises
        ------
        ValueError
            For a name that is no option; the nearest known one is suggested.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.4)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
                raise ValueError(f"unknown option {name!r} for LookupConfig; {hint}")
        return cls(**values)


def _check_count(name, value, least, most=None, optional=False):
    if value is None and optional:
        return
    span = f"at least {least}" + (f" and at most {most}" if most is not None else "")
    expected = f"{name} must be a whole number, {span}" + (", or None" if optional else "")
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{expected}; found {value!r}")
    if value < least or (most is not None and value > most):
        raise ValueError(f"{expected}; found {value}")
