"""What a forward costs by its width, learned from forwards that ran.

Width is the number of tokens one forward checks: 1 + drafted tokens. Costs are
relative to width 1, since only ratios decide whether a drafted token pays.
"""

import math
import threading
from collections import defaultdict, deque

import numpy as np

_KEPT = 32  # latest forwards of each width that a median is taken of
_TRUST = 4  # forwards of a width that weigh as much as the prior
_REFRESH = 8  # forwards between two refreshes of the curve

_PRIORS = {
    "cpu": ([1, 2, 4, 8, 16, 32, 64, 128], [1.0, 1.1, 1.35, 1.6, 1.75, 2.0, 3.0, 4.6]),
    "gpu": ([1, 129], [1.0, 1.4]),
}


class CostModel:
    """Relative time of a forward by width: a prior, corrected by measured medians.

    Safe to share between threads. Curves are non-decreasing: a wider forward is never
    taken to be cheaper.

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
        self._seconds = defaultdict(lambda: deque(maxlen=_KEPT))
        self._seen = defaultdict(int)
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
        """Learn from one forward. The first of a width is dropped: it may have compiled something."""
        if not self._learns or not 0 < seconds < math.inf:
            return
        with self._lock:
            self._seen[width] += 1
            if self._seen[width] == 1:
                return
            self._seconds[width].append(seconds)
            self._since += 1
            if self._since >= _REFRESH:
                self._since = 0
                self._curve = np.empty(0)

    def curve(self, most: int) -> np.ndarray:
        """Return the relative time of widths 1 to `most`, float64, shape (most,)."""
        curve = self._curve
        if len(curve) < most:
            with self._lock:
                curve = self._curve = self._fit(max(most, 64))
        return curve[:most]

    def _fit(self, most):
        widths = np.arange(1, most + 1)
        prior = _extended(self._prior, widths)
        base = self._seconds.get(1)
        if not base:
            return prior
        base = float(np.median(base))
        measured = sorted(width for width, times in self._seconds.items() if 1 < width <= most and times)
        places, factors = [0.0], [1.0]
        for width in measured:
            times = self._seconds[width]
            ratio = float(np.median(times)) / base
            trust = len(times) / (len(times) + _TRUST)
            places.append(np.log(width))
            factors.append((ratio / prior[width - 1]) ** trust)
        return np.maximum.accumulate(np.maximum(prior * np.interp(np.log(widths), places, factors), 1.0))


def _extended(points, widths):
    known, times = points
    curve = np.interp(widths, known, times)
    if len(known) > 1:
        slope = (times[-1] - times[-2]) / (known[-1] - known[-2])
        curve = np.where(widths > known[-1], times[-1] + slope * (widths - known[-1]), curve)
    return curve
