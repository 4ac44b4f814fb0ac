"""Two toy models, and runs that compare `generate` with itself.

`rnd` rejects most drafts, `cyc` accepts long ones; stop faults do not show on the first,
rollback faults hardly on the second. `Spoiled` drafts plain's own output with every third
token wrong, so that every run both accepts and rejects.
"""

import inspect

import torch
import transformers

import draftless
from draftless.evals.toys import (  # noqa: F401
    CYCLE,
    TOYS,
    VOCABULARY,
    Hears,
    Knows,
    cyc,
    ready,
    redraw,
    rnd,
)

PROMPT = torch.tensor([CYCLE * 2 + CYCLE[:2]])
NEW_TOKENS = 30
OLD = "cache" not in inspect.signature(transformers.GenerationMixin.prepare_inputs_for_generation).parameters
ROLLS_WINDOWS = hasattr(transformers.cache_utils.DynamicLayer, "is_croppable")  # 5.17 on: windows too
CACHE = "past_key_values" if OLD else "cache"


class Scripted:
    """A drafter that is told what to propose: `script(ids so far) -> tokens`."""

    def __init__(self, script):
        self.script = script

    def begin(self, ids):
        self.ids = [int(token) for token in ids]

    def draft(self, budget):
        return draftless.Draft.chain(self.script(self.ids)[:budget])

    def commit(self, tokens):
        self.ids.extend(int(token) for token in tokens)

    def learn(self, draft, accepted):
        pass


def spoiled(output, width=7):
    """A factory of drafters that propose the row `output`, every third token of it wrong."""
    output = [int(token) for token in output]

    def script(ids):
        ahead = range(len(ids), min(len(ids) + width, len(output)))
        return [(output[i] + 1) % VOCABULARY if i % 3 == 2 else output[i] for i in ahead]

    return lambda config: Scripted(script)


def silent(config):
    """A factory of drafters that never propose anything."""
    return Scripted(lambda ids: [])


EAGER = draftless.LookupConfig(price=0, deterministic=True, max_draft=7)


def run(model, ids=PROMPT, seed=1, **options):
    """`generate` with the suite's defaults, seeded."""
    torch.manual_seed(seed)
    return model.generate(ids, **{"max_new_tokens": NEW_TOKENS, "do_sample": False, **options})


def sequences(result):
    return result if isinstance(result, torch.Tensor) else result.sequences


def compare(make, ids=PROMPT, served=True, offset=0, counts=True, **options):
    """Assert that drafts change nothing: by lookup, and by a drafter that is often right and often wrong.

    `make` gives a fresh model, or (model, options) where options hold state such as a cache.
    `offset` is the number of ids that the drafter sees before the returned row (encoder ids).
    Returns plain's result, and the statistics of both runs.
    """

    def once(**speculation):
        made = make()
        model, own = made if isinstance(made, tuple) else (made, {})
        if not speculation:
            return run(model, ids, **own, **options), None
        with draftless.attached(model, **speculation) as handle:
            return run(model, ids, **own, **options), handle.last

    plain, _ = once()
    row = [0] * offset + sequences(plain)[0].tolist()
    every = []
    for speculation in ({"config": EAGER}, {"config": EAGER, "drafter": spoiled(row)}):
        result, last = once(**speculation)
        assert sequences(result).tolist() == sequences(plain).tolist()
        assert (last.reason is None) == served, last.reason
        every.append(last)
    if served and counts:
        assert len(set(row)) >= 8
        assert every[1].accepted >= 5
        assert every[1].drafted - every[1].accepted >= 5
    return plain, every
