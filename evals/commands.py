"""Subcommands and their options; the work is imported when it is asked for."""

import contextlib
import json
import shlex
import sys
from pathlib import Path

import click
import rich  # noqa: F401  (missing: `cli.py` says what to install)

import draftless

FEATURES = ("sampling", "processors", "stops", "padding", "cache", "streamer", "outputs")
TASKS = ("edit", "summary", "quote", "story")


class CannotStart(click.ClickException):
    """What was asked for cannot be done; exit code 2, as for a wrong option."""

    exit_code = 2


def _loading(command):
    """Add the options of how a model is loaded."""
    options = (
        click.option("--threads", type=click.IntRange(min=1), help="CPU threads.  [default: torch's choice]"),
        click.option(
            "--dtype",
            type=click.Choice(["float32", "bfloat16", "float16"]),
            default="float32",
            show_default=True,
            help="Of the weights. Where rounding is coarse, ties can fall either way and tokens differ.",
        ),
        click.option(
            "--device", metavar="DEVICE", help="Such as cpu or cuda.  [default: cuda if there is one]"
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(draftless.__version__)
def cli():
    """Speculative decoding with no draft model: the same tokens in fewer forwards."""


@cli.command()
@click.option(
    "--model", metavar="PATH_OR_ID", help="A causal language model.  [default: SmolLM2-135M-Instruct]"
)
@click.option(
    "--task", "names", type=click.Choice(TASKS), multiple=True, help="Only this task; may be repeated."
)
@click.option(
    "--prompt-file",
    type=click.Path(exists=True, dir_okay=False, readable=True),
    help="Answer this UTF-8 text, through the chat template if there is one, instead of the four tasks.",
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    help="[default: each task's own number; 256 for a prompt file]",
)
@click.option("--do-sample", is_flag=True, help="Sample, both runs from one seed, instead of greedy search.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="For --do-sample.  [default: 0]")
@click.option(
    "--temperature",
    type=click.FloatRange(min=0, min_open=True),
    help="For --do-sample.  [default: the model's own]",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Pairs of runs for each task; times are medians.",
)
@_loading
@click.option(
    "--json", "json_file", type=click.File("w", lazy=False), help="Write numbers and tokens here, too."
)
def demo(model, names, prompt_file, json_file, threads, dtype, device, **options):
    """Write with and without draftless, in one run: same tokens, then the times.

    Exit code 1 if the tokens differ, 2 if the run could not start.
    """
    tasks = _tasks(names, prompt_file)
    settings = _settings(**options)
    with _explained(f"cannot load {model or 'the default model'}"):
        loaded = _load(model, dtype, device, threads)
    _demo(*loaded, tasks, settings, json_file, model or "SmolLM2-135M-Instruct")


def _settings(do_sample, seed, temperature, **others):
    if not do_sample and (seed is not None or temperature is not None):
        raise click.UsageError("--seed and --temperature need --do-sample: greedy search draws nothing")
    from .demo import Settings

    return Settings(do_sample=do_sample, seed=seed or 0, temperature=temperature, **others)


def _tasks(names, prompt_file):
    from .tasks import Task, tasks

    if prompt_file is None:
        return [task for task in tasks() if not names or task.name in names]
    if names:
        raise click.UsageError("--task picks among the demo's own prompts: leave it out with --prompt-file")
    return [Task("prompt", _text(prompt_file))]


def _text(path):
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(
            f"cannot read {path} as UTF-8 text: {error}", param_hint="--prompt-file"
        ) from error
    if not text.strip():
        raise click.BadParameter(f"{path} is empty; write a prompt into it", param_hint="--prompt-file")
    return text


def _load(model, dtype, device, threads):
    import torch

    from .default_model import load

    if threads:
        torch.set_num_threads(threads)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if model in ("toy-rnd", "toy-cyc"):
        from .toys import TOYS

        return TOYS[model[4:]]().to(dtype=getattr(torch, dtype), device=device), None
    return load(model, dtype, device)


@contextlib.contextmanager
def _explained(what):
    """Errors of another's loader, whatever their type, as one message without a traceback."""
    try:
        yield
    except Exception as error:
        raise CannotStart(f"{what}: {error}") from error


def _demo(model, tokenizer, tasks, settings, json_file, name):
    from . import demo, show

    try:
        prompts = demo.encode(model, tokenizer, tasks, settings)
    except ValueError as error:
        raise CannotStart(str(error)) from error
    with show.progress(demo.runs_in_all(prompts, settings)) as tick:
        results = demo.run(model, prompts, settings, tick)
    machine = demo.machine(model)
    show.report(show.stdout_console(), tokenizer, results, machine, f"{name}: {settings}")
    if json_file:
        numbers = {"model": name, "machine": machine, "speed_up": demo.speed_up(results)}
        json.dump({**numbers, "tasks": [result.to_dict() for result in results]}, json_file)
    if any(result.differs_at is not None for result in results):
        sys.exit(1)


@cli.command()
@click.option(
    "--model",
    metavar="PATH_OR_ID",
    help="A causal language model, or toy-rnd, toy-cyc.  [default: SmolLM2-135M-Instruct]",
)
@click.option("--n", type=click.IntRange(min=1), default=200, show_default=True, help="Calls to compare.")
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), help="Of the calls.  [default: a fresh one, printed]"
)
@click.option(
    "--features",
    type=click.Choice(FEATURES),
    multiple=True,
    help="What calls may use besides greedy search; may be repeated.  [default: all]",
)
@click.option(
    "--max-new-tokens",
    "longest",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="In a call.",
)
@click.option("--only", type=click.IntRange(min=0), multiple=True, help="Only this call of the seed.")
@_loading
@click.option("--json", "json_file", type=click.File("w", lazy=False), help="Write what was found here, too.")
def audit(model, n, seed, features, longest, only, threads, dtype, device, json_file):
    """Compare random calls of generate with and without draftless.

    Prompts, lengths, sampling, processors, stops, padding, filled caches, streamers and outputs are
    drawn from the seed; a next turn over the returned cache is compared, too. Where tokens differ,
    plain's top two scores must lie closer than the model rounds there. Exit code 1 if one difference
    is more than such a tie, 2 if the run could not start.
    """
    import torch

    from . import audit as audits
    from . import demo, show

    with _explained(f"cannot load {model or 'the default model'}"):
        loaded, tokenizer = _load(model, dtype, device, threads)
    if loaded.config.is_encoder_decoder:
        raise CannotStart("the audit makes calls for decoder-only models; found an encoder-decoder")
    seed = audits.fresh_seed() if seed is None else seed
    numbers = only or range(n)
    features = features or FEATURES
    with show.progress(len(numbers)) as tick:
        found = audits.audit(loaded, tokenizer, n, seed, features, longest, numbers, tick)
    again = ["draftless audit", f"--model {shlex.quote(model)}" if model else "", f"--dtype {dtype}"]
    again += [f"--device {loaded.device}", f"--threads {torch.get_num_threads()}", f"--seed {seed}"]
    again += [
        f"--max-new-tokens {longest}",
        *(f"--features {name}" for name in features if features != FEATURES),
    ]
    again = " ".join(part for part in again if part)
    show.audit_report(show.stdout_console(), found, demo.machine(loaded), again)
    if json_file:
        json.dump({"command": again, **found.to_dict()}, json_file)
    if found.failures:
        sys.exit(1)


@cli.command()
@click.option("--only", metavar="CLASS", multiple=True, help="Only this class; may be repeated.")
@click.option(
    "--write",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the report, in Markdown, here.",
)
def breadth(only, write):
    """Try every causal language model class of the installed transformers, built small.

    Exit code 1 if one differs from plain generate or raises what plain does not.
    """
    import torch
    import transformers

    from . import breadth as walk
    from . import show

    if write:
        write.parent.mkdir(parents=True, exist_ok=True)
        write.touch()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    wanted = [(kind, name) for kind, name in walk.classes() if not only or name in only]
    if not wanted:
        raise CannotStart(f"no class of the installed transformers is called {' or '.join(only)}")
    rows = []
    with show.progress(len(wanted)) as tick:
        for kind, name in wanted:
            tick(name)
            rows.append(walk.check(kind, name))
    page = walk.markdown(rows)
    if write:
        write.write_text(page, encoding="utf-8")
    show.stdout_console().print(page, markup=False, soft_wrap=True)
    if any(row.status in ("different", "error") for row in rows):
        sys.exit(1)


@cli.group()
def bench():
    """What the library itself costs."""


@bench.command()
@click.option("--pairs", type=click.IntRange(min=1), default=300, show_default=True, help="Pairs of runs.")
@click.option("--steps", type=click.IntRange(min=2), default=24, show_default=True, help="Tokens a run.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="CPU threads.")
def step(pairs, steps, threads):
    """What draftless adds to one step of generate's loop, on a one-layer toy; pairs of runs, medians."""
    import torch

    from . import overhead, show

    torch.set_num_threads(threads)
    with show.progress(pairs + 1) as tick:
        measured = overhead.measure(pairs, steps, lambda: tick("pair of runs"))
    show.stdout_console().print(show.overhead_table(measured))


@bench.command()
@click.option(
    "--model", metavar="PATH_OR_ID", help="A causal language model.  [default: SmolLM2-135M-Instruct]"
)
@click.option("--n", type=click.IntRange(min=1), default=200, show_default=True, help="Prompts.")
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Of the prompts."
)
@click.option(
    "--max-new-tokens", type=click.IntRange(min=2), default=48, show_default=True, help="An answer."
)
@_loading
def rounding(model, n, seed, max_new_tokens, threads, dtype, device):
    """How often rounding forks an answer: in another batch width, with draftless; greedy.

    Run it with --dtype bfloat16: in float32 forks are too rare to count.
    """
    from . import demo, show
    from . import rounding as forks

    with _explained(f"cannot load {model or 'the default model'}"):
        loaded, tokenizer = _load(model, dtype, device, threads)
    if tokenizer is None:
        raise CannotStart("this measure needs a model with a tokenizer; found a toy")
    with show.progress(n) as tick:
        found = forks.measure(loaded, tokenizer, n, seed, max_new_tokens, tick)
    show.stdout_console().print(show.rounding_table(found, demo.machine(loaded)))
