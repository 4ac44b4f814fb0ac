"""What speculation did, counted: one object a call, one in all."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Stats:
    """Counts of one call, or of all calls since the last reset.

    Calls that ran plainly count in `plain_calls` and `reasons` alone.

    Attributes
    ----------
    calls, plain_calls : int
        Calls served with drafts, and calls that ran plainly.
    tokens : int
        Tokens written.
    forwards : int
        Forwards run for them; the prefill counts as one.
    drafted, accepted : int
        Drafted tokens checked, and those of them that were kept.
    drafted_at, accepted_at : list of int
        The same by depth: entry 0 counts first drafted tokens, entry 1 second ones, ...
    seconds_total, seconds_forward, seconds_lookup : float
        Wall-clock time in `generate`, of it in the model's forwards, and of it in the
        drafter. On an accelerator forwards are timed up to the loop's next look at a token.
    sources : list of int
        One entry a token written (of a single call; empty in sums): the position, counted
        over prompt and output, that an accepted drafted token was copied from; -1 for
        tokens that the model wrote without being asked about a draft.
    reason : str or None
        Why the last call ran plainly.
    reasons : Counter
        How many calls ran plainly, by reason.
    """

    calls: int = 0
    plain_calls: int = 0
    tokens: int = 0
    forwards: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_at: list = field(default_factory=list)
    accepted_at: list = field(default_factory=list)
    seconds_total: float = 0.0
    seconds_forward: float = 0.0
    seconds_lookup: float = 0.0
    sources: list = field(default_factory=list, repr=False)
    reason: str | None = None
    reasons: Counter = field(default_factory=Counter)

    @property
    def tokens_per_forward(self) -> float:
        """Tokens written for each forward, the bonus token counted; 0 if none ran."""
        return self.tokens / self.forwards if self.forwards else 0.0

    @property
    def acceptance(self) -> float:
        """Share of the drafted tokens that were kept; 0 if none was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def acceptance_by_depth(self) -> list:
        """Share of the first, second, ... drafted tokens that were kept."""
        return [kept / made for kept, made in zip(self.accepted_at, self.drafted_at)]

    @property
    def seconds_around(self) -> float:
        """Time of the loop itself: neither in forwards nor in the drafter."""
        return self.seconds_total - self.seconds_forward - self.seconds_lookup

    def count_draft(self, drafted: int, accepted: int) -> None:
        """Count one checked draft of `drafted` tokens in a chain."""
        self.drafted += drafted
        self.accepted += accepted
        _add(self.drafted_at, [1] * drafted)
        _add(self.accepted_at, [1] * accepted)
        _add(self.accepted_at, [0] * drafted)

    def count_last_accepted(self, depth: int) -> None:
        """Count a drafted token that was kept after its draft's other counts are made."""
        self.accepted += 1
        _add(self.accepted_at, [0] * depth + [1])

    def add(self, call: "Stats") -> None:
        """Add one finished call."""
        self.reason = call.reason
        if call.reason is not None:
            self.plain_calls += 1
            self.reasons[call.reason] += 1
            return
        self.calls += 1
        for name in (
            "tokens",
            "forwards",
            "drafted",
            "accepted",
            "seconds_total",
            "seconds_forward",
            "seconds_lookup",
        ):
            setattr(self, name, getattr(self, name) + getattr(call, name))
        _add(self.drafted_at, call.drafted_at)
        _add(self.accepted_at, call.accepted_at)

    def __str__(self) -> str:
        lines = [
            f"calls              {self.calls} with drafts, {self.plain_calls} plain",
            f"tokens             {self.tokens} in {self.forwards} forwards: "
            f"{self.tokens_per_forward:.2f} per forward",
            f"drafted            {self.drafted}, accepted {self.accepted} ({self.acceptance:.0%})",
            "accepted by depth  "
            + (" ".join(f"{share:.2f}" for share in self.acceptance_by_depth[:12]) or "-"),
            f"seconds            {self.seconds_total:.3f}: forwards {self.seconds_forward:.3f}, "
            f"lookup {self.seconds_lookup:.3f}, around {self.seconds_around:.3f}",
        ]
        lines += [f"plain              {count} x {reason}" for reason, count in self.reasons.most_common()]
        if self.reason and not self.reasons:
            lines.append(f"plain              {self.reason}")
        return "\n".join(lines)


def _add(totals, more):
    totals.extend([0] * (len(more) - len(totals)))
    for i, value in enumerate(more):
        totals[i] += value
