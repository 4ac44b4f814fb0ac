"""How often coarse rounding forks what is written: plain in other batch widths, draftless, and a second look.

A wide forward rounds otherwise than a narrow one, and so does a batch. In half precision two tokens
often score within that rounding of each other, and then the choice may fall the other way: a fork.
The second look asks whether computing such a position again at width 1 would take the forks away. It
cannot take away what the cache holds: entries that wide forwards made.
"""

import random
import time
from dataclasses import dataclass

import torch

from ..integration import versions
from ..integration.attach import attached
from ..integration.cache import CallCache
from .tasks import tasks

_ASKS = ("Repeat word for word: ", "Summarise: ", "Go on with this text: ", "What is this about? ", "")
_PIECE = 8  # tokens of a forward when what was written is fed again


@dataclass
class Rounding:
    """Counts over prompts, and over the positions written.

    Attributes
    ----------
    prompts, tokens : int
        Prompts answered, tokens that plain wrote.
    batch_forks, our_forks : int
        Prompts whose answer differs from plain's: as one row of a batch of two, with draftless.
    positions : int
        Positions looked at again: what plain wrote, fed in pieces of 8 tokens.
    wide_flips : int
        Of these, positions where the wide forward prefers another token than plain's.
    near : int
        Positions whose two best scores lie closer than the rounding of one number of that size.
    flips_after : int
        Flips left when near positions are computed again at width 1.
    """

    prompts: int = 0
    tokens: int = 0
    batch_forks: int = 0
    our_forks: int = 0
    positions: int = 0
    wide_flips: int = 0
    near: int = 0
    flips_after: int = 0
    seconds: float = 0.0


def measure(model, tokenizer, n=200, seed=0, longest=48, tick=None) -> Rounding:
    """Count forks over `n` prompts, greedy.

    Parameters
    ----------
    model, tokenizer : of transformers
    n, seed : int
        Prompts, each made from (seed, number).
    longest : int
        Most tokens written to a prompt.
    tick : callable, optional
        Called before each prompt.
    """
    found, began = Rounding(), time.perf_counter()
    for number in range(n):
        if tick is not None:
            tick(f"prompt {number}")
        ids = _prompt(tokenizer, seed, number).to(model.device)
        row, logits = _plain(model, ids, longest)
        found.prompts += 1
        found.tokens += len(logits)
        found.batch_forks += _plain(model, ids.expand(2, -1), longest)[0] != row
        with attached(model):
            found.our_forks += _plain(model, ids, longest)[0] != row
        _look_again(model, ids, row, logits, found)
    found.seconds = time.perf_counter() - began
    return found


def _prompt(tokenizer, seed, number):
    dice = random.Random(f"{seed}/{number}")
    sentences = (
        dice.choice([task.user for task in tasks() if len(task.user) > 500]).replace("\n", " ").split(". ")
    )
    start = dice.randrange(max(1, len(sentences) - 3))
    text = dice.choice(_ASKS) + ". ".join(sentences[start : start + dice.randint(2, 5)])[:800]
    if tokenizer.chat_template is None:
        return tokenizer(text, return_tensors="pt")["input_ids"]
    chat = [{"role": "user", "content": text}]
    made = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    return made["input_ids"]


def _plain(model, ids, longest):
    """Return the first row written, and its logits, one row a token."""
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=longest,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return out.sequences[0].tolist(), torch.stack([step[0] for step in out.logits])


@torch.no_grad()
def _look_again(model, ids, row, logits, found):
    """Feed what plain wrote in pieces, and near positions again alone, over the cache that pieces made."""
    start, end = ids.shape[1], len(row) - 1
    row = torch.tensor([row], device=ids.device)
    outputs = model(row[:, :start], use_cache=True)
    for at in range(start, end, _PIECE):
        cache = versions.cache_of(outputs)
        outputs = model(row[:, at : min(at + _PIECE, end)], **{versions.CACHE: cache}, use_cache=True)
        wide, plain = outputs.logits[0].float(), logits[at - start + 1 :][:_PIECE].argmax(-1)
        again = wide.clone()
        near = _near(outputs.logits[0])
        for place in near:
            again[place] = _alone(model, row, at + place, cache)
        found.positions += len(wide)
        found.near += len(near)
        found.wide_flips += int((wide.argmax(-1) != plain[: len(wide)]).sum())
        found.flips_after += int((again.argmax(-1) != plain[: len(wide)]).sum())


def _near(logits):
    best = logits.float().topk(2).values
    rounding = torch.finfo(logits.dtype).eps * best[:, 0].abs()
    return (best[:, 0] - best[:, 1] <= rounding).nonzero()[:, 0].tolist()


def _alone(model, row, place, cache):
    """Logits after the token at `place`, computed alone; the cache stays as it is."""
    held = CallCache(cache)
    before, length = held.snapshot(), len(held)
    held.roll_back(length - place)
    logits = model(row[:, place : place + 1], **{versions.CACHE: cache}, use_cache=True).logits[0, -1].float()
    held.restore(before, length)
    return logits
