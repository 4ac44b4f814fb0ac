"""Toys to try things on: two models without weights, two drafters that know the output, a streamer.

One model goes round a cycle, one repeats little. Drafts are accepted in long runs on the first and
mostly rejected on the second: faults of stopping show on the first alone, faults of rolling back on
the second. Weights are drawn with a large deviation: as initialised by default, many models repeat
a token for ever.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ..lookup.draft import Draft

VOCABULARY = 64
CYCLE = list(range(10, 19))
SMALL = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    initializer_range=0.5,
    bos_token_id=1,
    eos_token_id=None,
    pad_token_id=0,
)


def rnd(model_class=LlamaForCausalLM, config_class=LlamaConfig, seed=0, **config):
    """A random model: what it writes repeats little."""
    torch.manual_seed(seed)
    return ready(model_class(config_class(**{**SMALL, **config})))


def cyc(model_class=LlamaForCausalLM, config_class=LlamaConfig, seed=0, **config):
    """A model that goes round a cycle of nine tokens for ever."""
    model = rnd(model_class, config_class, seed, **config)
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.mul_(0.1)
        embeddings = model.model.embed_tokens.weight
        head = torch.randn_like(model.lm_head.weight) * 0.01
        for token, following in zip(CYCLE, CYCLE[1:] + CYCLE[:1]):
            head[following] = 3 * embeddings[token] / embeddings[token].norm()
        model.lm_head.weight = torch.nn.Parameter(head)
    return model


def ready(model):
    """Make a model that nothing stops but its length."""
    model.eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def redraw(model, deviation, seed):
    """Draw every weight matrix of a model anew, with zero mean."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and parameter.is_floating_point():
                parameter.normal_(std=deviation, generator=generator)


TOYS = {"rnd": rnd, "cyc": cyc}


class Knows:
    """A drafter that knows the row which will be written, prompt included."""

    width = 64

    def __init__(self, row):
        self.row = row

    def begin(self, ids):
        self.n = len(ids)

    def commit(self, tokens):
        self.n += len(tokens)

    def learn(self, draft, accepted):
        pass

    def ahead(self, budget):
        """Return the positions of the tokens to propose."""
        return range(self.n, min(self.n + min(budget, self.width), len(self.row)))

    def draft(self, budget):
        return Draft.chain([self.row[i] for i in self.ahead(budget)])


class Spoiled(Knows):
    """The same, with every third token wrong: some of each draft is accepted, some rejected."""

    width = 7

    def draft(self, budget):
        return Draft.chain([abs(self.row[i] - 1) if i % 3 == 2 else self.row[i] for i in self.ahead(budget)])


class Hears:
    """A streamer that notes what it is given."""

    def __init__(self):
        self.heard = []

    def put(self, ids):
        self.heard.append(ids.tolist())

    def end(self):
        self.heard.append("end")
