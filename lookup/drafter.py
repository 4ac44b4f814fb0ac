"""The lookup as a drafter: the longest match's continuation, as long as it pays."""

from collections.abc import Sequence

import numpy as np

from .config import LookupConfig
from .cost import CostModel
from .draft import Draft
from .index import SuffixIndex

# How often the token after a match of 1, 2, 3, 4, 5-6, 7-8, 9-12, 13-16, 17-32, 33+ tokens is the
# next one in texts of strong models.
_ACCEPTED = np.array([0.26, 0.43, 0.53, 0.64, 0.72, 0.80, 0.82, 0.88, 0.94, 0.98])
_DOUBT = 9.0  # hits that short matches owe before they are believed
_KEEP = 0.98  # a try of this match length fades by this much with each later one
_FADE = 0.9  # the same for tokens per unit of time, by forward


class LookupDrafter:
    """Drafts what followed the longest earlier occurrence of the text's end.

    The length is priced: a drafted token must be worth the time that it adds to the
    forward, at the rate of tokens per unit of time reached lately. How likely a token is
    to be accepted is learned during the call, from every token written, drafted or not;
    so drafts shrink to nothing on novel text and come back when it repeats.

    Parameters
    ----------
    config : LookupConfig, optional
    cost : CostModel, optional
        What a forward costs by width; the prior for a CPU if not given.

    Examples
    --------
    >>> drafter = LookupDrafter(LookupConfig(price=0, max_draft=4))
    >>> drafter.begin([1, 2, 3, 4, 1, 2, 3])
    >>> drafter.draft(64).tokens.tolist()
    [4, 1, 2, 3]
    """

    def __init__(self, config: LookupConfig | None = None, cost: CostModel | None = None):
        self.config = config or LookupConfig()
        cost = cost or CostModel()
        self.cost = cost.frozen() if self.config.deterministic else cost
        self.index = self._new_index()
        self._forget()

    def begin(self, ids: Sequence[int]) -> None:
        if len(self.index):
            self.index = self._new_index()
            self._forget()
        self.index.extend(ids)

    def draft(self, budget: int) -> Draft:
        budget = min(budget, self.config.max_draft)
        if budget <= 0:
            return _NOTHING
        if self.index.match()[1] < self.config.min_match:
            self._count(1, 1.0)
            return _NOTHING
        curve = self.cost.curve(budget + 1)
        rate = self.config.price * self._tokens / self._time
        tokens, probabilities, sources = self.index.propose(
            budget, self.config.min_match, _ACCEPTED, self._hits, self._tries, self._luck, curve, rate
        )
        if len(tokens) == 0:
            self._count(1, curve[0])
            return _NOTHING
        return Draft.chain(tokens, probabilities, sources)

    def commit(self, tokens: Sequence[int]) -> None:
        self.index.follow(
            tokens, _ACCEPTED, self._hits, self._tries, self._luck, self.config.min_match, _KEEP
        )

    def learn(self, draft: Draft, accepted: Sequence[int]) -> None:
        if len(draft) == 0:  # counted when it was made
            return
        self._count(1 + len(accepted), float(self.cost.curve(1 + len(draft))[-1]))

    def _count(self, tokens, time):
        self._tokens = _FADE * self._tokens + tokens
        self._time = _FADE * self._time + time

    def _forget(self):
        self._hits, self._tries = np.zeros(len(_ACCEPTED)), np.zeros(len(_ACCEPTED))
        self._luck = np.array([0.0, _DOUBT])
        self._tokens = self._time = 1.0 / (1.0 - _FADE)

    def _new_index(self):
        return SuffixIndex(window=self.config.window, max_match=self.config.max_match)


_NOTHING = Draft.chain([])


def warm_up() -> None:
    """Load or compile every kernel that a call needs, by drafting once for real."""
    drafter = LookupDrafter()
    drafter.begin([1, 2, 1, 2, 1])
    drafter.commit([2])
    drafter.learn(drafter.draft(4), [])
    window = SuffixIndex(range(1000), window=8)
    window.truncate(len(window) - 1)
