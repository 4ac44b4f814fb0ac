"""The audit: random calls of `generate` on a model, with and without draftless, compared.

Every call is made from (seed, number) alone, so any of them can be repeated. Where tokens
differ, the place is judged: plain's own top two scores must lie closer together than the
model's rounding there, measured without draftless.
"""

import random
import warnings
from dataclasses import asdict, dataclass, field

import torch

from ..integration import versions
from ..integration.attach import attached
from ..integration.handle import DraftlessWarning
from ..integration.stats import Stats
from .forks import Fork, judged, rounding
from .fuzz import FEATURES, OUTPUTS, case
from .toys import Hears

__all__ = ["FEATURES", "Difference", "Report", "audit"]


@dataclass
class Difference:
    """A call that gave something else with draftless than without.

    Attributes
    ----------
    number : int
        Which call: `--only` repeats it.
    what : str
        "tokens", or what else differs: "streamer", "cache", "random state", "an error", "outputs"
        (how many there are, and their shapes), "logits", "next turn" (logits of a forward over the
        returned cache).
    found, expected : str
    fork : Fork or None
        For tokens: where, and how close plain's choice was.
    call : str
        The call, in words.
    """

    number: int
    what: str
    found: str
    expected: str
    call: str
    fork: Fork | None = None

    @property
    def is_failure(self) -> bool:
        """Whether it is more than a tie that rounding decided."""
        return self.fork is None or not self.fork.is_tie


@dataclass
class Report:
    """What an audit found.

    Attributes
    ----------
    stats : Stats
        What draftless did in all calls.
    differences : list of Difference
    """

    stats: Stats = field(default_factory=Stats)
    differences: list = field(default_factory=list)

    @property
    def runs(self) -> int:
        """Calls compared."""
        return self.stats.calls + self.stats.plain_calls

    @property
    def failures(self) -> list:
        """Differences that are no ties."""
        return [one for one in self.differences if one.is_failure]

    def to_dict(self) -> dict:
        """Return everything, fit for JSON."""
        counts = {name: getattr(self.stats, name) for name in ("tokens", "forwards", "drafted", "accepted")}
        differences = [asdict(one) for one in self.differences]
        found = {"differences": differences, "failures": len(self.failures)}
        return {"runs": self.runs, **counts, "plain": dict(self.stats.reasons), **found}


def audit(model, tokenizer=None, n=200, seed=0, features=FEATURES, longest=64, numbers=None, tick=None):
    """Compare `n` random calls of `model.generate` with and without draftless.

    Parameters
    ----------
    model : transformers model
    tokenizer : transformers tokenizer, optional
        For stop strings, and for prompts that are text; random ids without.
    n, seed : int
        Calls 0 to n - 1 of this seed.
    features : sequence of str
        What calls may use besides greedy search: see `fuzz.FEATURES`.
    longest : int
        Most tokens written in a call.
    numbers : iterable of int, optional
        Only these calls.
    tick : callable, optional
        Called before each call.

    Returns
    -------
    Report
    """
    report = Report()
    for number in range(n) if numbers is None else numbers:
        if tick is not None:
            tick(f"call {number}")
        _compare(model, case(model, tokenizer, seed, number, features, longest), number, report)
    return report


def _compare(model, made, number, report):
    plain = _outcome(model, made)
    drafter = made.drafter(plain.row)
    with attached(model, made.config, drafter=drafter) as handle, warnings.catch_warnings():
        warnings.simplefilter("ignore", DraftlessWarning)
        ours = _outcome(model, made)
    report.stats.add(handle.last)
    for what in _NAMES:
        expected, found = getattr(plain, what), getattr(ours, what)
        if _agree(model, made, plain.row, expected, found):
            continue
        fork = None
        if what == "row":
            fork = judged(model, made, expected, found)
        report.differences.append(
            Difference(number, _NAMES[what], _short(found), _short(expected), str(made), fork)
        )
        return  # the rest follows from the first


_NAMES = {
    "error": "an error",
    "row": "tokens",
    "heard": "streamer",
    "entries": "cache",
    "state": "random state",
    "shapes": "outputs",
    "logits": "logits",
    "next_turn": "next turn",
}
_FURTHER = 2  # than the widths that are tried


@dataclass
class _Outcome:
    row: list | None = None
    heard: list = field(default_factory=list)
    entries: int | None = None
    state: float | None = None
    shapes: list = field(default_factory=list)
    logits: torch.Tensor | None = None
    next_turn: torch.Tensor | None = None
    error: str | None = None


def _outcome(model, made):
    streamer = Hears() if made.streams else None
    result = _Outcome()
    try:
        out = made.generate(model, streamer=streamer)
        result.state = torch.rand([], device=model.device).item()
        cache = versions.cache_of(out)
        if cache is not None:
            result.entries = int(cache.get_seq_length())
            result.next_turn = _next_turn(model, out.sequences, cache)
    except Exception as error:  # plain must raise it too
        result.error = f"{type(error).__name__}: {error}"
        return result
    result.row = out.sequences[0].tolist()
    result.heard = streamer.heard if streamer else []
    result.shapes = [(name, _shapes(out[name])) for name in OUTPUTS if out.get(name) is not None]
    if out.get("logits") is not None:
        result.logits = torch.cat(out.logits)
    return result


@torch.no_grad()
def _next_turn(model, row, cache):
    """Logits of the next turn's first forward, over the cache that `generate` returned."""
    token = row[:, int(cache.get_seq_length()) :][:, :1]
    return model(token, **{versions.CACHE: cache}, use_cache=True).logits[0] if token.shape[1] else None


def _shapes(value):
    return list(value.shape) if isinstance(value, torch.Tensor) else [_shapes(one) for one in value]


def _agree(model, made, row, expected, found):
    """Whether two outcomes are equal; logits, whether they lie as close together as the model rounds."""
    if not (isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor)):
        return expected is found or (type(expected) is type(found) and expected == found)
    if expected.shape != found.shape:
        return False
    expected, found = (torch.nan_to_num(x.double(), posinf=0.0, neginf=0.0) for x in (expected, found))
    apart = float((expected - found).abs().max())
    return apart == 0 or apart <= _FURTHER * rounding(model, made, row, everywhere=True)


def _short(value):
    text = str(value)
    return text if len(text) < 200 else f"{text[:100]} ... {text[-80:]}"


def fresh_seed() -> int:
    """Return a seed nobody has used, small enough to type."""
    return random.SystemRandom().randrange(10**6)
