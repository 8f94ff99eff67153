"""The errors if a request to a cluster's supervisor fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankroom.cluster import actions
from rankroom.errors import NoClusterError, RankroomError
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.record.owner import this_process
from rankroom.rpc.server import Server


@pytest.fixture
def paths(home: Path) -> Iterator[ClusterPaths]:
    """A cluster without ranks, whose supervisor appears to be this process."""
    made, me = ClusterPaths("mine"), this_process()
    made.make(1)
    server = Server("", made.folder, lambda question: question.answer())
    made.write(
        ClusterInfo(
            "mine", 1, "running", supervisor=me.pid, began=me.began, rpc=server.address,
            rpc_key=server.key,
        )
    )  # fmt: skip
    yield made
    server.close()


def socket_of(paths: ClusterPaths) -> Path:
    info = paths.read()
    assert info is not None
    return Path(info.rpc.removeprefix("ipc://"))


def test_an_interrupt_succeeds_if_the_supervisor_answers(paths: ClusterPaths):
    actions.interrupt("mine")


def test_a_supervisor_that_does_not_listen_is_reported_with_the_stop_command(paths: ClusterPaths):
    socket_of(paths).unlink()
    with pytest.raises(
        NoClusterError, match="mine does not accept connections: `%cluster stop mine` ends"
    ):
        actions.interrupt("mine")


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EMFILE, "this process has too many open files: `ulimit -n`"),
        (errno.ENFILE, "this machine has too many open files"),
        (errno.EACCES, "check its permissions"),
        (errno.EHOSTUNREACH, ""),
        (errno.ECONNRESET, ""),
    ],
    ids=errno.errorcode.get,
)
def test_other_errors_of_a_request_do_not_count_as_a_missing_cluster(
    paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
):
    def fail(*about: object, **question: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(actions, "ask", fail)
    with pytest.raises(RankroomError) as error:
        actions.interrupt("mine")
    said = str(error.value)
    assert not isinstance(error.value, NoClusterError)
    assert said.startswith("the request to the supervisor of cluster mine failed: ")
    assert os.strerror(number) in said and remedy in said
    assert "%cluster stop" not in said and "\n" not in said
