"""`rankroom runs …`: read the records of runs in a terminal."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from typing import TypeVar

import click

from rankroom.cli.output_file import write_file, write_folder
from rankroom.display import runs_table
from rankroom.display.digest import displays_of, errors_of
from rankroom.display.lines import Assembly, Group, Line, collapse, lines_of
from rankroom.display.text import keep_colours
from rankroom.display.words import headline, prompt_words, rank_label
from rankroom.errors import FileError, UnreadableRecordError, UsageError, with_remedy
from rankroom.record.compared import compared
from rankroom.record.model import Json, RunInfo, parse_event
from rankroom.record.retention import DAY_S
from rankroom.record.store import Store
from rankroom.record.tail import READ_LIMIT_BYTES, Tail, line_near_end
from rankroom.text.amounts import size
from rankroom.text.rank_ranges import format_ranks, parse_ranks

# Poll interval of a run that is being followed, in seconds.
POLL_INTERVAL_S = 0.1
READ_RETRY_TIMEOUT_S, READ_RETRY_DELAY_S = (
    60.0,
    1.0,
)  # how long, and how often, to retry an unreadable record
T = TypeVar("T")
RUN_ARGUMENT = click.argument("run", default="last", metavar="[ID]")
RANKS_OPTION = click.option("--ranks", metavar="LIST", help="Only these ranks, like 0,2-3.")


@click.group()
def runs() -> None:
    """The records of runs.

    ID may be the start or the end of an id, if only one run fits, or `last`.
    """


@runs.command("list")
@click.option("-n", "--number", default=20, show_default=True, type=click.IntRange(1))
def list_(number: int) -> None:
    """List the newest runs, newest first."""
    store = Store()
    found = store.newest(number)
    click.echo(runs_table(found) if found else f"no runs yet in {store.runs}")


@runs.command()
@RUN_ARGUMENT
@RANKS_OPTION
@click.option("--no-collapse", is_flag=True, help="Show every line of each rank.")
@click.option("--by-numbers", is_flag=True, help="Show lines once that differ only in numbers.")
@click.option("--html", "as_page", is_flag=True, help="Write it as one page for any browser.")
@click.option("-o", "--output", metavar="FILE", help="The file of the page; - prints it.")
@click.option("--compare", multiple=True, metavar="RUN", help="Show its metrics beside RUN's.")
def show(
    run: str,
    ranks: str | None,
    no_collapse: bool,
    by_numbers: bool,
    as_page: bool,
    output: str | None,
    compare: tuple[str, ...],
) -> None:
    """Show a whole run: how it ended, every traceback, every line, every value.

    Equal lines of several ranks are shown once, and TensorFlow's start-up messages as one line.
    With --by-numbers, ranks whose lines differ only in numbers share one: `loss 0.41|0.43` has the
    numbers of up to four ranks in their order, `loss 0.39…0.45` the lowest and highest of more.

    With --html, as a page that can be mailed: the view of the notebook with log, timeline and
    profile in one file, which opens without Rankroom and without a network. With --compare, its
    metrics are shown beside those of another run: RUN is like ID, or the name after -o.
    """
    if (as_page or output) and (ranks is not None or no_collapse or by_numbers):
        raise UsageError(PAGE_SHOWS_ALL)
    store = Store()
    info = store.load(store.find(run))
    if compare:
        info.compare, missing = compared(store, compare, info.id)
        for note in missing:
            click.echo(keep_colours(note), err=True)
    if as_page or output:
        from rankroom.display.run_page import run_page

        write_file(run_page(store, info), output or f"{info.id}.html", "open it in any browser")
        return
    chosen = _chosen_ranks(info, ranks)
    events = store.events(info.id)
    others = [e for e in events if e["kind"] in ("error", "display") and e["rank"] in chosen]
    click.echo(f"● {keep_colours(headline(info))}")
    if info.hang is not None and info.state == "running":
        click.echo(f"! {keep_colours(info.hang.text)}")
    if words := prompt_words(info):
        click.echo(f"! {words}: {ANSWER_HINT.format(id=info.id)}")
    for note in info.notes:
        click.echo(keep_colours(note))
    if events.dropped:
        what = "line of the record is" if events.dropped == 1 else "lines of the record are"
        click.echo(f"{events.dropped} damaged {what} left out")
    for error in errors_of(info, others):
        _value([error["rank"]], "\n".join(map(str, error["traceback"])) or error["ename"])
    lines = (line for line in lines_of(store.events(info.id)) if line.rank in chosen)
    if no_collapse:
        show_groups(Group([line.rank], line.stream, line.text) for line in lines)
    else:
        show_groups(collapse(lines, by_numbers=by_numbers))
    values: dict[str, list[int]] = {}
    for event in displays_of(others):
        text = str(event["data"].get("text/plain") or f"<{', '.join(event['data'])}>")
        values.setdefault(text, []).append(event["rank"])
    for text, who in values.items():
        _value(who, text)
    if table := _last_values(store, info):
        click.echo(f"metrics:\n{keep_colours(table)}")
    elif compare:
        click.echo(f"the run {info.id} has no metrics to compare")


@runs.command()
@RUN_ARGUMENT
@RANKS_OPTION
@click.option("-n", "--number", default=20, show_default=True, type=click.IntRange(0))
@click.option("-f", "--follow", is_flag=True, help="Follow the run until it ends.")
def tail(run: str, ranks: str | None, number: int, follow: bool) -> None:
    """Show the last lines of a run's log, of all ranks together."""
    store = Store()
    info = store.load(store.find(run))
    chosen = _chosen_ranks(info, ranks)
    assembly = Assembly()
    reader, last = _last_lines(store, info.id, assembly, chosen, number)
    if not follow:
        last.extend(line for line in assembly.rest() if line.rank in chosen)
    with _interruptible() as pressed:
        show_groups(_group(line) for line in last)
        for event in _follow(reader, pressed) if follow else ():
            show_groups(_group(line) for line in assembly.add(event) if line.rank in chosen)
            if _is_question(event) and event["rank"] in chosen:
                click.echo(f"! rank {event['rank']} asks: {ANSWER_HINT.format(id=info.id)}")
    show_groups(_group(line) for line in assembly.rest() if line.rank in chosen)
    if follow:
        click.echo(f"● {keep_colours(headline(_patiently(partial(store.load, info.id))))}")


@runs.command()
@RUN_ARGUMENT
@click.option("--ranks", "--rank", metavar="LIST", help="Answer these ranks only, like 0,2-3.")
def debug(run: str, ranks: str | None) -> None:
    """Answer ranks that wait in the debugger or in input(), and show what they write.

    What you type goes to all ranks that wait; `@2` goes on with rank 2 only, `@` with all again.
    Ctrl-D leaves the ranks waiting.
    """
    from rankroom.cli.answers import Answers
    from rankroom.cluster import actions

    store = Store()
    info = actions.running_run(store, store.find(run))
    chosen = None if ranks is None else parse_ranks(ranks, info.size)
    answers = Answers(partial(actions.answer, info), chosen, partial(actions.complete, info))
    start, assembly = line_near_end(store.paths(info.id).events, READ_LIMIT_BYTES), Assembly()
    reader = store.tail(info.id, start)
    with _interruptible() as pressed:
        while not pressed:
            chunk = _patiently(reader.read)
            lines = [line for event in events_in(chunk.data) for line in assembly.add(event)]
            show_groups(collapse(lines))
            if chunk.data:
                continue
            if chunk.state != "running":
                break
            try:
                if not answers.ask(_patiently(partial(store.load, info.id))):
                    time.sleep(POLL_INTERVAL_S)
            except EOFError:
                click.echo()
                break
    show_groups(collapse(assembly.rest()))
    now = _patiently(partial(store.load, info.id))
    click.echo(f"● {keep_colours(headline(now))}")
    if words := prompt_words(now):
        click.echo(f"! {words} still: {ANSWER_HINT.format(id=info.id)}, {INTERRUPT_HINT}")


@runs.command()
@RUN_ARGUMENT
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Compressed if it ends in .gz; - prints it. A folder with --format pytorch.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["chrome", "pytorch"]),
    default="chrome",
    show_default=True,
)
def export(run: str, output: str | None, kind: str) -> None:
    """Write a run's timeline for other programs: Chrome JSON, which Perfetto opens, or a trace for
    each rank as PyTorch's profiler writes them, for HolisticTraceAnalysis and the like."""
    from rankroom.analysis.export import chrome_json, compressed
    from rankroom.analysis.pytorch_export import PytorchTraces

    store = Store()
    run_id = store.find(run)
    if kind == "pytorch":
        if output == "-":
            raise click.UsageError("--format pytorch writes a folder, which -o names: not -")
        traces = PytorchTraces(store, run_id)
        files = ((f"rank{rank}.json.gz", compressed(pieces)) for rank, pieces in traces)
        hint = TRACES_HINT if traces.have_kernels else NO_KERNELS
        write_folder(files, output or f"{run_id}.traces", hint)
        return
    pieces = chrome_json(store, run_id)
    file = output or f"{run_id}.trace.json.gz"
    if file.endswith(".gz"):
        pieces = compressed(pieces)
    write_file(pieces, file, "open it at https://ui.perfetto.dev")


@runs.command()
@RUN_ARGUMENT
@click.option("--json", "as_json", is_flag=True, help="As JSON, times in microseconds.")
def profile(run: str, as_json: bool) -> None:
    """Show where each rank's time went, and which ranks kept the others waiting."""
    from rankroom.analysis.profile.of_run import profile_of

    store = Store()
    info = store.load(store.find(run))
    found = profile_of(store, info)
    if as_json:
        click.echo(json.dumps(found.to_json()))
        return
    click.echo(f"● {keep_colours(headline(info))}")
    click.echo(keep_colours(str(found)))


@runs.command()
@RUN_ARGUMENT
def path(run: str) -> None:
    """Print where a record is."""
    store = Store()
    click.echo(store.paths(store.find(run)).folder)


@runs.command()
@click.option("--days", type=click.FloatRange(0), help="Remove what is older than this.")
@click.option("--max-gb", type=click.FloatRange(0), help="Remove the oldest beyond this, in all.")
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
def prune(days: float | None, max_gb: float | None, dry_run: bool) -> None:
    """Remove old records; never one of a live run.

    With --days alone the size does not matter, and with --max-gb alone the age does not. Without
    either, RANKROOM_KEEP_DAYS (30) and RANKROOM_KEEP_GB (5) are the limits.
    """
    limits: tuple[float | None, float | None] = None, None  # the configured limits
    if days is not None or max_gb is not None:
        max_age = math.inf if days is None else days * DAY_S
        limits = max_age, math.inf if max_gb is None else max_gb * 1e9
    chosen = Store().prune(*limits, dry_run, grace=0.0)
    gone = [item for item in chosen if item.error is None]
    for item in gone:
        click.echo(f"{item.id}  {size(item.bytes):>9}  {item.why}")
    verb = "would be removed" if dry_run else "removed"
    count = "1 record" if len(gone) == 1 else f"{len(gone)} records"
    click.echo(f"{count}, {size(sum(item.bytes for item in gone))}, {verb}")
    for item in chosen:
        if item.error is not None:
            raise FileError(f"cannot remove the record {item.id}: {with_remedy(item.error)}")


@runs.command()
def repair() -> None:
    """Complete records whose cluster's supervisor was killed, from what its ranks left.

    This is done automatically when a cluster starts or is attached to, and when Jupyter starts.
    """
    from rankroom.cluster.repair import complete_all

    store = Store()
    completed = complete_all(store)
    for run_id in completed:
        click.echo(f"completed {run_id}: {keep_colours(headline(store.load(run_id)))}")
    if not completed:
        click.echo("no record can be completed")


def _chosen_ranks(info: RunInfo, ranks: str | None) -> Container[int]:
    return range(info.size) if ranks is None else parse_ranks(ranks, info.size)


def _last_values(store: Store, info: RunInfo) -> str:
    """Return the last values of the run's metrics, with notes; "" if it has no metrics."""
    paths = store.paths(info.id)
    with contextlib.suppress(OSError), paths.events.open("rb") as file:
        if not any(line.startswith(b'{"kind":"metrics"') for line in file):
            return ""
    from rankroom.analysis.metrics.metrics_of_run import GrowingMetrics
    from rankroom.display.compared_metrics import comparison
    from rankroom.display.metric_picture import last_values

    found = GrowingMetrics(paths, info)
    found.refresh()
    others = comparison(store, info, list(found.metrics.curves))
    said = [last_values(found, others.others), others.legend, *found.notes()]
    return "\n".join(filter(None, said))


def _group(line: Line) -> Group:
    return Group([line.rank], line.stream, line.text)


def _value(ranks: list[int], text: str) -> None:
    click.echo(f"{rank_label(set(ranks))}:")  # a rank may have shown the same value twice
    click.echo("\n".join(map(keep_colours, text.split("\n"))))


def show_groups(groups: Iterable[Group]) -> None:
    for group in groups:
        sign = "┃" if group.stream == "stderr" else "│"
        click.echo(f"{format_ranks(group.ranks)} {sign} {keep_colours(group.text)}")


def _last_lines(
    store: Store, run_id: str, assembly: Assembly, chosen: Container[int], number: int
) -> tuple[Tail, deque[Line]]:
    """Return a reader that goes on from here, and the last `number` lines so far of the `chosen`
    ranks."""
    events = store.paths(run_id).events
    for back in (READ_LIMIT_BYTES, 16 * READ_LIMIT_BYTES, sys.maxsize):
        assembly.clear()
        start = line_near_end(events, back)
        reader = store.tail(run_id, start)
        last: deque[Line] = deque(maxlen=number)
        while chunk := reader.read().data:
            for event in events_in(chunk):
                last.extend(line for line in assembly.add(event) if line.rank in chosen)
        if len(last) == number or start == 0:
            break
    return reader, last


@contextlib.contextmanager
def _interruptible() -> Iterator[list[int]]:
    """End the block at Ctrl-C. The list it yields is filled then, too: Python drops a
    KeyboardInterrupt that is raised while a destructor runs, so loops check the list."""
    pressed: list[int] = []

    def note(number: int, frame: object) -> None:
        pressed.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _is_question(event: Json) -> bool:
    return (event["kind"], event.get("name")) == ("mark", "asks")


def _follow(reader: Tail, pressed: list[int]) -> Iterator[Json]:
    """Yield events as they come, until the run has ended or Ctrl-C was `pressed`."""
    while not pressed:
        chunk = _patiently(reader.read)
        yield from events_in(chunk.data)
        if not chunk.data:
            if chunk.state != "running":
                return
            time.sleep(POLL_INTERVAL_S)


def _patiently(read: Callable[[], T]) -> T:
    """Return what `read` returns. If it fails, retry for READ_RETRY_TIMEOUT_S: a file system's
    failure may pass, and the run goes on meanwhile.

    Raises UnreadableRecordError or FileError.
    """
    until = time.monotonic() + READ_RETRY_TIMEOUT_S
    while True:
        try:
            return read()
        except (UnreadableRecordError, OSError) as error:
            if time.monotonic() < until:
                time.sleep(READ_RETRY_DELAY_S)
            elif isinstance(error, OSError):
                about = f"cannot read {error.filename or 'the record'}"
                raise FileError(f"{about}: {with_remedy(error)}") from None
            else:
                raise


def events_in(data: bytes) -> Iterator[Json]:
    return (event for event in map(parse_event, data.split(b"\n")) if event is not None)


TRACES_HINT = "`TraceAnalysis(trace_dir=…)` of HolisticTraceAnalysis reads them"
NO_KERNELS = (
    "the traces hold no GPU kernels, so programs that analyze kernels find nothing; "
    "`%%distributed --profile` records kernels if ranks have GPUs"
)
PAGE_SHOWS_ALL = (
    "a page shows every rank, and chooses in the browser: leave out --ranks, --no-collapse and "
    "--by-numbers"
)
ANSWER_HINT = "reply with `rankroom runs debug {id}`"
INTERRUPT_HINT = "or end the run with `rankroom cluster interrupt`"
