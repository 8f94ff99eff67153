"""File systems without locks, and file operations that fail: one line says so, nothing is lost."""

from __future__ import annotations

import errno
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from numbered import assert_numbered
from odd_machine import Machine, Odd
from rankroom.record.store import Store
from rankroom.system.polling import poll_until

pytestmark = pytest.mark.cluster


@pytest.fixture
def there(home: Path, tmp_path: Path, odd: Odd) -> Iterator[Machine]:
    """A machine on which file operations fail as `odd` says."""
    made = Machine("there", tmp_path, environment=odd.environment)
    try:
        yield made
    finally:
        made.crash()


CELL = """
import json, rankroom
cluster = rankroom.Cluster.attach()
run = cluster.run("print('hello'); rank * 10")
run.wait(60)
print(json.dumps([run.state, run.results, run.info.notes]))
"""


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.ENOLCK], ids=errno.errorcode.get)
def test_a_cluster_works_without_file_locks(there: Machine, home: Path, odd: Odd, error: int):
    odd.fail("flock", error)
    started, listed, _ = there.each(
        "cluster start --ranks 2 --name mine", "cluster list", "doctor --clean"
    )
    assert started[0] == 0, started
    assert f"the file system of {home}/clusters does not support file locks" in started[1]
    assert "2 ranks ready" in listed[1]
    assert there.do(CELL) == ["done", {"0": "0", "1": "10"}, []]
    [stopped] = there.each("cluster stop mine")
    assert stopped[0] == 0
    assert not (home / "clusters" / "mine").exists()
    assert there.processes("rankroom") == []


OPERATIONS = ("open", "read", "write", "make", "rename", "list", "stat", "remove", "close")
SAYS = {
    errno.EIO: "Input/output error; the disk or the server",
    errno.ESTALE: "Stale file handle; its server was restarted",
    errno.EACCES: "Permission denied; check its permissions",
    errno.EDQUOT: "Disk quota exceeded; your quota is used up",
}
# They take the same paths, and differ in their words.
ERRORS = [
    pytest.param(error, marks=[] if error == errno.ESTALE else [pytest.mark.thorough])
    for error in SAYS
]
# The operations whose failure each command reports.
NEEDS = {
    "cluster start --ranks 1 --name new": {"open", "write", "make", "rename", "stat", "close"},
    "cluster list": {"open", "read", "list", "close"},
    "doctor": {"open", "read", "list", "stat", "close"},
    "runs show": {"open", "read", "list", "close"},
}
PROBES = """
import json, os
from click.testing import CliRunner
from rankroom.cli import main
from rankroom.record import cluster_file
odd, home, error = {odd!r}, {home!r}, {error}
os.symlink(f"{{error}}:{{home}}", f"{{odd}}/aside")
found = {{}}
for operation in {operations!r}:
    os.rename(f"{{odd}}/aside", f"{{odd}}/{{operation}}")
    for line, needs in {needs!r}.items():
        if "start" in line and operation not in needs:
            continue
        cluster_file._read_last.clear()  # as in a new process
        result = CliRunner().invoke(main, line.split(), prog_name="rankroom")
        known = result.exception is None or isinstance(result.exception, SystemExit)
        found[f"{{operation}} {{line}}"] = [result.output, known]
    os.rename(f"{{odd}}/{{operation}}", f"{{odd}}/aside")
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory, odd_library: Path) -> Iterator[Usual]:
    """A machine on which a cluster has run a cell."""
    folder = tmp_path_factory.mktemp("usual")
    made = Usual(folder, odd_library)
    try:
        made.there.rankroom("cluster", "start", "--ranks", "2", "--name", "mine")
        made.there.do(CELL)
        yield made
    finally:
        made.there.crash()


class Usual:
    def __init__(self, folder: Path, library: Path) -> None:
        self.home, self.folder = folder / "home", folder
        self.odd = Odd(library, folder / "is-odd")
        about = self.odd.environment | {"RANKROOM_HOME": str(self.home)}
        self.there = Machine("there", folder, environment=about)


@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
def test_a_failed_file_operation_is_reported_and_leaves_nothing(usual: Usual, error: int):
    before = usual.there.processes("rankroom")
    odd, home = str(usual.odd.folder), str(usual.home)
    source = PROBES.format(odd=odd, home=home, error=error, operations=OPERATIONS, needs=NEEDS)
    try:
        found = usual.there.do(source)
    finally:
        usual.odd.end()
    assert isinstance(found, dict)
    for what, (said, known) in found.items():
        operation, _, words = what.partition(" ")
        assert known and "Traceback" not in said, f"{what}: {said}"
        if operation in NEEDS[words]:
            assert SAYS[error] in said, f"{what}: {said}"
    assert not (usual.home / "clusters" / "new" / "cluster.json").exists()
    assert usual.there.processes("rankroom") == before


# Prints until the gate exists.
PRINTS = """
import json, pathlib, time
import rankroom
cluster = rankroom.Cluster.attach("mine")
run = cluster.run('''
import pathlib, time
count = 0
while not pathlib.Path({gate!r}).exists():
    print("line", count)
    count += 1
    time.sleep(0.002)
count
''')
print(run.id, flush=True)
run.wait(60)
print(json.dumps([run.state, run.results]))
"""


@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
def test_a_run_survives_failing_file_operations_and_loses_no_line(usual: Usual, error: int):
    gate = usual.folder / f"gate-{error}"
    client = usual.there.start(sys.executable, "-c", PRINTS.format(gate=str(gate)))
    assert client.stdout
    run_id = client.stdout.readline().strip()
    for operation in OPERATIONS:
        usual.odd.fail(operation, error, usual.home)
        time.sleep(0.3)
        usual.odd.end()
        time.sleep(0.1)
    usual.odd.fail("write", error, usual.home)
    gate.touch()
    time.sleep(0.5)
    usual.odd.end()
    [state, results] = json.loads(client.communicate(timeout=120)[0])
    assert state == "done"
    store = Store(usual.home)
    assert poll_until(lambda: store.load(run_id).state == "done", 20)
    assert not any("missing" in note for note in store.load(run_id).notes)
    for rank, count in results.items():
        assert_numbered(store, run_id, int(rank), int(count))


def test_a_quota_error_on_close_is_noted_and_the_spools_are_kept(usual: Usual):
    """A failed close means that the record may be incomplete, so the ranks' spools are kept."""
    gate = usual.folder / "gate-quota"
    client = usual.there.start(sys.executable, "-c", PRINTS.format(gate=str(gate)))
    assert client.stdout
    run_id, store = client.stdout.readline().strip(), Store(usual.home)
    usual.odd.fail("close", errno.EDQUOT, usual.home / "runs")
    gate.touch()
    assert json.loads(client.communicate(timeout=120)[0])[0] == "done"
    usual.odd.end()
    assert poll_until(lambda: store.load(run_id).state == "done", 20)
    [note] = store.load(run_id).notes
    assert note.startswith("Disk quota exceeded: ") and "may be missing from the record" in note
    assert len(list(usual.home.glob(f"clusters/mine/spool/*/{run_id}.jsonl"))) == 2
