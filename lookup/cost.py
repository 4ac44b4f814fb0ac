"""What a forward costs by its width, learned from forwards that ran.

Width is the number of tokens one forward checks: 1 + drafted tokens. Costs are
relative to width 1, since only ratios decide whether a drafted token pays.
"""

import math
import threading
from collections import defaultdict, deque

import numpy as np

_KEPT = 32  # latest forwards of about one width that a median is taken of
_TRUST = 1  # forwards of about one width that weigh as much as the prior
_REFRESH = 32  # forwards between two refreshes of the curve; one of several tokens counts for eight
_OUTLIER = 2.0  # times what was expected: a first forward of its width that compiled something

_PRIORS = {
    "cpu": ([1, 2, 4, 8, 16, 32, 64, 128], [1.0, 1.35, 1.5, 1.65, 1.85, 2.3, 3.4, 5.6]),
    "gpu": ([1, 129], [1.0, 1.4]),
}


class CostModel:
    """Relative time of a forward by width: a prior, corrected by measured medians.

    The prior's shape is kept between widths that were measured, and its step from one token
    to two is not: some machines run one token by another kernel than several. Safe to share
    between threads. Curves are non-decreasing: a wider forward is never taken to be cheaper.

    Parameters
    ----------
    device : str, default "cpu"
        Chooses the prior: "cpu" for forwards bound by arithmetic soon, anything else for
        launch-bound ones where extra tokens are nearly free.

    Examples
    --------
    >>> CostModel.fixed([1, 9], [1.0, 2.0]).curve(3).tolist()
    [1.0, 1.125, 1.25]
    """

    def __init__(self, device: str = "cpu"):
        self._prior = _PRIORS["cpu" if device == "cpu" else "gpu"]
        self._learns = True
        self._lock = threading.Lock()
        self._ratios = defaultdict(lambda: deque(maxlen=_KEPT))  # by place: (width, seconds over prior)
        self._fresh = deque()  # observed since the last refresh: (width, seconds)
        self._seen = set()
        self._prior_curve = np.empty(0)
        self._since = 0
        self._curve = np.empty(0)

    @classmethod
    def fixed(cls, widths, seconds) -> "CostModel":
        """Make a model that knows its curve and learns nothing.

        Parameters
        ----------
        widths : increasing sequence of int, the first of them 1
        seconds : sequence of float, same length
            Time of a forward of that width, any unit; linear between, constant slope after; a time
            below an earlier one counts as that one.
        """
        widths, seconds = [int(width) for width in widths], [float(second) for second in seconds]
        if len(widths) != len(seconds) or not widths or widths[0] != 1 or widths != sorted(set(widths)):
            raise ValueError(
                "a cost curve needs increasing widths that begin with 1 and one time for each; "
                f"found widths {widths} and {len(seconds)} times"
            )
        if not all(math.isfinite(second) and second > 0 for second in seconds):
            raise ValueError(f"times of a cost curve must be positive and finite; found {seconds}")
        model = cls()
        model._prior = (widths, (np.maximum.accumulate(seconds) / seconds[0]).tolist())
        model._learns = False
        return model

    def frozen(self) -> "CostModel":
        """Return a model that keeps this one's prior and learns nothing."""
        return type(self).fixed(*self._prior)

    def observe(self, width: int, seconds: float) -> None:
        """Learn from one forward; a first one of its width that took far too long is dropped."""
        if not self._learns or not 0 < seconds < math.inf:
            return
        self._fresh.append((width, seconds))
        self._since += 1 if width == 1 else 8
        if self._since >= _REFRESH:
            with self._lock:
                self._since = 0
                self._absorb()
                self._curve = np.empty(0)

    def _absorb(self):
        """Sort the latest forwards by width, without those that took far too long at first."""
        while self._fresh:
            width, seconds = self._fresh.popleft()
            first = width not in self._seen
            self._seen.add(width)
            if not first or seconds <= _OUTLIER * self._expected(width):
                ratio = seconds / float(self._prior_at(width)[width - 1])
                self._ratios[_place(width)].append((width, ratio))

    def _expected(self, width):
        """Seconds of a forward as far as is known; of the very first nothing is, so it counts as too long."""
        base = self._ratios.get(0)
        if not base:
            return 0.0
        known = self._curve if len(self._curve) >= width else self._fit(max(width, 64))
        return _median(base) * float(known[width - 1])

    def curve(self, most: int) -> np.ndarray:
        """Return the relative time of widths 1 to `most`, float64, shape (most,)."""
        curve = self._curve
        if len(curve) < most:
            with self._lock:
                self._absorb()
                curve = self._curve = self._fit(max(most, 64))
        return curve[:most]

    def _prior_at(self, most):
        """The prior for widths 1 to `most` at least."""
        if len(self._prior_curve) < most:
            self._prior_curve = _extended(self._prior, np.arange(1, max(most, 128) + 1))
        return self._prior_curve

    def _fit(self, most):
        widths = np.arange(1, most + 1)
        prior = self._prior_at(most)[:most]
        base = self._ratios.get(0)
        wide = sorted(place for place, seen in self._ratios.items() if place and seen)
        if not base or not wide:
            return prior
        places, factors = [], []
        for seen in (self._ratios[place] for place in wide):
            places.append(np.mean([np.log(width) for width, _ in seen]))
            factors.append((_median(seen) / _median(base)) ** (len(seen) / (len(seen) + _TRUST)))
        curve = prior * np.interp(np.log(widths), places, factors)
        curve[0] = 1.0
        return np.maximum.accumulate(curve)


def _place(width):
    """Widths that are alike share a place: 1, 2, 3, 4, 5-6, 7-8, 9-11, ...; two for each doubling."""
    return round(2 * math.log2(width))


def _median(seen):
    return float(np.median([ratio for _, ratio in seen]))


def _extended(points, widths):
    known, times = points
    curve = np.interp(widths, known, times)
    if len(known) > 1:
        slope = (times[-1] - times[-2]) / (known[-1] - known[-2])
        curve = np.where(widths > known[-1], times[-1] + slope * (widths - known[-1]), curve)
    return curve
