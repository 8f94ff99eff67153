"""Questions that ssh asks on the way to a site are passed on to the user who starts a cluster
there; JupyterLab shows them in a dialog."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

import pytest

from labs import jobs, profile
from machines import Machines
from remote import Laptop, until_nothing_runs

ASKED = """
from rankroom.ssh import questions
paths = start.launch(site.load("test"), "far")
def asked(word):
    return [each for each in questions.pending() if word in each.text]
def far():
    return paths.read().remote
"""


@pytest.fixture
def laptop(machines: Machines) -> Iterator[Laptop]:
    """A laptop whose key has a passphrase, and to which the login node's host key is unknown."""
    with Laptop(machines, {"test": profile(ranks_per_node=1)}) as made:
        key = made.home / "locked"
        key.write_bytes((machines.root / "client" / "id_ed25519").read_bytes())
        key.chmod(0o600)
        words = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "open sesame", "-f", str(key)]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        config = made.home / "ssh_config"
        config.write_text(
            f"Host *\n  IdentityFile {key}\n  IdentitiesOnly yes\n  IdentityAgent none\n"
            f"  UserKnownHostsFile {made.home}/known\n  StrictHostKeyChecking ask\n"
            + config.read_text()
        )
        yield made


def test_a_cluster_starts_once_its_questions_are_answered(machines: Machines, laptop: Laptop):
    laptop.do(ASKED)
    laptop.until("asked('authenticity')")
    laptop.until("far().state == 'asks'")
    assert "login asks: " in laptop.do("far().words")
    laptop.do("questions.answer(asked('authenticity')[0].id, 'yes')")
    laptop.until("asked('passphrase')")
    assert laptop.do("[each.secret for each in questions.pending()]") == [True]
    laptop.do("id = asked('passphrase')[0].id\nquestions.answer(id, 'a wrong one')")
    # In one evaluation: the first question may disappear between two.
    laptop.until("[each.id for each in asked('passphrase') if each.id != id]")
    assert jobs(machines) == []
    laptop.do("questions.answer(asked('passphrase')[0].id, 'open sesame')")
    laptop.do("cluster = RemoteCluster.in_folder(paths)\ncluster.until_ready()", 300)
    assert laptop.do("run = cluster.run('rank'); run.wait(60); run.results") == {"0": "0"}
    assert laptop.do("questions.pending()") == []
    for file in laptop.home.rglob("*"):
        # A file that an agent writes is renamed once it is complete.
        with contextlib.suppress(FileNotFoundError):
            assert not file.is_file() or b"open sesame" not in file.read_bytes(), file
    laptop.do("cluster.stop()", 120)
    until_nothing_runs(machines)


def test_refusing_a_question_of_ssh_starts_no_job(machines: Machines, laptop: Laptop):
    laptop.do(ASKED)
    laptop.until("asked('authenticity')")
    laptop.do("questions.refuse(asked('authenticity')[0].id)")
    said = laptop.do("refused(RemoteCluster.in_folder(paths).until_ready)", 120)
    assert "try again to be asked again" in said
    assert laptop.do("questions.pending()") == []
    assert jobs(machines) == []
