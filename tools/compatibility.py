"""Run other projects' tests and examples on Rankroom's ranks, and write a table of what passes.

`tools/compatibility.py [PART …] [--source NAME=DIR …] [--write docs/compatibility.md]`. Parts are
horovod, ipyparallel and examples; the default is all of them. Everything is fetched once into the
cache (`tools/foreign.py`); `--source` uses a clone of a repository instead. Prints a line for each
when it has ended, which in the document replaces its earlier line. Exits with 1 if something fails
that is not known to fail, or an example works that is known to fail.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import examples
import horovod_suites
import ipyparallel_suite
from examples import Example, Trial
from foreign import REPOSITORIES, fetched, packages
from horovod_suites import Outcome
from known import FOR_TWO, KNOWN

PARTS = ("horovod", "ipyparallel", "examples")
RANKS = (2, 3)


@dataclass(frozen=True)
class Row:
    """A line of the table: how many tests passed, and which of the others are known to fail."""

    suite: str
    ranks: int
    outcome: Outcome

    def known(self) -> dict[str, str]:
        """Return the tests that failed and are known to, and why."""
        return {test: why for test in self.outcome.failed if (why := _why(self.suite, test))}

    def news(self) -> list[str]:
        """Return the failures that are not known."""
        known = self.known()
        found = [
            f"{self.suite} on {self.ranks} ranks: {test}: {self.outcome.why[test]}"
            for test in self.outcome.failed
            if test not in known
        ]
        return found + ([f"{self.suite}: not finished"] if self.outcome.unfinished else [])

    @property
    def line(self) -> str:
        failed = f"{len(self.outcome.failed)}" if self.outcome.failed else "–"
        skipped = f"{self.outcome.skipped}" if self.outcome.skipped else "–"
        return f"| {self.suite} | {self.ranks} | {self.outcome.passed} | {failed} | {skipped} |"


def main() -> int:
    """Run the requested parts; return 1 if some results are unexpected."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("words", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="of a part")
    parser.add_argument("--source", action="append", default=[], metavar="NAME=DIR")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into this file")
    asked = parser.parse_args()
    parts = asked.words or PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no part {min(unknown)!r}; there are {', '.join(PARTS)}")
    sources = {name: Path(folder) for name, _, folder in (s.partition("=") for s in asked.source)}
    if unknown := sources.keys() - REPOSITORIES.keys():
        parser.error(f"no repository {min(unknown)!r}; there are {', '.join(REPOSITORIES)}")
    news: list[str] = []
    for part in parts:
        if part == "examples":
            for trial in try_examples(asked.only, sources):
                news += [f"{trial.example.name}: {trial.why}"] if is_news(trial) else []
                if asked.write:
                    write(asked.write, part, trial_line(trial))
        else:
            for row in run_suites(part, asked.only, sources):
                news += row.news()
                if asked.write:
                    write(asked.write, part, row.line)
    print("\n".join(["", *news] if news else ["nothing new"]))
    return 1 if news else 0


def run_suites(part: str, only: Sequence[str], sources: dict[str, Path]) -> Iterable[Row]:
    """Run each suite of Horovod on each number of ranks, or each test file of ipyparallel."""
    if part == "horovod":
        tests = fetched(part, sources.get(part)) / "test"
        for name in only or horovod_suites.SUITES:
            for ranks in RANKS:
                left_out = FOR_TWO.get(name, ()) if ranks > 2 else ()
                suite = horovod_suites.SUITES[name]
                yield told(
                    Row(name, ranks, horovod_suites.run(tests, suite, ranks, deselect=left_out))
                )
    else:
        for name in only or ipyparallel_suite.FILES:
            yield told(Row(name, ipyparallel_suite.RANKS, ipyparallel_suite.run(name)))


def told(row: Row) -> Row:
    print(f"{row.suite:22} {row.ranks} ranks: {row.outcome}", flush=True)
    for each in row.news():
        print(f"    {each}", flush=True)
    if row.outcome.unfinished:
        print(row.outcome.unfinished, file=sys.stderr)
    return row


def try_examples(only: Sequence[str], sources: dict[str, Path]) -> Iterable[Trial]:
    site = packages(examples.NEEDS)
    roots = {"": site}
    for example in examples.chosen(only):
        name = example.repository
        if name not in roots:
            roots[name] = fetched(name, sources.get(name))
        with tempfile.TemporaryDirectory(prefix="rankroom-example-") as scratch:
            trial = examples.tried(example, roots[name], Path(scratch))
        print(f"{trial_line(trial)} {trial.seconds:.0f} s", flush=True)
        yield trial


def is_news(trial: Trial) -> bool:
    if not trial.tried:
        return False
    known = _why("examples", trial.example.path)
    return bool(trial.why) != bool(known)


def trial_line(trial: Trial) -> str:
    if not trial.tried:
        how = f"not tried: {trial.why}"
    elif not trial.why:
        how = "works"
    else:
        how = _why("examples", trial.example.path) or f"fails: {trial.why}"
    return f"| {source_of(trial.example)} | `{trial.example.name}` | {how} |"


def source_of(example: Example) -> str:
    return REPOSITORIES[example.repository].name if example.repository else "accelerate"


def _why(suite: str, test: str) -> str:
    """Return why a test is known to fail; empty if it is not."""
    return next((why for at, what, why in KNOWN if at == suite and re.fullmatch(what, test)), "")


def write(path: Path, part: str, line: str) -> None:
    """Write a line into a part's table in a document, in place of the one with the same key."""
    mark, end = f"<!-- tools/compatibility.py {part} -->\n", f"<!-- end of {part} -->\n"
    before, begun, rest = path.read_text("utf-8").partition(mark)
    table, ended, after = rest.partition(end)
    if not (begun and ended):
        raise SystemExit(f"{path} lacks the lines that say where {part} belongs")
    lines = {_key(each): each for each in table.splitlines() if each.startswith("| ")}
    lines.pop(_key(TITLES[part].splitlines()[0]), None)
    lines[_key(line)] = line
    table = "".join(
        f"{each}\n" for each in [TITLES[part].rstrip(), *lines.values(), *known_of(part)]
    )
    path.write_text(f"{before}{mark}{table}{end}{after}", "utf-8")


def _key(line: str) -> tuple[str, ...]:
    return tuple(line.split("|")[1:3])


def known_of(part: str) -> list[str]:
    """Return a list of the tests that are known to fail, by reason."""
    suites = {"horovod": horovod_suites.SUITES, "ipyparallel": ipyparallel_suite.FILES}
    reasons: dict[str, list[str]] = {}
    for suite, tests, why in KNOWN:
        if suite in suites.get(part, ()):
            reasons.setdefault(why, []).append(f"`{tests}`")
    lines = [f"- {why}: {', '.join(tests)}" for why, tests in reasons.items()]
    return ["", "What fails, and why:", "", *lines] if lines else []


SUITES = "| tests | ranks | pass | fail | skipped |\n|---|---|---|---|---|\n"
TITLES = {
    "horovod": SUITES,
    "ipyparallel": SUITES,
    "examples": "| from | example | as a cell on two ranks |\n|---|---|---|\n",
}

if __name__ == "__main__":
    sys.exit(main())
