"""What a drafter proposes, and what a drafter is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

_KINDS = {"tokens": np.int32, "parents": np.int32, "probabilities": np.float32, "sources": np.int64}


@dataclass(frozen=True, eq=False)
class Draft:
    """Tokens proposed for the next forward to check, as a tree in topological order.

    Attributes
    ----------
    tokens : int32 array, shape (n,)
        Proposed ids; node i proposes `tokens[i]`.
    parents : int32 array, shape (n,)
        The node before node i: `parents[i] < i`, and -1 for the children of the last
        committed token. A chain has parents -1, 0, 1, ...
    probabilities : float32 array, shape (n,)
        How likely node i is to be accepted, its whole path counted.
    sources : int64 array, shape (n,)
        Position in the history (as given to `Drafter.begin` and `commit`) that node i was
        copied from; -1 if it was not copied.

    Raises
    ------
    ValueError
        If the four are not one-dimensional and of one length.
    """

    tokens: np.ndarray
    parents: np.ndarray
    probabilities: np.ndarray
    sources: np.ndarray

    def __post_init__(self):
        for name, kind in _KINDS.items():
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=kind))
        shapes = {name: getattr(self, name).shape for name in _KINDS}
        if any(shape != (len(self.tokens),) for shape in shapes.values()):
            raise ValueError(f"a draft's arrays must be one-dimensional and of one length; found {shapes}")

    @classmethod
    def chain(cls, tokens, probabilities=None, sources=None) -> "Draft":
        """Make the draft in which every token follows the one before.

        Parameters
        ----------
        tokens : sequence of int, length n
        probabilities : sequence of float, length n, optional
            1 where unknown.
        sources : sequence of int, length n, optional
            -1 where unknown.

        Examples
        --------
        >>> Draft.chain([4, 1]).parents.tolist()
        [-1, 0]
        """
        tokens = np.asarray(tokens, dtype=np.int32)
        n = len(tokens)
        if probabilities is None:
            probabilities = np.ones(n)
        if sources is None:
            sources = np.full(n, -1)
        return cls(tokens, np.arange(-1, n - 1), probabilities, sources)

    @property
    def is_chain(self) -> bool:
        """Whether every node follows the one before it."""
        return bool((self.parents == np.arange(-1, len(self.parents) - 1)).all())

    def first_chain(self) -> "Draft":
        """Return the leading run of nodes that each follow the one before."""
        broken = np.flatnonzero(self.parents != np.arange(-1, len(self) - 1))
        return self.head(int(broken[0])) if len(broken) else self

    def head(self, n: int) -> "Draft":
        """Return the first `n` nodes (a draft again, since parents come before children)."""
        if n >= len(self):
            return self
        return Draft(self.tokens[:n], self.parents[:n], self.probabilities[:n], self.sources[:n])

    def __len__(self) -> int:
        return len(self.tokens)


@runtime_checkable
class Drafter(Protocol):
    """Anything that proposes tokens for one `generate` call; the lookup is the first.

    One drafter serves one call. Its methods are called in this order: `begin` once, then
    for every forward `draft`, later `learn` with what became of it, and `commit` with the
    tokens written since. Pass a factory to `attach(model, drafter=...)` to use your own.
    """

    def begin(self, ids: Sequence[int]) -> None:
        """Start from these ids, an int64 array: the prompt, and what was written before the first draft.

        For an encoder-decoder model the encoder's ids come first.
        """

    def draft(self, budget: int) -> Draft:
        """Propose at most `budget` tokens (0 or more) to follow what was committed."""

    def commit(self, tokens: Sequence[int]) -> None:
        """Append tokens that were written, in order; drafted or not."""

    def learn(self, draft: Draft, accepted: Sequence[int]) -> None:
        """Be told which nodes of `draft` were accepted: their indices, from the root down."""
