"""The demo's work: every prompt written with and without draftless, in one run."""

import os
import platform
import statistics
import time
from dataclasses import dataclass, field

import torch
import transformers

import draftless

from ..integration import warm
from ..integration.attach import attached
from ..integration.stats import Stats
from ..lookup.cost import CostModel
from .tasks import Task

_WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class Settings:
    """How tokens are picked, and how often each prompt is run.

    Attributes
    ----------
    max_new_tokens : int or None
        None for each task's own.
    do_sample : bool
    seed : int
        Set before every run.
    temperature : float or None
        None for the model's own.
    repeat : int
        Pairs of runs, one with and one without draftless, the order alternating.
    """

    max_new_tokens: int | None = None
    do_sample: bool = False
    seed: int = 0
    temperature: float | None = None
    repeat: int = 1

    def __str__(self):
        kind = "greedy search"
        if self.do_sample:
            temperature = "" if self.temperature is None else f", temperature {self.temperature:g}"
            kind = f"sampling, seed {self.seed}{temperature}"
        return kind + (f"; medians of {self.repeat} pairs of runs" if self.repeat > 1 else "")

    def arguments(self, task, tokenizer) -> dict:
        """Return what `generate` is called with, the prompt left out."""
        found = {"max_new_tokens": self.max_new_tokens or task.max_new_tokens, "do_sample": self.do_sample}
        if self.temperature is not None:
            found["temperature"] = self.temperature
        pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        if pad is not None:
            found["pad_token_id"] = pad
        return found


@dataclass
class Result:
    """What one prompt gave.

    Attributes
    ----------
    task : Task
    plain_ids, ids : list of int
        New tokens without and with draftless, of the last pair of runs.
    plain_seconds, seconds : list of float
        One entry a pair.
    stats : Stats
        Of the last run with draftless.
    """

    task: Task
    plain_ids: list = field(default_factory=list)
    ids: list = field(default_factory=list)
    plain_seconds: list = field(default_factory=list)
    seconds: list = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)

    @property
    def differs_at(self) -> int | None:
        """Index of the first token that differs, or None."""
        if self.plain_ids == self.ids:
            return None
        pairs = zip(self.plain_ids, self.ids)
        shorter = min(len(self.plain_ids), len(self.ids))
        return next((at for at, (a, b) in enumerate(pairs) if a != b), shorter)

    @property
    def speed_up(self) -> float:
        """Plain time over draftless time, the median of the pairs."""
        return statistics.median(a / b for a, b in zip(self.plain_seconds, self.seconds))

    @property
    def sources(self) -> list:
        """One entry a token: where an accepted drafted token was copied from; -1 for the model's own."""
        known = list(self.stats.sources[: len(self.ids)])
        return known + [-1] * (len(self.ids) - len(known))

    def to_dict(self) -> dict:
        """Return numbers and tokens, fit for JSON."""
        return {
            "task": self.task.name,
            "equal": self.differs_at is None,
            "forwards": self.stats.forwards,
            "tokens_per_forward": self.stats.tokens_per_forward,
            "drafted": self.stats.drafted,
            "accepted": self.stats.accepted,
            "plain_because": self.stats.reason,
            "plain_seconds": self.plain_seconds,
            "draftless_seconds": self.seconds,
            "speed_up": self.speed_up,
            "plain_ids": self.plain_ids,
            "draftless_ids": self.ids,
            "sources": self.sources,
        }


def speed_up(results) -> float:
    """Plain time over draftless time, all runs of all tasks together."""
    return sum(sum(r.plain_seconds) for r in results) / sum(sum(r.seconds) for r in results)


def encode(model, tokenizer, tasks, settings) -> list:
    """Return one (task, inputs, arguments of generate) a task.

    Raises
    ------
    ValueError
        If a prompt is empty, or does not fit into the model with what is to be written.
    """
    return [(task, *_fitting(model, tokenizer, task, settings)) for task in tasks]


def _fitting(model, tokenizer, task, settings):
    inputs = {name: value.to(model.device) for name, value in task.encode(tokenizer).items()}
    arguments = settings.arguments(task, tokenizer)
    length, new = inputs["input_ids"].shape[1], arguments["max_new_tokens"]
    room = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if length == 0:
        raise ValueError(f"the prompt of {task.name} has no tokens; give some text")
    if room and length + new > room:
        raise ValueError(
            f"{task.name}: {length} prompt tokens and {new} new ones exceed the model's {room} positions; "
            "shorten the prompt or lower --max-new-tokens"
        )
    return inputs, arguments


def run(model, prompts, settings, tick=lambda name: None) -> list[Result]:
    """Write every prompt with and without draftless, after a short warm-up of both.

    Parameters
    ----------
    model : transformers model
        Not attached: it is for every other run, and is left as it was.
    prompts : list
        As made by `encode`.
    settings : Settings
    tick : callable
        Called with a short text before every run: `runs_in_all` times.

    Returns
    -------
    list of Result
        One a prompt. Pairs of a prompt end with the first that differs.
    """
    cost = CostModel(model.device.type)
    tick("warm-up")
    _warm_up(model, prompts[0], settings, cost)
    return [_compare(model, prompt, settings, cost, at, tick) for at, prompt in enumerate(prompts)]


def runs_in_all(prompts, settings) -> int:
    """How often `run` calls its `tick`."""
    return 1 + 2 * settings.repeat * len(prompts)


def _warm_up(model, prompt, settings, cost):
    task, inputs, arguments = prompt
    few = min(_WARM_UP_TOKENS, arguments["max_new_tokens"])
    _write(model, inputs, {**arguments, "max_new_tokens": few}, settings.seed)
    with attached(model, cost=cost):
        warm.ready(wait=True)
        _write(model, inputs, {**arguments, "max_new_tokens": few}, settings.seed)


def _compare(model, prompt, settings, cost, at, tick):
    task, inputs, arguments = prompt
    result = Result(task)

    def plain():
        tick(f"{task.name}, plain")
        result.plain_ids, seconds = _write(model, inputs, arguments, settings.seed)
        result.plain_seconds.append(seconds)

    def drafted():
        tick(f"{task.name}, draftless")
        with attached(model, cost=cost) as handle:
            result.ids, seconds = _write(model, inputs, arguments, settings.seed)
        result.seconds.append(seconds)
        result.stats = handle.last

    for turn in range(settings.repeat):
        order = (plain, drafted) if (turn + at) % 2 == 0 else (drafted, plain)
        for write in order:
            write()
        if result.differs_at is not None:
            break
    return result


def _write(model, inputs, arguments, seed):
    torch.manual_seed(seed)
    began = time.perf_counter()
    out = model.generate(**inputs, **arguments)
    ids = out[0, inputs["input_ids"].shape[1] :].tolist()  # waits for the device
    return ids, time.perf_counter() - began


def machine(model) -> dict:
    """Return where and with what the runs were made."""
    device = str(model.device)
    if model.device.type == "cuda":
        device = torch.cuda.get_device_name(model.device)
    return {
        "device": device,
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "draftless": draftless.__version__,
    }
