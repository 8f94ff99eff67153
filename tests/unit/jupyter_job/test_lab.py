"""Labs without a real scheduler: the job script, saved labs, the endpoint and the messages."""

from __future__ import annotations

import asyncio
import errno
import http.server
import os
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from rankroom.cli import main
from rankroom.errors import LabError, SchedulerError, SshError, UselessJob
from rankroom.jupyter_job import endpoint, follow, lab_script, saved_labs
from rankroom.jupyter_job import lab as lab_module
from rankroom.jupyter_job.endpoint import Endpoint
from rankroom.jupyter_job.lab import Lab, alive, free_port
from rankroom.jupyter_job.saved_labs import SavedLab
from rankroom.scheduler import pbs, scheduler_client, slurm
from rankroom.scheduler.jobs import JobStatus
from rankroom.scheduler.same_machine import is_here
from rankroom.scheduler.scheduler_client import Scheduler
from rankroom.scheduler.site import Environment, Site
from rankroom.ssh.connection import LOST
from rankroom.system import python_command
from rankroom.system.commands import Completed

HOSTILE = '/scratch/it\'s a "folder" of $HOME/labs'


# -- the job script


@pytest.mark.parametrize("kind", [slurm, pbs])
@pytest.mark.parametrize("labs", ["/scratch/labs", HOSTILE])
def test_a_job_script_is_valid_bash_and_activates_conda_first(kind: Any, labs: str):
    site = Site("test", login="user@login.example.org", environment=Environment(conda="horovod"))
    text = kind.script(site, lab_script.JOB_NAME, "/scratch/labs", lab_script.commands(site, labs))
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert text.index("conda activate") < text.index("python=") < text.index("'jupyterlab'")


def test_a_job_script_has_the_settings_of_the_site_profile():
    site = Site("test", login="me@login", environment=Environment(python="~/my env/bin/python"))
    lines = lab_script.commands(site, HOSTILE)
    shown = 'echo "$python|$login|$ssh_to_nodes|$labs"'
    head = lines[: lines.index("")]
    done = subprocess.run(["bash", "-c", "\n".join([*head, shown])], capture_output=True, text=True,
                          env={"HOME": "/home/me"})  # fmt: skip
    assert done.stdout == f"/home/me/my env/bin/python|me@login|no|{HOSTILE}\n"
    assert "ssh_to_nodes=yes" in lab_script.commands(replace(site, ssh_to_nodes=True), HOSTILE)


def test_the_plain_script_is_valid_bash_and_starts_the_same_job():
    text = lab_script.template().read_text()
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    part = text.partition("# -- 2.")[2].splitlines()[1:]
    assert lab_script.commands(Site("test"), "/labs")[-len(part) :] == part


def test_a_requeued_job_removes_its_earlier_endpoint_file(tmp_path: Path):
    job = tmp_path / "labs" / "12"
    job.mkdir(parents=True, mode=0o700)
    (tmp_path / "labs").chmod(0o700)
    (job / "server.json").write_text("{}")
    # Only the part before the server is configured and started.
    text, start, _ = lab_script.template().read_text().partition("run=$(mktemp -d")
    assert start
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SLURM_JOB_ID": "12"}
    text = text.replace("$HOME/.rankroom/labs", str(tmp_path / "labs"))
    done = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(job.iterdir()) == []


def test_a_job_whose_node_has_no_room_for_its_files_ends_at_once(tmp_path: Path):
    """Without the job's configuration, the server would use only the user's own."""
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "mktemp").write_text("#!/bin/sh\necho No space left on device >&2\nexit 1\n")
    (commands / "mktemp").chmod(0o755)
    env = {"PATH": f"{commands}:{os.environ['PATH']}", "PYTHON": "true", "SLURM_JOB_ID": "12"}
    text = lab_script.template().read_text()
    text = text.replace("$HOME/.rankroom/labs", str(tmp_path / "labs"))
    done = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "No space left" in done.stderr and list((tmp_path / "labs").iterdir()) == []


def test_the_job_starts_python_without_the_current_folder_on_its_path():
    text = lab_script.template().read_text()
    started = re.findall(r'^ *(.*"\$python" -(?!m pip).*)', text, re.M)
    assert len(started) == 3
    variable, path = python_command.SHELL_ASSIGNMENTS.split(" ", 1)
    way = re.compile(f'{re.escape(variable)} (exec )?"\\$python" -c "\\$safe')
    assert text.index(f"\n{path}\n") < text.index(started[0])
    assert all(way.match(each) for each in started)
    assert f"safe='{python_command.SAFE_PATH}'" in text


def test_the_job_script_prints_the_last_log_line():
    assert f'echo "{lab_script.LAST_LOG_LINE}"' in lab_script.template().read_text()


def test_a_job_script_has_no_secret_and_no_wildcard_address():
    lines = [line.partition("#")[0] for line in lab_script.commands(Site("test"), "/scratch/labs")]
    text = "\n".join(lines)
    assert "0.0.0.0" not in text and "ip = ''" not in text and '"*"' not in text
    assert re.findall(r"token = (.*)", text)[0] == "secrets.token_urlsafe(32)"
    assert "--ServerApp.token" not in text and "export" not in text


def test_a_dry_run_prints_the_job_and_submits_nothing(fake: Any, home: Path, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    sites = tmp_path / "rankroom" / "sites"
    sites.mkdir(parents=True)
    (sites / "mine.toml").write_text('login = "nowhere.invalid"\nscratch = "$SCRATCH/rankroom"\n')
    words = "--site mine --nodes 3 --time 02:00:00 --partition gpu --account a1 --dry-run"
    done = CliRunner().invoke(main, ["lab", *words.split()])
    assert done.exit_code == 0, done.output
    for line in ("--nodes=3", "--time=02:00:00", "--partition=gpu", "--account=a1"):
        assert f"#SBATCH {line}\n" in done.output
    assert fake.calls("sbatch") == []


# -- saved labs


def test_saved_labs_and_pages_are_private_files_and_can_be_removed(home: Path):
    for number, site in enumerate(["one", "two", "one"]):
        SavedLab(site, str(number), 20000 + number, float(number)).write()
    assert [each.job for each in saved_labs.all_saved()] == ["2", "1", "0"]
    assert [each.job for each in saved_labs.all_saved("one")] == ["2", "0"]
    page = saved_labs.all_saved()[0].write_page("http://127.0.0.1:1/lab?token=secret")
    assert "secret" in page.read_text()
    files = list(saved_labs.folder().iterdir())
    assert len(files) == 4
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert saved_labs.folder().stat().st_mode & 0o777 == 0o700
    for each in saved_labs.all_saved():
        each.remove()
    assert list(saved_labs.folder().iterdir()) == []


def test_saving_a_lab_on_a_full_disk_raises_no_error(home: Path, monkeypatch):
    def full(*words: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(saved_labs, "write_atomically", full)
    SavedLab("one", "1").write()
    assert saved_labs.all_saved() == []


def test_unreadable_saved_labs_are_skipped(home: Path):
    SavedLab("one", "1").write()
    (saved_labs.folder() / "one-2.json").write_text("{")
    (saved_labs.folder() / "one-3.json").write_text('{"some": "thing"}')
    assert [each.job for each in saved_labs.all_saved()] == ["1"]


class Place:
    """A login node with the files of three labs; `cleared` lists those that were removed."""

    def __init__(self) -> None:
        self.cleared: list[str] = []

    async def run(self, words: list[str], **how: Any) -> Completed:
        if words[0] == "ls":
            return Completed(tuple(words), 0, "5\n6\n7\n")
        self.cleared.append(words[-1])
        return Completed(tuple(words), 0, "")


class Knows7:
    """A scheduler on which job 7 runs, and every other job is gone."""

    def __init__(self) -> None:
        self.site, self.place = Site("one"), Place()

    async def ask(self, jobs: list[str]) -> dict[str, JobStatus]:
        return {job: JobStatus(job, "running" if job == "7" else "gone") for job in jobs}


def test_files_of_another_sites_labs_in_a_shared_folder_are_kept(home: Path):
    SavedLab("one", "5").write()
    SavedLab("two", "6").write()
    here: Any = Knows7()
    assert asyncio.run(alive(here, "/scratch/labs")) == ["7"]
    assert here.place.cleared == ["5"]
    assert [each.job for each in saved_labs.all_saved()] == ["6"]


def test_a_lab_that_is_not_listed_yet_is_kept(home: Path):
    SavedLab("one", "5", created=time.time() - scheduler_client.LISTING_DELAY_S - 1).write()
    SavedLab("one", "8", created=time.time()).write()
    here: Any = Knows7()
    assert asyncio.run(alive(here, "/scratch/labs")) == ["7"]
    assert here.place.cleared == ["5"]
    assert [each.job for each in saved_labs.all_saved()] == ["8"]


class Hangs:
    """A site on which every command times out, as with a file system that hangs."""

    name = "login"

    async def run(self, words: Any, **how: Any) -> Completed:
        return Completed(tuple(words), -9, "", True)


def test_a_site_that_times_out_does_not_mean_that_a_lab_is_over(home: Path):
    scheduler: Any = Scheduler(Site("one"), Hangs())  # type: ignore[arg-type]
    saved = SavedLab("one", "7")
    for asked in (Lab(scheduler, "/labs", saved).said(), alive(scheduler, "/labs")):
        with pytest.raises(SchedulerError, match="timed out"):
            asyncio.run(asked)  # type: ignore[arg-type]


# -- the endpoint


def test_an_endpoint_is_read_only_from_a_complete_file():
    text = '{"hostname": "10.0.0.1", "port": 20001, "token": "abc", "pid": 1}'
    found = endpoint.read(text)
    assert found == Endpoint("10.0.0.1", 20001, "abc")
    assert found.url(8888) == "http://127.0.0.1:8888/lab?token=abc"
    assert "abc" not in repr(found)
    for part in ("", text[:20], "[]", "{}", "cat: no such file"):
        assert endpoint.read(part) is None


class Answers(http.server.BaseHTTPRequestHandler):
    """A server that requires a token unless `open` is set."""

    def do_GET(self) -> None:
        right = self.headers.get("Authorization") == "token abc"
        self.send_response(200 if right or self.server.open else 403)
        self.end_headers()

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[http.server.HTTPServer]:
    made = http.server.HTTPServer(("127.0.0.1", 0), Answers)
    made.open = False
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_a_server_that_accepts_requests_without_its_token_is_refused(server: Any, monkeypatch):
    # Requests to this machine must bypass the proxy.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    port = server.server_port
    assert asyncio.run(endpoint.answers(Endpoint("c1", 1, "abc"), port)) is True
    assert asyncio.run(endpoint.answers(Endpoint("c1", 1, "abd"), port)) is False
    server.open = True
    with pytest.raises(UselessJob, match="accepts requests without its token"):
        asyncio.run(endpoint.answers(Endpoint("c1", 1, "abc"), port))


def test_an_endpoint_without_a_server_does_not_answer():
    assert asyncio.run(endpoint.answers(Endpoint("c1", 1, "abc"), free_port(0))) is False


def test_a_port_that_is_taken_is_not_given(server: Any):
    taken = server.server_port
    assert free_port(taken) != taken
    wanted = free_port(0)
    assert free_port(wanted) == wanted


@pytest.mark.parametrize(
    ("login", "here"),
    [
        ("", True),
        ("localhost", True),
        ("me@127.0.0.1", True),
        ("127.0.1.1", True),
        ("nowhere.invalid", False),
    ],
)
def test_a_site_is_local_if_its_login_host_is_this_machine(login: str, here: bool):
    assert is_here(Site("test", login=login)) is here


# -- following the job


class Told:
    """A teller that records its messages."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.shown: list[str] = []
        self.page = self.said.append

    def say(self, text: str) -> None:
        self.said.append(text)

    def show(self, text: str) -> None:
        self.shown.append(text)


class Made:
    """A lab whose job reports the given states in turn, and the last one from then on."""

    job, labs = "12", "/scratch/labs"
    silent: Exception | None = None  # raised while the endpoint cannot be read

    def __init__(self, *answers: JobStatus | Exception, log: str = "") -> None:
        self.answers, self.log = list(answers), log
        self.saved = SavedLab("test", self.job)
        self.opened: Endpoint | None = Endpoint("c1", 20012, "abc")

    async def status(self) -> JobStatus:
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def said(self) -> str:
        return self.log

    async def clear(self, log: bool = True) -> None:
        pass

    async def close(self) -> None:
        pass

    def command(self, to: Endpoint, nodes: str) -> str:
        return f"ssh {nodes}"

    async def endpoint(self) -> Endpoint | None:
        if self.silent:
            raise self.silent
        return self.opened


class Line:
    """A connection that is open or not, and reports the given states."""

    name = "login"

    def __init__(self, *states: tuple[Any, str], open: bool = True) -> None:
        self.states, self.open = states, open

    async def alive(self) -> bool:
        return self.open

    async def keep(self, tell: Any) -> None:
        for state, words in self.states:
            tell(state, words)


PENDING = JobStatus("12", "pending", "Resources: no nodes are free")
RUNNING = JobStatus("12", "running", nodes="c[1-2]", until=0.0)
GONE = JobStatus("12", "gone")


@pytest.fixture
def told(home: Path, monkeypatch) -> Told:
    monkeypatch.setattr(follow, "POLL_INTERVAL_S", 0.01)
    return Told()


def test_the_queue_state_is_shown_until_the_job_runs(told: Told):
    down = SchedulerError("test: `squeue` failed (status 1):\nUnable to contact")
    lost = SshError("the connection to login is lost", "lost")
    lab = Made(PENDING, down, lost, PENDING, RUNNING)
    assert asyncio.run(follow.queue(lab, told)) == RUNNING
    assert told.shown[0].startswith(
        "job 12 is waiting in the queue (Resources: no nodes are free) · 0:0"
    )
    assert any("`squeue` failed (status 1)" in text for text in told.shown)
    assert any("the connection to login is lost" in text for text in told.shown)
    assert told.said == ["job 12 runs on c[1-2]"]


def test_a_job_that_will_never_start_is_given_up_but_not_at_once(told: Told, monkeypatch):
    monkeypatch.setattr(follow, "NEVER_STARTS_AFTER_S", 0.2)
    never = replace(PENDING, never=True)
    # The first reason that Slurm gives may be temporary.
    lab = Made(never, PENDING, RUNNING)
    assert asyncio.run(follow.queue(lab, told)) == RUNNING
    with pytest.raises(UselessJob, match="as submitted, it will never start"):
        asyncio.run(follow.queue(Made(never), told))


def test_a_job_that_ends_before_the_server_is_up_shows_its_log(told: Told):
    lab = Made(RUNNING, GONE, log="python has no JupyterLab")
    lab.opened = None
    with pytest.raises(LabError, match=r"job 12 has failed.*\npython has no JupyterLab"):
        asyncio.run(follow.server(lab, told))
    with pytest.raises(LabError, match="it was cancelled, or ended before JupyterLab was up"):
        asyncio.run(follow.queue(Made(PENDING, GONE), told))


def test_a_server_that_does_not_come_up_is_given_up(told: Told, monkeypatch):
    monkeypatch.setattr(follow, "SERVER_START_TIMEOUT_S", 0.1)
    lab = Made(RUNNING, log="what it said")
    lab.opened = None
    with pytest.raises(UselessJob, match=r"has not come up there within 0 s.*\nwhat it said"):
        asyncio.run(follow.server(lab, told))


def test_a_suspension_does_not_count_toward_the_server_start_timeout(told: Told, monkeypatch):
    monkeypatch.setattr(follow, "SERVER_START_TIMEOUT_S", 0.1)
    lab = Made(*[replace(RUNNING, is_suspended=True)] * 20, RUNNING)
    assert asyncio.run(follow.server(lab, told)) == lab.opened


def test_an_outage_does_not_count_toward_the_server_start_timeout(told: Told, monkeypatch):
    monkeypatch.setattr(follow, "SERVER_START_TIMEOUT_S", 0.1)
    monkeypatch.setattr(scheduler_client, "RETRY_DELAY_S", 0.02)
    lab = Made(RUNNING)
    lab.silent = SshError("the connection to login is lost", "lost")

    async def outage() -> Endpoint:
        waiting = asyncio.create_task(follow.server(lab, told))
        await asyncio.sleep(0.3)
        lab.silent = None
        return await waiting

    assert asyncio.run(outage()) == lab.opened


def test_the_token_is_not_sent_while_the_connection_is_down(told: Told, monkeypatch):
    """The port is free then, so another user of this machine may have taken it."""
    asked: list[bool] = []

    async def answers(*about: object) -> bool:
        asked.append(line.open)
        return len(asked) > 2

    monkeypatch.setattr(follow.endpoint, "answers", answers)
    lab, line = Made(RUNNING), Line(open=False)

    async def outage() -> None:
        waiting = asyncio.create_task(follow.answers(lab, told, lab.opened, line))
        await asyncio.sleep(0.1)
        line.open = True
        await waiting

    asyncio.run(outage())
    assert asked == [True] * 3


def test_an_outage_does_not_count_toward_the_tunnel_reply_timeout(told: Told, monkeypatch):
    monkeypatch.setattr(follow, "TUNNEL_REPLY_TIMEOUT_S", 0.1)
    lab, line = Made(RUNNING), Line(open=False)
    lab.saved = replace(lab.saved, port=free_port(0))

    async def outage() -> None:
        waiting = asyncio.create_task(follow.answers(lab, told, lab.opened, line))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        line.open = True
        await waiting

    with pytest.raises(LabError, match="does not respond through the tunnel") as refused:
        asyncio.run(outage())
    assert not isinstance(refused.value, UselessJob)
    lab.answers, line.open = [GONE], False
    with pytest.raises(LabError, match="it was cancelled"):
        asyncio.run(follow.answers(lab, told, lab.opened, line))


def test_a_tunnel_whose_port_is_taken_after_an_outage_is_reported(told: Told):
    lost, taken = ("lost", "timed out"), ("open", "cannot forward 20012: it may be taken")
    asyncio.run(follow.keep(Line(lost, ("open", "")), told, "12"))
    assert told.said[-1] == "the connection to login is open again, and the tunnel with it"
    for states in ([lost, taken], [taken]):
        asyncio.run(follow.keep(Line(*states), told, "12"))
        assert "close the page" in told.said[-1] and "--attach 12`" in told.said[-1]
        assert "cannot forward 20012" in told.said[-1]


def test_a_lost_connection_is_reported_once(told: Told):
    lost = ("lost", LOST.format(host="login"))
    asyncio.run(follow.keep(Line(lost, ("lost", "timed out")), told))
    asyncio.run(follow.keep(Line(("lost", "timed out")), told))
    begins = "the connection to login is lost"
    assert told.said == [lost[1], f"{begins}: timed out; reconnecting"]


@pytest.mark.parametrize(("kind", "command"), [(slurm, "`squeue --me`"), (pbs, "`qstat -u $USER`")])
def test_a_job_that_does_not_end_names_the_queue_command(kind: Any, command: str, monkeypatch):
    async def nothing(job: str) -> None:
        pass

    async def running(job: str) -> JobStatus:
        return RUNNING

    monkeypatch.setattr(lab_module, "CANCEL_TIMEOUT_S", -1.0)
    site = SimpleNamespace(name="one")
    scheduler: Any = SimpleNamespace(kind=kind, site=site, cancel=nothing, status=running)
    made = Lab(scheduler, "/scratch/labs", SavedLab("one", "12"))
    with pytest.raises(LabError, match="has not ended within") as stays:
        asyncio.run(made.cancel())
    assert command in str(stays.value)


def test_the_end_of_a_job_is_reported_with_its_cause(told: Told, monkeypatch):
    hold = follow.hold(Made(RUNNING, GONE), told)
    assert asyncio.run(hold) == GONE
    assert told.said == ["job 12 is over: it was cancelled, or JupyterLab was shut down"]
    soon = replace(RUNNING, until=follow.time.time() + 1)
    asyncio.run(follow.hold(Made(soon, GONE), told))
    assert told.said[-1] == "job 12 is over: it reached its time limit"
    assert any("0:0" in text and "left" in text for text in told.shown)
    failed = follow.hold(Made(RUNNING, GONE, log="it broke"), told)
    with pytest.raises(LabError, match="it broke"):
        asyncio.run(failed)
    requeued = follow.hold(Made(RUNNING, PENDING), told)
    assert asyncio.run(requeued) == PENDING


@pytest.mark.parametrize("of", ["said", "clear"])
def test_files_of_a_lab_that_cannot_be_read_are_kept_for_later(told: Told, monkeypatch, of: str):
    """Whether the lab failed is not known if its log cannot be read."""
    monkeypatch.setattr(follow, "POLL_INTERVAL_S", 0.0)
    lab: Any = Made(RUNNING, GONE)
    lab.saved.write()

    async def fails(**how: Any) -> str:
        raise SchedulerError("no ticket")

    setattr(lab, of, fails)
    if of == "said":
        words = "its log in /scratch/labs, which may say why, cannot be read now: no ticket"
        with pytest.raises(follow.JobOver, match=words):
            asyncio.run(follow.hold(lab, told, 0.0))
    else:
        assert asyncio.run(follow.hold(lab, told, 0.0)) == GONE
    assert saved_labs.all_saved() == [lab.saved]


REQUEUES = JobStatus("12", "ending")


def test_a_job_that_is_requeued_while_its_server_starts_is_waited_for(told: Told):
    lab: Any = Made(PENDING, RUNNING, RUNNING, REQUEUES, PENDING, PENDING, RUNNING, RUNNING, GONE)
    lab.scheduler, lab.page, lab.opened = SimpleNamespace(place=None), "lab", None
    lab.saved.write()

    async def of_it() -> None:
        following = asyncio.create_task(follow.follow(lab, told, look_s=0.01))
        while len(lab.answers) > 4 and not following.done():
            await asyncio.sleep(0.001)
        assert [each.job for each in saved_labs.all_saved()] == ["12"]
        lab.opened = Endpoint("c1", 20012, "abc")
        await following

    asyncio.run(asyncio.wait_for(of_it(), 60))
    assert told.said[0] == told.said[2] == "job 12 runs on c[1-2]"
    assert told.said[1] == "job 12 is back in the queue: the scheduler has requeued it"
    assert told.said[-1].startswith("job 12 is over")


@pytest.mark.parametrize("is_up", [True, False])
def test_a_job_requeued_before_its_server_answers_stays_saved(told: Told, monkeypatch, is_up: bool):
    monkeypatch.setattr(follow, "TUNNEL_REPLY_TIMEOUT_S", 0.05)
    lab, line = Made(REQUEUES, PENDING), Line(open=is_up)
    lab.saved = replace(lab.saved, port=free_port(0))
    lab.saved.write()
    with pytest.raises(follow.Requeued):
        asyncio.run(asyncio.wait_for(follow.answers(lab, told, lab.opened, line), 60))
    assert saved_labs.all_saved() == [lab.saved]


def test_durations_are_formatted_in_minutes_or_hours():
    assert [follow.clock(s) for s in (-1, 0, 61, 3599, 3600, 90061)] == [
        "0:00 min", "0:00 min", "1:01 min", "59:59 min", "1:00 h", "25:01 h",
    ]  # fmt: skip


def test_paths_are_quoted_in_the_job_script():
    assert f"labs={shlex.quote(HOSTILE)}" in lab_script.commands(Site("test"), HOSTILE)
