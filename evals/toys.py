"""Two toy models that need no weights: one goes round a cycle, one repeats little.

Drafts are accepted in long runs on the first and mostly rejected on the second: faults of
stopping show on the first alone, faults of rolling back on the second. Weights are drawn
with a large deviation: as initialised by default, many models repeat a token for ever.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

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


TOYS = {"rnd": rnd, "cyc": cyc}
