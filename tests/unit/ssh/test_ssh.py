"""ssh/*: command lines, explanations of failures, ssh's questions, and sockets."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rankroom.errors import SshError, UsageError
from rankroom.ssh import command, questions, socket_folder
from rankroom.ssh.connection import SshConnection
from rankroom.ssh.failures import KNOWN_FAILURES, explain
from rankroom.ssh.host import LocalHost, place
from rankroom.system import commands

# Recorded output of OpenSSH 8.0 to 9.9, by the reason it is explained with.
SAID = {
    "unreachable": [
        "ssh: connect to host login port 22: Connection timed out",
        "ssh: connect to host login port 22: No route to host",
        "ssh: connect to host login port 22: Network is unreachable",
        "ssh: connect to host login port 22: Connection refused",
        "ssh: connect to host login.example.org port 22: Operation timed out",
        "ssh: connect to host jump port 22: No route to host\n"
        "kex_exchange_identification: Connection closed by remote host\n"
        "Connection closed by UNKNOWN port 65535",
    ],
    "unknown host": [
        "ssh: Could not resolve hostname nowhere: Name or service not known",
        "ssh: Could not resolve hostname nowhere: Temporary failure in name resolution",
        "ssh: Could not resolve hostname nowhere: nodename nor servname provided, or not known",
    ],
    "denied": [
        "alice@login: Permission denied (publickey).",
        "Permission denied, please try again.\n"
        "alice@login: Permission denied (publickey,password).",
        'Load key "/home/alice/.ssh/id": bad permissions\nalice@login: Permission denied '
        "(publickey,keyboard-interactive).",
    ],
    "changed": [
        "@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\n"
        "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
        "@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\n"
        "IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\n"
        "Host key for login has changed and you have requested strict checking.\n"
        "Host key verification failed.",
    ],
    "unknown key": [
        "No ED25519 host key is known for login and you have requested strict checking.\n"
        "Host key verification failed.",
    ],
    "busy": [
        "kex_exchange_identification: read: Connection reset by peer\n"
        "Connection reset by 10.88.0.10 port 22",
        "kex_exchange_identification: Connection closed by remote host\n"
        "Connection closed by 10.88.0.10 port 22",
        "ssh_exchange_identification: Connection closed by remote host",
        "kex_exchange_identification: read: Connection reset by peer\n"
        "Connection reset by 10.88.0.10 port 22\n"
        "kex_exchange_identification: Connection closed by remote host\n"
        "Connection closed by UNKNOWN port 65535",
        "Not allowed at this time\r\nConnection closed by 10.88.0.10 port 22",
        "Exceeded MaxStartups\r\nkex_exchange_identification: Connection closed by remote host",
    ],
    "slow": [
        "Connection timed out during banner exchange\nConnection to 10.88.0.10 port 22 timed out",
        "Connection timed out during banner exchange\nConnection to UNKNOWN port 65535 timed out",
        "rankroom asks: One-time code:\nrankroom was answered: One-time code:\n"
        "Connection timed out during banner exchange",
    ],
    "lost": [
        "kex_exchange_identification: Connection closed by remote host\n"
        "Connection closed by UNKNOWN port 65535",
    ],
    "too many keys": [
        "Received disconnect from 10.88.0.10 port 22:2: Too many authentication failures\n"
        "Disconnected from 10.88.0.10 port 22",
    ],
    "settings": [
        "/home/alice/.ssh/config: line 3: Bad configuration option: proxyjmp\n"
        "/home/alice/.ssh/config: terminating, 1 bad configuration options",
        "Bad owner or permissions on /home/alice/.ssh/config",
    ],
    "unanswered": [
        "rankroom asks: alice@login's password:\nrankroom: no answer: alice@login's "
        "password:\nalice@login: Permission denied (publickey,password).",
    ],
    "refused": ["rankroom asks: One-time code:\nrankroom: not answered: One-time code:"],
    "late": [
        "rankroom asks: One-time code:\nConnection closed by 10.88.0.10 port 22",
        "rankroom asks: One-time code:\nclient_loop: Connection reset by 10.88.0.10 port 22",
        "rankroom asks: One-time code:\nConnection timed out during banner exchange\n"
        "Connection to UNKNOWN port 65535 timed out",
        "rankroom asks: password:\nrankroom was answered: password:\nrankroom asks: Code:\n"
        "Connection timed out during banner exchange",
    ],
    "other": ["something never seen", ""],
}


def completed(output: str, timed_out: bool = False) -> commands.Completed:
    return commands.Completed(("ssh", "login"), 255, output, timed_out)


@pytest.mark.parametrize(("why", "said"), [(why, each) for why in SAID for each in SAID[why]])
def test_ssh_failures_are_explained_with_reason_and_output(why: str, said: str):
    error = explain("login", completed(said))
    assert error.why == why
    first, *rest = str(error).splitlines()
    # What failed, where, and what to do; then the command and its output.
    assert first.startswith("cannot reach login: ") and "; " in first and "{" not in first
    assert rest[0] == "`ssh login` said:"
    last = said.splitlines()[-1].strip() if said else "nothing"
    if not last.startswith("rankroom"):
        assert rest[-1].strip() == last


def test_every_known_failure_has_recorded_output():
    assert {why for why, *_ in KNOWN_FAILURES} == set(SAID) - {"other"}


def test_an_unanswered_question_is_quoted_and_a_timeout_is_unreachable():
    assert "(alice@login's password:)" in str(explain("login", completed(SAID["unanswered"][0])))
    assert explain("login", completed("", timed_out=True)).why == "unreachable"


def test_ssh_command_lines_are_quoted_and_have_their_options(tmp_path: Path):
    socket = tmp_path / "50% s"
    opening = command.master("ssh -F 'my file'", socket, "alice@login", 15)
    assert opening[:3] == ["ssh", "-F", "my file"] and opening[-2:] == ["--", "alice@login"]
    assert f"ControlPath={tmp_path}/50%% s" in opening
    assert {"ServerAliveInterval=1", "ServerAliveCountMax=3", "ConnectTimeout=15"} <= {*opening}
    through = command.through("ssh", socket, "login", ["echo", "it's", "$HOME"])
    assert through[-3:] == ["--", "login", "echo 'it'\"'\"'s' '$HOME'"]
    # If the shared connection is closed, no other one is opened.
    assert {"ControlMaster=no", "ProxyCommand=false"} <= {*through}
    assert command.forwarding(8000, "c1", 9000) == "127.0.0.1:8000:c1:9000"
    assert command.forwarding(8000, "fe80::1", 9000) == "127.0.0.1:8000:[fe80::1]:9000"
    assert command.forwarding(Path("/a:b/50%"), "c1", 9) == "/a\\:b/50%%:c1:9"


@pytest.mark.parametrize("node", ["c1;id", "$(id)", "-c1", "c 1", "", "c1\nc2"])
def test_an_invalid_node_name_from_a_scheduler_is_refused(node: str):
    with pytest.raises(SshError, match="is not a valid node name"):
        command.behind("ssh", Path("/s"), "login", node)
    assert "HostName=c1.example.org" in command.behind("ssh", Path("/s"), "login", "c1.example.org")


def test_an_empty_login_is_this_machine_and_any_other_an_ssh_host():
    assert isinstance(place(""), LocalHost) and place("").name == ""
    there = place("alice@login")
    assert isinstance(there, SshConnection) and there.name == "alice@login"
    done = asyncio.run(place("").run(["cat"], input="as given"))
    assert done.output == "as given"


# -- location of the sockets


def test_each_connection_has_its_own_socket_beside_the_records(monkeypatch: pytest.MonkeyPatch):
    # tmp_path is too long for sockets; concurrent runs of the tests must not share a folder.
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setenv("RANKROOM_HOME", short)
        path = socket_folder.control_path("ssh", "alice@login")
        assert path.parent == Path(short, "ssh")
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        others = {
            socket_folder.control_path("ssh", "bob@login"),
            socket_folder.control_path("ssh -F x", "alice@login"),
        }
        assert len(others | {path}) == 3
        assert list(path.parent.iterdir()) == []  # the probe has left nothing


@pytest.mark.parametrize("name", ["a b", 'a"b', "a#b", "a$b", "a\\b"])
def test_a_home_path_that_ssh_would_misread_puts_sockets_in_tmp(
    monkeypatch: pytest.MonkeyPatch, name: str
):
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setenv("RANKROOM_HOME", str(Path(short, name)))
        path = socket_folder.control_path("ssh", "alice@login")
        assert path.parent == Path("/tmp", f"rankroom-{os.getuid()}")


def test_a_home_path_too_long_puts_sockets_in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANKROOM_HOME", str(tmp_path / ("long" * 20)))
    path = socket_folder.control_path("ssh", "alice@login")
    assert path.parent == Path(f"/tmp/rankroom-{os.getuid()}")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert len(os.fsencode(path)) <= socket_folder.MAX_PATH_BYTES


def test_parent_folders_created_for_sockets_are_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before = os.umask(0o002)
    try:
        socket_folder._made(tmp_path / "share" / "rankroom" / "ssh")
    finally:
        os.umask(before)
    made = [tmp_path / "share", tmp_path / "share" / "rankroom"]
    assert [stat.S_IMODE(each.stat().st_mode) for each in made] == [0o700, 0o700]


def test_a_socket_folder_that_is_not_the_users_own_is_refused(tmp_path: Path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (tmp_path / "link").symlink_to(theirs)
    for each in ("link", "file"):
        (tmp_path / "file").touch()
        with pytest.raises(SshError):
            socket_folder._made(tmp_path / each)
    if os.getuid() == 0:
        os.chown(theirs, 20001, 20001)
        with pytest.raises(SshError, match="belongs to another user"):
            socket_folder._made(theirs)


# -- questions


def asking(host: str, text: str, seconds: float = 60) -> tuple[threading.Thread, list[object]]:
    said: list[object] = []

    def ask() -> None:
        try:
            said.append(questions.ask(host, text, True, seconds))
        except TimeoutError:
            said.append(TimeoutError)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, said


def first() -> questions.Question:
    deadline = time.monotonic() + 60
    while not (found := questions.pending()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found[0]


@pytest.mark.parametrize("text", ["secret", "", "ü ' \" \\ $HOME \n two lines", "x" * 1500])
def test_an_answer_arrives_as_it_was_given(home: Path, text: str):
    thread, said = asking("login", "Password:")
    question = first()
    assert (question.host, question.text, question.secret) == ("login", "Password:", True)
    assert questions.pending() == [question]
    folder = home / "questions"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    questions.answer(question.id, text)
    thread.join(60)
    assert said == [text]
    assert list(folder.iterdir()) == []


def test_a_refused_question_returns_none_and_an_unanswered_one_times_out(home: Path):
    thread, said = asking("login", "Password:")
    questions.refuse(first().id)
    thread.join(60)
    assert said == [None]
    thread, said = asking("login", "Password:", 0.05)
    thread.join(60)
    assert said == [TimeoutError] and questions.pending() == []


def test_a_question_stays_open_if_its_pipe_cannot_be_opened_for_now(home: Path, monkeypatch):
    thread, said = asking("login", "Password:")
    question, original = first(), os.open

    def short(path: Any, flags: int, *mode: int) -> int:
        if str(path).endswith(".pipe") and flags & os.O_WRONLY:
            raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))
        return original(path, flags, *mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", short)
        assert questions.pending() == [question]
    questions.answer(question.id, "secret")
    thread.join(60)
    assert said == ["secret"]


def test_an_ssh_command_that_cannot_be_parsed_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANKROOM_SSH", "ssh -F '/home/o'brien/cfg'")
    with pytest.raises(SshError, match=r"RANKROOM_SSH is .* no command line: No closing quot"):
        command.settings(command.ssh(), "login")


def test_only_an_open_question_can_be_answered(home: Path, tmp_path: Path):
    (tmp_path / "other").write_text("untouched")
    for id in ("0" * 16, "../other", "/etc/passwd", ""):
        with pytest.raises(UsageError, match="no longer open"):
            questions.answer(id, "secret")
    thread, _ = asking("login", "Password:")
    with pytest.raises(UsageError, match="at most"):
        questions.answer(first().id, "x" * 5000)
    questions.refuse(first().id)
    thread.join(60)


def test_a_killed_askers_question_is_removed_but_another_machines_is_kept(home: Path):
    code = "from rankroom.ssh import questions; questions.ask('login', 'Password:', True, 600)"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        question = first()
    finally:
        process.kill()
        process.wait()
    assert questions.pending() == []
    assert list((home / "questions").iterdir()) == []
    # A question of another machine that shares the home cannot be answered here, and is kept.
    about = {**question.__dict__, "machine": "another"}
    elsewhere = home / "questions" / f"{question.id}.json"
    elsewhere.write_text(json.dumps(about))
    (home / "questions" / "damaged.json").write_text("{")
    assert questions.pending() == [] and elsewhere.exists()


def test_askpass_gives_ssh_the_answer(home: Path):
    words = [sys.executable, "-m", "rankroom.ssh.askpass", "alice@login's password: "]
    process = subprocess.Popen(
        words, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "RANKROOM_ASKS_FOR": "login"},
    )  # fmt: skip
    question = first()
    assert (question.host, question.secret) == ("login", True)
    questions.answer(question.id, "open sesame")
    out, error = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "open sesame\n")
    password = "alice@login's password:"
    assert error.splitlines() == [
        f"rankroom asks: {password}",
        f"rankroom was answered: {password}",
    ]


# -- connections by a fake ssh


def fake_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, settings: str = ""
) -> Path:
    """Create an ssh that records its calls, except for `-G`; its connection is never open.

    It times out only in tests that shorten `AUTHENTICATION_TIMEOUT_S`, once it has come far enough.
    """
    monkeypatch.setattr("rankroom.ssh.login.AUTHENTICATION_TIMEOUT_S", 600.0)
    file = tmp_path / "ssh"
    calls = tmp_path / "calls"
    asked = f"[ $1 = -G ] && exec echo '{settings}'"
    file.write_text(f'#!/bin/sh\n{asked}\necho "$*" >> {calls}\n{script}\n')
    file.chmod(0o700)
    monkeypatch.setenv("RANKROOM_SSH", str(file))
    return calls


def test_a_refused_login_is_retried_at_growing_intervals(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls = fake_ssh(
        tmp_path, monkeypatch, "echo 'alice@login: Permission denied (publickey).'; exit 255"
    )
    line, told, pauses = SshConnection("login"), [], []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 7:
            raise asyncio.CancelledError

    monkeypatch.setattr(line, "_until_open", pause)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(line.keep(lambda state, words: told.append((state, words))))
    assert pauses == [30, 60, 120, 240, 480, 600, 600]
    assert len(calls.read_text().splitlines()) == 7
    [(state, words)] = told  # the same message seven times, reported once
    assert state == "lost" and "rejected your key" in words


def test_a_busy_server_is_tried_ten_times_and_then_reported(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    said = "kex_exchange_identification: Connection closed by remote host"
    calls = fake_ssh(tmp_path, monkeypatch, f"echo '{said}'; exit 255")

    async def no_time(attempt: int) -> None:
        pass

    monkeypatch.setattr("rankroom.ssh.connection._some_time", no_time)
    with pytest.raises(SshError, match="too many logins at once"):
        asyncio.run(SshConnection("login").open())
    assert len(calls.read_text().splitlines()) == 10


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ("port 22\nproxyjump jump,other", 15 + 40),
        ("port 22\nproxycommand nc %h %p", 15 + 40),
        ("port 22\nproxyusefdpass no\nproxycommand none", 15),
        ("", 15),
    ],
)
def test_the_connect_timeout_allows_time_to_answer_a_jump_host(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, seconds: int
):
    """ssh's own timeout lasts until the host behind the jump host replies."""
    monkeypatch.setenv("RANKROOM_ASK_SECONDS", "40")
    calls = fake_ssh(tmp_path, monkeypatch, "exit 255", settings)
    with pytest.raises(SshError):
        asyncio.run(SshConnection("login").open())
    assert f"ConnectTimeout={seconds} " in calls.read_text()


def test_open_questions_are_withdrawn_once_a_login_has_failed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A jump host may still wait for an answer when ssh has given up on the host behind it."""
    said = "Connection timed out during banner exchange"
    waits = f"until ls {home}/questions/*.json 2>/dev/null; do sleep 0.01; done"
    script = f"\"$SSH_ASKPASS\" 'Code: ' & {waits}; echo '{said}'; exit 255"
    fake_ssh(tmp_path, monkeypatch, script)
    with pytest.raises(SshError) as caught:
        asyncio.run(SshConnection("login", False).open())
    assert caught.value.why == "late"
    deadline = time.monotonic() + 60
    while questions.pending():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_hanging_ssh_does_not_block_the_event_loop(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fake_ssh(tmp_path, monkeypatch, "sleep 600")

    async def both() -> int:
        opening = asyncio.ensure_future(SshConnection("login").open())
        ticks = 0
        while ticks < 20:
            await asyncio.sleep(0.01)
            ticks += 1
        assert not opening.done()
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        return ticks

    assert asyncio.run(both()) == 20


def test_a_login_that_makes_no_progress_times_out(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fake_ssh(tmp_path, monkeypatch, "echo 'a banner'; touch \"$0.said\"; exec sleep 600")

    async def no_further() -> None:
        opening = asyncio.ensure_future(SshConnection("login").open(connect_s=0))
        while not (tmp_path / "ssh.said").exists():
            assert not opening.done()
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)  # the event loop reads the banner meanwhile
        monkeypatch.setattr("rankroom.ssh.login.AUTHENTICATION_TIMEOUT_S", 0.2)
        await opening

    with pytest.raises(SshError, match="after the key exchange") as caught:
        asyncio.run(no_further())
    assert caught.value.why == "unreachable" and "a banner" in str(caught.value)


def test_a_login_that_waits_for_an_answer_does_not_time_out(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    script = '"$SSH_ASKPASS" "Code: " > "$0.answer"; touch "$0.answered"; exec sleep 600'
    fake_ssh(tmp_path, monkeypatch, script)
    told: list[tuple[str, str]] = []

    async def late() -> None:
        opening = asyncio.ensure_future(
            SshConnection("login", False).open(lambda *words: told.append(words), connect_s=0)
        )
        while not (told and questions.pending()):
            assert not opening.done()
            await asyncio.sleep(0.01)
        monkeypatch.setattr("rankroom.ssh.login.AUTHENTICATION_TIMEOUT_S", 0.2)
        await asyncio.sleep(1)
        assert not opening.done()
        # Not under test: the time that the answer takes to arrive.
        monkeypatch.setattr("rankroom.ssh.login.AUTHENTICATION_TIMEOUT_S", 600.0)
        questions.answer(questions.pending()[0].id, "123456")
        while not (tmp_path / "ssh.answered").exists():
            assert not opening.done()
            await asyncio.sleep(0.01)
        monkeypatch.setattr("rankroom.ssh.login.AUTHENTICATION_TIMEOUT_S", 0.2)
        await opening

    # After the answer, the login makes no progress, and times out.
    with pytest.raises(SshError, match="after the key exchange"):
        asyncio.run(late())
    assert (tmp_path / "ssh.answer").read_text() == "123456\n"
    assert told == [("asks", "Code:")]


def test_a_missing_ssh_command_is_reported(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANKROOM_SSH", "rankroom-no-such-ssh")
    with pytest.raises(SshError, match="rankroom-no-such-ssh") as caught:
        asyncio.run(SshConnection("login").open())
    assert caught.value.why == "no ssh"
