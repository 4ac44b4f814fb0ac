"""What the demo prints: the table, the machine, and each output with its accepted tokens marked."""

import contextlib
import os
import sys
from statistics import median

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from .demo import speed_up
from .spans import spans

_KINDS = {"accepted": ("green", "«", "»"), "given": ("dim", "‹", "›")}  # style, or marks where there is none
_PIPE_WIDTH = 100


def stdout_console() -> Console:
    """Return the console for results: as wide as the terminal, or 100 columns in a pipe."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if known else _PIPE_WIDTH, highlight=False)


@contextlib.contextmanager
def progress(total):
    """A progress bar on stderr, if that is a terminal; yields the function to call before each step."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    off = not console.is_terminal
    with Progress(*columns, console=console, transient=True, refresh_per_second=2, disable=off) as bar:
        task = bar.add_task("", total=total)
        begun = iter(range(total))
        yield lambda name: bar.update(task, completed=next(begun), description=name)


def report(console, tokenizer, results, machine, title) -> None:
    """Print everything.

    Parameters
    ----------
    console : rich.console.Console
    tokenizer : transformers tokenizer
    results : list of Result
    machine : dict
        As made by `demo.machine`.
    title : str
    """
    console.print(Text(title, "bold"), soft_wrap=True)
    console.print(table(results))
    console.print(Text(_machine_line(machine)), soft_wrap=True)
    if all(result.differs_at is None for result in results):
        tokens = sum(len(result.ids) for result in results)
        console.print(Text(f"all {tokens} tokens are those of plain generate"), soft_wrap=True)
    for result in results:
        _note(console, tokenizer, result, machine)
    marked = not console.is_terminal or console.no_color or not console.color_system
    console.print()
    console.print(_legend(marked), soft_wrap=True)
    for result in results:
        _output(console, tokenizer, result, marked)


def table(results) -> Table:
    """Return the table: a row a task, and a last one for all."""
    found = Table(box=box.SIMPLE_HEAD)
    found.add_column("task")
    for name in ("tokens", "forwards", "tokens per\nforward", "drafted"):
        found.add_column(name, justify="right")
    for name in ("plain\nseconds", "draftless\nseconds", "speed-up"):
        found.add_column(name, justify="right")
    for result in results:
        found.add_row(*_row(result))
    if len(results) > 1:
        found.add_section()
        found.add_row(*_total(results))
    return found


def _row(result):
    stats, tokens = result.stats, len(result.ids)
    forwards = tokens if stats.reason else stats.forwards
    times = median(result.plain_seconds), median(result.seconds)
    return _cells(result.task.name, tokens, forwards, stats.drafted, *times, result.speed_up)


def _total(results):
    tokens = sum(len(r.ids) for r in results)
    forwards = sum(len(r.ids) if r.stats.reason else r.stats.forwards for r in results)
    times = sum(median(r.plain_seconds) for r in results), sum(median(r.seconds) for r in results)
    return _cells("all", tokens, forwards, sum(r.stats.drafted for r in results), *times, speed_up(results))


def _cells(name, tokens, forwards, drafted, plain, ours, ratio):
    share = f"{tokens / forwards:.2f}" if forwards else "-"
    counts = str(tokens), str(forwards), share, str(drafted)
    return name, *counts, f"{plain:.2f}", f"{ours:.2f}", f"{ratio:.2f}x"


def _machine_line(machine):
    return (
        "{device}, {cpus} CPUs, {threads} threads, {dtype}; python {python}, torch {torch}, "
        "transformers {transformers}, draftless {draftless}"
    ).format(**machine)


def _note(console, tokenizer, result, machine):
    """Say what the table cannot: why a task ran plainly, where its tokens differ."""
    name, at = result.task.name, result.differs_at
    if result.stats.reason:
        console.print(Text(f"{name} ran plainly: {result.stats.reason}"), soft_wrap=True)
    if at is None:
        return
    console.print(Text(f"{name}: the tokens differ from token {at} on", "bold red"), soft_wrap=True)
    for label, ids in (("plain", result.plain_ids), ("draftless", result.ids)):
        token = f"{ids[at]} {tokenizer.decode(ids[at : at + 1])!r}" if at < len(ids) else "ended"
        console.print(Text(f"  {label:9} {token}"), soft_wrap=True)
    if machine["dtype"] != "float32":
        console.print(Text(f"  ({machine['dtype']} rounds coarsely: see whether float32 differs, too)"))


def _legend(marked):
    legend = Text()
    _add(legend, "drafted tokens that were accepted", "accepted", marked)
    legend.append("; ")
    _add(legend, "given with the prompt", "given", marked)
    return legend.append("; all else was written by the model's own forward")


def _add(text, piece, kind, marked):
    """Append a piece in the way of its kind: coloured, or between marks."""
    style, left, right = _KINDS[kind]
    text.append(f"{left}{piece}{right}" if marked else piece, None if marked else style)


def _output(console, tokenizer, result, marked):
    name = result.task.name
    if result.differs_at is not None:
        own = spans(tokenizer, result.plain_ids, [-1] * len(result.plain_ids))
        console.rule(f"{name}, plain", align="left")
        console.print(output_text(result.task.prefill, own, marked), soft_wrap=True)
        name += ", draftless"
    pieces = spans(tokenizer, result.ids, result.sources)
    console.rule(name, align="left")
    console.print(output_text(result.task.prefill, pieces, marked), soft_wrap=True)


def output_text(prefill, pieces, marked) -> Text:
    """Return an output with its accepted stretches coloured, or between marks.

    Parameters
    ----------
    prefill : str
        What the prompt had begun the answer with.
    pieces : list of (str, bool)
        As made by `spans`.
    marked : bool
        Whether to use marks; colours otherwise.
    """
    text = Text()
    if prefill:
        _add(text, prefill, "given", marked)
    for piece, accepted in pieces:
        if accepted:
            _add(text, piece, "accepted", marked)
        else:
            text.append(piece)
    return text


def audit_report(console, found, machine, again) -> None:
    """Print what an audit found, fit to be pasted into a bug report.

    Parameters
    ----------
    console : rich.console.Console
    found : evals.audit.Report
    machine : dict
        As made by `demo.machine`.
    again : str
        The command that was run; `--only` is added for each difference.
    """
    ties = len(found.differences) - len(found.failures)
    stats = found.stats
    lines = [
        _machine_line(machine),
        again,
        f"{found.runs} calls, {stats.tokens} tokens, {stats.tokens_per_forward:.2f} per forward, "
        f"drafted {stats.drafted}, accepted {stats.accepted}",
        *(f"plain: {count} x {reason}" for reason, count in sorted(stats.reasons.items())),
        f"{len(found.failures)} differences, {ties} ties decided by rounding",
    ]
    for one in found.differences:
        lines += ["", *_difference(one, again)]
    console.print("\n".join(lines), markup=False, soft_wrap=True)


def _difference(one, again):
    yield f"call {one.number}: {one.what} {'differ' if one.is_failure else 'fork at a tie'}"
    if one.fork is not None:
        yield (
            f"  at {one.fork.at}: plain {one.fork.plain}, draftless {one.fork.ours}; plain's top two lie "
            f"{one.fork.gap:.3g} apart, these two {one.fork.behind:.3g}, "
            f"rounding there is {one.fork.rounding:.3g}"
            + ("; so much on its logits makes plain choose likewise" if one.fork.follows else "")
        )
    if one.is_failure:
        yield f"  expected {one.expected}"
        yield f"  found    {one.found}"
    yield f"  {one.call}"
    yield f"  {again} --only {one.number}"


def overhead_table(measured) -> Table:
    """Return what `overhead.measure` found as a table."""
    low, high = measured.none_spread_us
    found = Table(
        box=box.SIMPLE_HEAD, title=f"one step, medians of {measured.pairs} pairs of {measured.steps} steps"
    )
    found.add_column("what")
    found.add_column("microseconds", justify="right")
    found.add_row("the bare loop, forward of a one-layer toy included", f"{measured.bare_us:.0f}")
    found.add_row("more with draftless, nothing to draft", f"{measured.none_us:.0f}")
    found.add_row("    quartiles", f"{low:.0f} to {high:.0f}")
    found.add_row("    of it in the drafter", f"{measured.lookup_us:.0f}")
    found.add_row("a replayed step, the loop's own work included", f"{measured.replayed_us:.0f}")
    return found


def rounding_table(found, machine) -> Table:
    """Return what `rounding.measure` found as a table."""
    made = Table(
        box=box.SIMPLE_HEAD,
        title=f"{found.prompts} prompts, {found.tokens} tokens",
        caption=_machine_line(machine),
    )
    made.add_column("what")
    made.add_column("count", justify="right")
    made.add_column("of", justify="right")
    prompts, positions = str(found.prompts), str(found.positions)
    made.add_row("answers of plain that differ in a batch of two", str(found.batch_forks), prompts)
    made.add_row("answers with draftless that differ from plain's", str(found.our_forks), prompts)
    made.add_row(
        "positions where a forward of several tokens prefers another", str(found.wide_flips), positions
    )
    made.add_row("positions whose best two lie closer than rounding", str(found.near), positions)
    made.add_row("flips left when those are computed again at width 1", str(found.flips_after), positions)
    return made
