"""A pytest plugin for tests/faults: repeats racy faults, and ends with a table of outcomes.

Without `--repeat`, the table leaves out the promises that held.

    @pytest.mark.fault("a rank is killed while it prints", "its last line is in the record")
    @pytest.mark.fault("…", "…", racy=True)     # injected `--repeat N` times
    @pytest.mark.thorough                       # only with `--repeat`, as in `make faults`
    @pytest.mark.timed                          # runs alone, but only with `--repeat`

`{name}` in a text is the value of the test's parameter of that name, `{id}` the name of the case.
Times that tests give to `record_property("ms", …)` appear as median and maximum over all turns.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from dataclasses import dataclass, field
from statistics import median

import pytest

FOLDER = "faults"


@dataclass
class Row:
    """One fault, and the outcomes of its test."""

    outcomes: Counter[str] = field(default_factory=Counter)
    times_ms: list[float] = field(default_factory=list)
    skipped: str = ""

    @property
    def count(self) -> int:
        return self.outcomes.total()

    @property
    def words(self) -> str:
        """`held`, or how often it was not held, or why the fault was not tried."""
        if self.outcomes["failed"]:
            return f"NOT HELD, {self.outcomes['failed']} of {self.count}"
        if not self.outcomes["passed"]:
            return f"not tried: {self.skipped}"
        if not self.times_ms:
            return "held"
        return f"held, {median(self.times_ms):.0f} ms, at most {max(self.times_ms):.0f} ms"


ROWS = pytest.StashKey[dict[tuple[str, str], Row]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--repeat", type=int, default=1, metavar="N", help="inject each racy fault N times"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(what, promised, racy=False): an injected fault")
    config.addinivalue_line("markers", "thorough: only with --repeat, as it takes long")
    config.addinivalue_line("markers", "timed: with --repeat it is `alone`, as it measures time")
    config.stash[ROWS] = {}


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--repeat") > 1:
        for item in items:
            if item.get_closest_marker("timed"):
                item.add_marker(pytest.mark.alone)
        return
    left_out = [item for item in items if item.get_closest_marker("thorough")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("fault")
    times = metafunc.config.getoption("--repeat")
    if mark is not None and mark.kwargs.get("racy") and times > 1:
        metafunc.fixturenames.append("turn")
        metafunc.parametrize("turn", range(times))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if item.path.parent.name == FOLDER and (report.when == "call" or not report.passed):
        row = item.config.stash[ROWS].setdefault(texts_of(item), Row())
        row.outcomes[report.outcome] += 1
        row.times_ms += [value for name, value in report.user_properties if name == "ms"]
        if report.skipped and isinstance(report.longrepr, tuple):
            row.skipped = report.longrepr[2].removeprefix("Skipped: ")
    return report


def texts_of(item: pytest.Item) -> tuple[str, str]:
    """The fault and the promise; without the marker, the test's name describes the fault."""
    mark = item.get_closest_marker("fault")
    words = item.name.partition("[")[0].removeprefix("test_").replace("_", " ")
    if mark is None:
        return words, ""
    case = getattr(item, "callspec", None)
    params = {"id": case.id if case else words, **(case.params if case else {})}
    what, promised = mark.args
    return what.format(**params), promised.format(**params)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    rows = config.stash[ROWS]
    if not rows:
        return
    terminalreporter.section("faults")
    if config.getoption("--repeat") == 1:
        # Usually a run of all tests, whose readers look for failures.
        held = [texts for texts, row in rows.items() if row.words.startswith("held")]
        terminalreporter.write_line(f"{len(held)} of {len(rows)} held")
        rows = {texts: row for texts, row in rows.items() if texts not in held}
        if not rows:
            return
    cells = [(*texts, row.words, f"{row.count}×") for texts, row in rows.items()]
    for line in table([("fault", "promised", "outcome", "times"), *cells], 120):
        terminalreporter.write_line(line)


def table(rows: list[tuple[str, ...]], width: int) -> list[str]:
    """Rows in columns no wider than their share of `width`, with a rule under the first row."""
    shares = [0.34, 0.36, 0.22, 0.08]
    widths = [
        min(int(width * share), max(len(row[i]) for row in rows)) for i, share in enumerate(shares)
    ]
    lines = []
    for row in rows:
        parts = [textwrap.wrap(text, size) or [""] for text, size in zip(row, widths, strict=True)]
        for i in range(max(map(len, parts))):
            texts = [part[i] if i < len(part) else "" for part in parts]
            line = "  ".join(text.ljust(size) for text, size in zip(texts, widths, strict=True))
            lines.append(line.rstrip())
        if row is rows[0]:
            lines.append("  ".join("-" * size for size in widths))
    return lines
