"""Random calls of `generate`, each made from (seed, number) alone."""

import random
from dataclasses import dataclass

import torch
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList, StoppingCriteria

from ..integration import versions
from ..lookup.config import LookupConfig
from .commands import FEATURES
from .tasks import tasks
from .toys import Spoiled

OUTPUTS = ("scores", "logits", "hidden_states")


@dataclass
class Case:
    """One call: its prompt, its options, and how drafts are made for it.

    Attributes
    ----------
    ids : tensor, shape (1, n)
    options : dict
        For `generate`.
    said : dict
        The options again, in words.
    config : LookupConfig
    spoils : bool
        Drafts are plain's own output with every third token wrong, not the lookup's.
    streams : bool
    filled : int
        Ids, from the first on, that a cache holds before the call.
    """

    seed: int
    ids: torch.Tensor
    options: dict
    said: dict
    config: LookupConfig
    spoils: bool = False
    streams: bool = False
    filled: int = 0
    stateful: bool = False
    stops_after: int | None = None

    def generate(self, model, **options):
        """Make the call; the same every time, its random numbers too."""
        more = {name: value for name, value in options.items() if value is not None}
        if self.stateful:
            more["logits_processor"] = LogitsProcessorList([_Forbids()])
        if self.stops_after is not None:
            more["stopping_criteria"] = [_StopsAfter(self.ids.shape[1] + self.stops_after)]
        if self.filled:
            more[versions.CACHE] = self._cache(model)
        torch.manual_seed(self.seed)
        return model.generate(self.ids, return_dict_in_generate=True, **{**self.options, **more})

    def _cache(self, model):
        cache = DynamicCache(config=model.config.get_text_config(decoder=True))
        with torch.no_grad():
            model(self.ids[:, : self.filled], **{versions.CACHE: cache}, use_cache=True)
        return cache

    def drafter(self, row):
        """Return a factory for `attach`: None for the lookup."""
        return (lambda config: Spoiled(row)) if self.spoils and row else None

    def __str__(self):
        how = "plain's tokens, every third one wrong" if self.spoils else str(self.config)
        return f"{self.ids.shape[1]} ids, {self.said}, drafts: {how}"


class _Forbids(LogitsProcessor):
    """Keeps state: forbids a token that depends on how often it was called."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        scores = scores.clone()
        scores[:, (7 * self.calls) % scores.shape[1]] = -float("inf")
        return scores


class _StopsAfter(StoppingCriteria):
    """Stops at a length; of a kind that generate does not know."""

    def __init__(self, length):
        self.length = length

    def __call__(self, input_ids, scores, **kwargs):
        done = input_ids.shape[1] >= self.length
        return torch.full((len(input_ids),), done, dtype=torch.bool, device=input_ids.device)


def case(model, tokenizer, seed, number, features=FEATURES, longest=64) -> Case:
    """Return call `number` of `seed`."""
    dice = random.Random(f"{seed}/{number}")
    words = _words(model, tokenizer)
    ids = _prompt(dice, words, tokenizer)
    made = Case(
        seed=dice.randrange(2**31),
        ids=torch.tensor([ids], device=model.device),
        options={"max_new_tokens": dice.randint(1, longest), "do_sample": False},
        said={},
        config=_config(dice),
        spoils=dice.random() < 0.3,
    )
    if model.generation_config.pad_token_id is None:
        made.options["pad_token_id"] = words[0]
    for feature in FEATURES:
        if dice.random() < _OFTEN[feature] and feature in features:
            _ADDS[feature](dice, made, words, tokenizer, model)
    made.said = {**made.options, **made.said}
    made.said.pop("tokenizer", None)
    if "attention_mask" in made.said:
        made.said["attention_mask"] = f"{int((made.options['attention_mask'] == 0).sum())} on the left masked"
    return made


def _words(model, tokenizer):
    """Ids that a prompt may hold: none that stand for padding, images or the end."""
    size = model.config.get_text_config(decoder=True).vocab_size
    special = set(tokenizer.all_special_ids) if tokenizer is not None else {0, 1, 2}
    special |= {
        value
        for name, value in vars(model.config).items()
        if name.endswith(("_id", "_index")) and isinstance(value, int)
    }
    return [i for i in range(min(size, 50_000)) if i not in special]


def _prompt(dice, words, tokenizer):
    """Pieces of text or random ids, some of them said before."""
    few = dice.sample(words, min(len(words), dice.choice((4, 16, len(words)))))
    text = []
    if tokenizer is not None and dice.random() < 0.6:
        text = tokenizer(dice.choice(tasks()).user, add_special_tokens=False)["input_ids"]
    ids = []
    for _ in range(dice.randint(1, 5)):
        n = dice.randint(1, 24)
        if ids and dice.random() < 0.4:
            start = dice.randrange(len(ids))
            ids += ids[start : start + n]
        elif text:
            start = dice.randrange(len(text))
            ids += text[start : start + n]
        else:
            ids += [dice.choice(few) for _ in range(n)]
    return ids


def _config(dice):
    if dice.random() < 0.3:
        return LookupConfig()
    most = dice.choice((1, 2, 3, 7, 20))
    return LookupConfig(price=0, deterministic=True, max_draft=most, min_match=dice.choice((1, 1, 2)))


def _add_sampling(dice, made, words, tokenizer, model):
    made.options["do_sample"] = True
    made.options.update(
        dice.choice(
            (
                {"top_k": 0},
                {"temperature": 0.7, "top_k": 20},
                {"temperature": 1.5, "top_p": 0.9},
                {"min_p": 0.05, "top_k": 0},
                {"typical_p": 0.9, "top_k": 0},
            )
        )
    )


def _add_processors(dice, made, words, tokenizer, model):
    if dice.random() < 0.4:
        made.stateful = True
        made.said["logits_processor"] = "one that counts its calls"
    made.options.update(
        dice.choice(
            (
                {"repetition_penalty": 1.3},
                {"no_repeat_ngram_size": 3},
                {"bad_words_ids": [[dice.choice(words)], [dice.choice(words), dice.choice(words)]]},
                {"suppress_tokens": dice.sample(words, 5)},
                {"min_new_tokens": 5},
                {},
            )
        )
    )


def _add_stops(dice, made, words, tokenizer, model):
    ids = made.ids[0].tolist()
    kind = dice.choice(("eos", "criterion", "strings"))
    if kind == "eos":
        made.options["eos_token_id"] = [dice.choice(ids), dice.choice(words)]
    elif kind == "strings" and tokenizer is not None:
        start = dice.randrange(len(ids))
        made.options["stop_strings"] = [tokenizer.decode(ids[start : start + dice.randint(1, 3)]) or "."]
        made.options["tokenizer"] = tokenizer
    else:
        made.stops_after = dice.randint(1, 40)
        made.said["stopping_criteria"] = f"after {made.stops_after}"


def _add_padding(dice, made, words, tokenizer, model):
    n = dice.randint(1, 9)
    pads = torch.full((1, n), made.options.get("pad_token_id", 0), device=made.ids.device)
    mask = torch.ones((1, made.ids.shape[1] + n), dtype=torch.long, device=made.ids.device)
    mask[:, :n] = 0
    made.ids = torch.cat([pads, made.ids], dim=1)
    made.options["attention_mask"] = mask


def _add_cache(dice, made, words, tokenizer, model):
    if "attention_mask" in made.options or made.ids.shape[1] < 2:
        return
    made.filled = dice.randint(1, made.ids.shape[1] - 1)
    made.said["cache"] = f"holds the first {made.filled}"


def _add_outputs(dice, made, words, tokenizer, model):
    made.options.update(output_logits=True, output_scores=True, output_hidden_states=True)


def _add_streamer(dice, made, words, tokenizer, model):
    made.streams = True


_OFTEN = {
    "sampling": 0.5,
    "processors": 0.4,
    "stops": 0.4,
    "padding": 0.25,
    "cache": 0.2,
    "streamer": 0.3,
    "outputs": 0.2,
}
_ADDS = {
    "sampling": _add_sampling,
    "processors": _add_processors,
    "stops": _add_stops,
    "padding": _add_padding,
    "cache": _add_cache,
    "streamer": _add_streamer,
    "outputs": _add_outputs,
}
