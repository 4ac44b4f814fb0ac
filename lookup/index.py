"""SuffixIndex: where did the text just written occur before?"""

import secrets
from operator import index as whole
from typing import NamedTuple

import numpy as np

from . import kernels

_LARGEST = 2**31 - 1
_SMALLEST_ROOM = 256


class Occurrences(NamedTuple):
    """Earlier occurrences of the text's end, the best first; two int64 arrays of one length."""

    positions: np.ndarray
    """Position in the history of the token that followed the occurrence."""
    lengths: np.ndarray
    """How many tokens match, counted backwards from there."""


class SuffixIndex:
    """The text so far, and the longest suffix of it that occurs earlier.

    Append-only but for `truncate`. After every `extend` the longest match is known
    exactly; an occurrence may overlap the suffix, as in `7 7 7`. Of equally long
    matches the latest wins. How, and at what cost: see `lookup/kernels.py`.

    One index belongs to one text; use several in several threads freely, not one.

    Parameters
    ----------
    tokens : ids, optional
        Indexed at once, as by `extend`.
    window : int or None, default None
        Only the latest `window` tokens are searched, and memory stays flat: results are
        those of a fresh index over the last `window` tokens. None searches all.
    max_match : int or None, default None
        Matches longer than this count as this long.

    Examples
    --------
    >>> index = SuffixIndex([1, 2, 3, 9, 1, 2, 3])
    >>> index.match()
    (3, 3)
    >>> index.continuation(6).tolist()
    [9, 1, 2, 3, 9, 1]
    """

    def __init__(self, tokens=(), *, window: int | None = None, max_match: int | None = None):
        self._check_limit("window", window)
        self._check_limit("max_match", max_match)
        self.window = window
        self.max_match = max_match
        self.clear()
        self.extend(tokens)

    def clear(self) -> None:
        """Forget everything."""
        self._dropped = 0
        self._tokens = np.empty(_SMALLEST_ROOM, dtype=np.int32)
        self._links = np.empty(_SMALLEST_ROOM, dtype=np.int32)
        self._keys = np.full(_SMALLEST_ROOM, kernels.EMPTY, dtype=np.int32)
        self._heads = np.full(_SMALLEST_ROOM, -1, dtype=np.int32)
        self._state = np.zeros(kernels.STATE_SIZE, dtype=np.int64)
        self._state[kernels.MATCH_END] = -1
        self._state[kernels.SEED] = secrets.randbits(29) | 1 << 29 | 1  # an id times it fits
        self._state[kernels.WINDOW] = self.window or 0
        self._state[kernels.MAX_MATCH] = self.max_match or 0
        most = _LARGEST if self.window is None else 3 * max(self.window, _SMALLEST_ROOM)
        self._state[kernels.MOST_KEPT] = most
        self._one = np.empty(1, dtype=np.int32)

    def extend(self, tokens) -> None:
        """Append tokens, any number of them, in one kernel call.

        Parameters
        ----------
        tokens : sequence of int, 1-D integer array or tensor
            Ids from 0 to 2**31 - 1.

        Raises
        ------
        TypeError, ValueError
            For other shapes, types or values; nothing has been appended then.
        """
        self._append(kernels.extend, tokens)

    def follow(self, tokens, prior, hits, tries, luck, min_match, keep) -> None:
        """Append like `extend`, learning from each token whether the match before it was right.

        `prior`, `hits` and `tries` are float64 arrays of one entry a match-length bucket,
        `luck` has two; all but `prior` are changed in place: see `lookup.kernels.follow`.
        """
        self._append(kernels.follow, tokens, prior, hits, tries, luck, min_match, keep)

    def match(self) -> tuple[int, int]:
        """Return the longest match as (position of the token that followed it, its length).

        (len(self), 0) if nothing matches.
        """
        length = self._state.item(kernels.MATCH_LENGTH)
        if length == 0:
            return len(self), 0
        return self._dropped + self._state.item(kernels.MATCH_END) + 1, length

    def occurrences(self, limit: int, min_match: int = 1, work: int = 65_536) -> Occurrences:
        """Return the best earlier occurrences: longest match first, then latest first.

        Parameters
        ----------
        limit : int
            At most this many.
        min_match : int, default 1
            Matches shorter than this are left out.
        work : int, default 65,536
            Elementary steps (links followed, tokens compared) after which the search for
            more stops; the latest are seen first. The first entry is exact in any case.
        """
        if limit < 0:
            raise ValueError(f"limit must be at least 0; found {limit}")
        ends = np.empty(min(limit, len(self)), dtype=np.int64)
        lengths = np.empty_like(ends)
        found = kernels.occurrences(self._tokens, self._links, self._state, min_match, work, ends, lengths)
        return Occurrences(ends[:found] + (1 + self._dropped), lengths[:found])

    def continuation(self, n: int) -> np.ndarray:
        """Return the `n` tokens that the longest match proposes, int32; none without a match.

        Copying runs on past the end of the history: a period repeats.
        """
        if n < 0:
            raise ValueError(f"n must be at least 0; found {n}")
        if self._state[kernels.MATCH_LENGTH] == 0:
            n = 0
        out, sources = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int64)
        kernels.copy_on(self._tokens, self._state, self._state[kernels.MATCH_END] + 1, out, sources)
        return out

    def propose(self, budget, min_match, prior, hits, tries, luck, curve, rate):
        """Return (tokens, probabilities, sources) of the draft that pays: `lookup.kernels.propose`."""
        out = np.empty(budget, dtype=np.int32)
        probabilities = np.empty(budget, dtype=np.float32)
        sources = np.empty(budget, dtype=np.int64)
        k = kernels.propose(
            self._tokens,
            self._state,
            min_match,
            prior,
            hits,
            tries,
            luck,
            curve,
            rate,
            out,
            probabilities,
            sources,
        )
        return out[:k], probabilities[:k], sources[:k] + self._dropped

    def truncate(self, length: int) -> None:
        """Shrink the text to its first `length` tokens.

        Raises
        ------
        ValueError
            If `length` is negative, larger than the text, or so small that the window
            would reach back to what is forgotten. At least half a window can be taken back.
        """
        length = whole(length)
        least = self._dropped + self.window if self._dropped else 0
        if not least <= length <= len(self):
            raise ValueError(
                f"length must be from {least} (before it, the window is forgotten) to {len(self)}, "
                f"the length of the text; found {length}"
            )
        kernels.truncate(*self._arrays, length - self._dropped)

    def copy(self) -> "SuffixIndex":
        """Return an index of the same text that shares nothing with this one."""
        twin = object.__new__(type(self))
        for name, value in vars(self).items():
            setattr(twin, name, value.copy() if isinstance(value, np.ndarray) else value)
        return twin

    @property
    def tokens(self) -> np.ndarray:
        """A copy of the tokens that are kept, int32; with a window at least the latest `window`."""
        return self._tokens[: self._state[kernels.LENGTH]].copy()

    @property
    def memory_bytes(self) -> int:
        """Bytes held by the arrays."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))

    @property
    def steps(self) -> int:
        """Elementary steps that searches have taken so far (links followed, tokens compared)."""
        return int(self._state[kernels.STEPS])

    def __len__(self) -> int:
        return self._dropped + self._state.item(kernels.LENGTH)

    def __repr__(self) -> str:
        return f"SuffixIndex({len(self)} tokens, window={self.window}, match={self.match()[1]})"

    @property
    def _arrays(self):
        return self._tokens, self._links, self._keys, self._heads, self._state

    def _append(self, kernel, tokens, *more):
        """Have `kernel` append all of `tokens`, making room where it stops."""
        new = self._checked(tokens)
        done = kernel(*self._arrays, new, *more)
        while done < len(new):
            self._make_room(len(new) - done)
            done += kernel(*self._arrays, new[done:], *more)

    def _checked(self, tokens):
        """`as_ids`, with a short cut for the one token of a step."""
        one = type(tokens) is list and len(tokens) == 1 and type(tokens[0]) is int
        if one and 0 <= tokens[0] <= _LARGEST:
            self._one[0] = tokens[0]
            return self._one
        return as_ids(tokens)

    def _make_room(self, more):
        """Make room where a kernel stopped with `more` tokens to append."""
        length = int(self._state[kernels.LENGTH])
        if length == self._state[kernels.MOST_KEPT]:
            self._forget(length)
        elif length == len(self._tokens):
            size = min(max(length + more, 2 * length), int(self._state[kernels.MOST_KEPT]))
            self._tokens, self._links = _grown(self._tokens, size), _grown(self._links, size)
        else:
            self._rehash(2 * len(self._keys))

    def _forget(self, length):
        """Drop what the window has left behind, but for half a window that can be taken back."""
        drop = length - self.window - max(self.window, _SMALLEST_ROOM) // 2
        kernels.slide(*self._arrays, drop)
        self._dropped += drop

    def _rehash(self, size):
        keys, heads = np.full(size, kernels.EMPTY, dtype=np.int32), np.full(size, -1, dtype=np.int32)
        kernels.rehash(self._keys, self._heads, keys, heads, self._state[kernels.SEED])
        self._keys, self._heads = keys, heads

    @staticmethod
    def _check_limit(name, value):
        if value is None:
            return
        expected = f"{name} must be a whole number, at least 1, or None; found {value!r}"
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise TypeError(expected)
        if value < 1:
            raise ValueError(expected)


def as_ids(tokens) -> np.ndarray:
    """Return token ids as an int32 array of shape (n,); lists, arrays and tensors are taken.

    Raises
    ------
    TypeError
        If they are not whole numbers.
    ValueError
        If they are not one-dimensional, or an id is negative or above 2**31 - 1.
    """
    if type(tokens) is np.ndarray and tokens.dtype == np.int32 and tokens.ndim == 1 and tokens.size:
        if tokens.min() < 0:
            raise ValueError(f"token ids must be from 0 to {_LARGEST}; found {tokens.min()}")
        return tokens.copy()
    if hasattr(tokens, "detach"):
        tokens = tokens.detach().cpu().numpy()
    array = np.asarray(tokens)
    if array.size == 0:
        array = array.reshape(-1).astype(np.int64)
    if array.ndim != 1:
        raise ValueError(f"token ids must have one dimension; found shape {array.shape}; pass one row")
    if array.dtype.kind not in "iu":
        raise TypeError(f"token ids must be whole numbers; found {array.dtype}")
    if array.size and array.astype(np.uint64).max() > _LARGEST:  # a negative id becomes a huge one
        raise ValueError(f"token ids must be from 0 to {_LARGEST}; found {array.min()} to {array.max()}")
    return np.array(array, dtype=np.int32, order="C")  # a copy: kernels are compiled for arrays of our own


def _grown(array, size):
    grown = np.empty(size, dtype=array.dtype)
    grown[: len(array)] = array
    return grown
