"""What draftless adds to one step of generate's loop: `draftless bench step`.

A one-layer toy is generated with in pairs of runs, bare and attached, so that the model
costs next to nothing and the difference is the library's own. A run's figure is the median
time from one token to the next, so interruptions fall out; each attached run stands between
two bare ones and is compared with their mean, so what drifts falls out.
"""

import itertools
import statistics
import time
from dataclasses import dataclass

import torch

from ..integration import warm
from ..integration.attach import attached
from ..lookup.config import LookupConfig
from .toys import Knows, rnd

_PROMPT = 128


@dataclass(frozen=True)
class Overhead:
    """Medians over pairs, microseconds a step.

    `none_us`: a step that drafts nothing. `replayed_us`: a step whose logits are at hand,
    against the loop's own work around a forward. `bare_us`: a whole step of the bare loop.
    """

    pairs: int
    steps: int
    bare_us: float
    none_us: float
    none_spread_us: tuple
    replayed_us: float
    lookup_us: float


def measure(pairs: int = 300, steps: int = 24, progress=None) -> Overhead:
    """Measure what one step costs more with draftless than without.

    Parameters
    ----------
    pairs : int
        Bare and attached runs, alternating; the first pair warms up and is not counted.
    steps : int
        Tokens of each run.
    progress : callable, optional
        Called after every pair.
    """
    warm.ready(wait=True)
    model = _one_layer()
    ids = torch.randint(3, model.config.vocab_size, (1, _PROMPT), generator=torch.Generator().manual_seed(0))
    nothing = LookupConfig(min_match=1_000_000)
    bare, more, replayed, lookup = [], [], [], []
    for at in range(pairs + 1):
        before, row = _timed(model, ids, steps)
        with attached(model, nothing) as handle:
            ours, _ = _timed(model, ids, steps)
        after, _ = _timed(model, ids, steps)
        lookup.append(handle.last.seconds_lookup / steps)
        bare.append((before + after) / 2)
        more.append(ours - bare[-1])
        if at % 10 == 0:
            replayed.append(_replayed(model, ids, steps, row))
        if progress is not None:
            progress()
    quartiles = statistics.quantiles(more[1:], n=4) if pairs > 1 else [more[1]] * 3
    return Overhead(
        pairs,
        steps,
        1e6 * statistics.median(bare[1:]),
        1e6 * statistics.median(more[1:]),
        (1e6 * quartiles[0], 1e6 * quartiles[2]),
        1e6 * statistics.median(replayed),
        1e6 * statistics.median(lookup[1:]),
    )


def _one_layer():
    heads = dict(num_attention_heads=2, num_key_value_heads=2)
    return rnd(vocab_size=1024, num_hidden_layers=1, max_position_embeddings=4096, **heads)


def _timed(model, ids, steps):
    """Generate; return the median of the seconds between two tokens, and all ids."""
    times = []

    def note(ids, scores, **kwargs):
        times.append(time.perf_counter())
        return torch.zeros(len(ids), dtype=torch.bool)

    out = model.generate(ids, max_new_tokens=steps, do_sample=False, stopping_criteria=[note])
    return statistics.median(b - a for a, b in itertools.pairwise(times)), out[0].tolist()


def _replayed(model, ids, steps, row):
    """Seconds around the forwards for each token, where all but a few are replayed."""

    with attached(model, drafter=lambda config: Knows(row)) as handle:
        model.generate(ids, max_new_tokens=steps, do_sample=False)
    return (handle.last.seconds_around + handle.last.seconds_lookup) / steps
