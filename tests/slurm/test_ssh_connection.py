"""The ssh connection from a laptop to a login node: questions, sharing, cuts and reconnection."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from machines import Machines
from rankroom.ssh.connection import CONNECT_TIMEOUT_S
from remote_python import RemotePython

LINE = "from rankroom.errors import SshError\nfrom rankroom.ssh.connection import SshConnection\n"
PORT = 2222


@pytest.fixture
def home(machines: Machines) -> Iterator[Path]:
    """A folder of the laptop's user, at the same path here, with an ssh configuration to change."""
    folder = machines.root / f"laptop-{time.monotonic_ns()}"
    folder.mkdir(mode=0o700)
    config = (machines.root / "client" / "ssh_config").read_text()
    (folder / "config").write_text(config)
    yield folder
    ended = ["sh", "-c", f"for each in {folder}/ssh/*; do ssh -F none -S $each -O exit x; done"]
    machines.run("laptop", ended)


def settings(home: Path) -> dict[str, str]:
    return {"RANKROOM_SSH": f"ssh -F {home}/config", "RANKROOM_HOME": str(home)}


@pytest.fixture
def laptop(machines: Machines, home: Path) -> Iterator[RemotePython]:
    with RemotePython(machines, "laptop", "root", settings(home)) as python:
        python.do(LINE)
        yield python


def prepend(home: Path, text: str) -> None:
    """Put `text` first in the ssh configuration, where it takes precedence."""
    config = home / "config"
    config.write_text(text + config.read_text())


@contextlib.contextmanager
def another_sshd(machines: Machines, home: Path, options: str) -> Iterator[Path]:
    """A second sshd on the login node, with the alias `strict`; yields its log file."""
    base = (machines.root / "ssh" / "sshd_config").read_text()
    lines = [line for line in base.splitlines() if line.split()[0] not in options + "PortPidFile"]
    file = home / "sshd_config"
    file.write_text("\n".join([options, f"Port {PORT}", "PidFile none", *lines]) + "\n")
    log = home / "sshd.log"
    words = ["/usr/sbin/sshd", "-D", "-f", file, "-E", log]
    server = machines.start("login", words, "root", stdin=subprocess.DEVNULL)
    prepend(home, f"Host strict\n  HostName login\n  Port {PORT}\n  HostKeyAlias login\n")
    try:
        deadline = time.monotonic() + 60
        while not (log.exists() and "listening" in log.read_text()):
            assert server.poll() is None and time.monotonic() < deadline, log
            time.sleep(0.02)
        yield log
    finally:
        # The processes of accepted connections would outlive the server, and keep these open.
        for inner in _inner(server):
            machines.run("login", ["pkill", "-KILL", "-P", inner])
        server.kill()
        server.wait()
        # The server ends a little later than its parent, and the next one needs the port.
        listens = ["ss", "-Hltn", f"sport = :{PORT}"]
        machines.until(lambda: not machines.run("login", listens), "end of the server")


def _inner(server: subprocess.Popen[str]) -> list[str]:
    """The machine's process id of the server under `server`; empty if it has ended."""
    if server.poll() is not None:
        return []
    found = []
    for child in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
        status = Path(f"/proc/{child}/status").read_text().splitlines()
        found.append(next(line for line in status if line.startswith("NSpid")).split()[-1])
    return found


def trouble(python: RemotePython, what: str) -> tuple[str, str]:
    """Why an ssh operation failed, and the error message."""
    why, message = python.do(
        f"why = message = ''\ntry:\n    wait({what})\nexcept SshError as error:\n"
        "    why, message = error.why, str(error)\n[why, message]"
    )
    return why, message


def logins(machines: Machines) -> int:
    """The number of connections that the login node's own sshd has accepted."""
    return (machines.root / "log" / "sshd-login.log").read_text().count("Accepted publickey")


# -- one shared connection


def test_a_remote_command_keeps_its_arguments_input_and_exit_status(laptop: RemotePython):
    laptop.do("line = SshConnection('login')")
    said = "['printf', '%s|', 'a b', '$HOME', \"it's\", '*', '`id`', 'x\\ny']"
    assert laptop.do(f"wait(line.run({said})).output") == "a b|$HOME|it's|*|`id`|x\ny|"
    assert laptop.do("wait(line.run(['sh', '-c', 'cat; exit 7'], input='to there')).output") == (
        "to there"
    )
    assert laptop.do("wait(line.run(['sh', '-c', 'exit 7'])).returncode") == 7
    assert laptop.do("wait(line.run(['sh', '-c', 'exit 255'])).returncode") == 255
    assert laptop.do("wait(line.run(['hostname'])).output.strip()") == "login"


def test_two_processes_share_one_login(machines: Machines, home: Path, laptop: RemotePython):
    before = logins(machines)
    with RemotePython(machines, "laptop", "root", settings(home)) as other:
        other.do(LINE)
        for python in (laptop, other):
            python.do("line = SshConnection('login')\nfirst = go(line.run(['hostname']))")
        for python in (laptop, other):
            assert python.do("first.result(60).output.strip()") == "login"
    # One process has ended, and the connection stays open for the other.
    assert laptop.do("wait(line.run(['hostname'])).output.strip()") == "login"
    assert logins(machines) == before + 1
    laptop.do("wait(line.end())")
    assert laptop.do("wait(line.alive())") is False


def test_a_command_without_a_connection_does_not_log_in(machines: Machines, laptop: RemotePython):
    before = logins(machines)
    done = laptop.do(
        "from rankroom.ssh import command\n"
        "from rankroom.system import commands\n"
        "socket = SshConnection('login').socket\n"
        "words = command.through(command.ssh(), socket, 'login', ['hostname'])\n"
        "done = wait(commands.run(words))\n"
        "[done.returncode, done.output]"
    )
    assert done[0] == 255 and "login\n" not in done[1]
    assert logins(machines) == before


def test_a_compute_node_is_reached_through_the_login_node(laptop: RemotePython):
    assert laptop.do("wait(SshConnection('c2').run(['hostname'])).output.strip()") == "c2"


def test_a_node_is_reached_over_the_login_nodes_connection(
    machines: Machines, laptop: RemotePython
):
    before = logins(machines)
    laptop.do(
        "login, node = SshConnection('login'), SshConnection('login', node='c2')\n"
        "wait(login.open())"
    )
    assert laptop.do("wait(node.run(['hostname'])).output.strip()") == "c2"
    assert laptop.do("wait(login.run(['hostname'])).output.strip()") == "login"
    assert logins(machines) == before + 1
    laptop.do("wait(node.end())\nwait(login.end())")
    why, message = trouble(laptop, "node.open()")
    assert why == "lost" and "c2" in message and logins(machines) == before + 1


def test_a_stale_control_socket_is_no_connection(machines: Machines, laptop: RemotePython):
    laptop.do("line = SshConnection('login')\nwait(line.open())")
    socket = laptop.do("str(line.socket)")
    machines.run("laptop", ["pkill", "-KILL", "-f", f"ControlPath={socket}"])
    laptop.until("not wait(line.alive())")
    assert Path(socket).is_socket() or not Path(socket).exists()
    assert laptop.do("wait(line.run(['hostname'])).output.strip()") == "login"


def test_more_commands_than_maxsessions_all_run_over_one_login(
    machines: Machines, home: Path, laptop: RemotePython
):
    with another_sshd(machines, home, "MaxSessions 2") as log:
        laptop.do(
            "import asyncio\nline = SshConnection('strict')\nasync def many():\n"
            "    runs = [line.run(['sh', '-c', f'sleep 0.2; echo {n}']) for n in range(7)]\n"
            "    return [done.output.strip() for done in await asyncio.gather(*runs)]\n"
        )
        assert laptop.do("wait(many())") == [str(n) for n in range(7)]
        assert log.read_text().count("Accepted") == 1


# -- forwards, and cut links

SERVER = (
    "import http.server, sys\n"
    "class Handler(http.server.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        self.send_response(200); self.end_headers(); self.wfile.write(b'it is c1')\n"
    "    def log_message(self, *words): pass\n"
    "server = http.server.ThreadingHTTPServer((sys.argv[1], 0), Handler)\n"
    "print(server.server_port, flush=True)\nserver.serve_forever()\n"
)
GET = (
    "import socket, urllib.request\n"
    "def get(port):\n"
    "    url = f'http://127.0.0.1:{port}'\n"
    "    try: return urllib.request.urlopen(url, timeout=60).read().decode()\n"
    "    except OSError as error: return ''\n"
    "def get_unix(path):\n"
    "    with socket.socket(socket.AF_UNIX) as it:\n"
    "        it.settimeout(60); it.connect(path); it.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')\n"
    "        return it.makefile('rb').read().decode().splitlines()[-1]\n"
    "def free():\n"
    "    with socket.socket() as it: it.bind(('127.0.0.1', 0)); return it.getsockname()[1]\n"
)


@pytest.fixture
def there(machines: Machines) -> Iterator[int]:
    """The port of a web server on c1, which the laptop cannot reach directly."""
    words = [sys.executable, "-c", SERVER, machines.address("c1")]
    server = machines.start("c1", words, "alice", stdout=subprocess.PIPE)
    assert server.stdout is not None
    try:
        yield int(server.stdout.readline())
    finally:
        server.kill()
        server.wait()


def test_ports_and_sockets_are_forwarded_and_closed(
    machines: Machines, home: Path, laptop: RemotePython, there: int
):
    laptop.do(
        GET
        + "from pathlib import Path\nport, line = free(), SshConnection('login')\nwait(line.open())"
    )
    laptop.do(f"wait(line.forward(port, 'c1', {there}))")
    assert laptop.do("get(port)") == "it is c1"
    # The port is open on loopback only.
    port = laptop.do("port")
    listening = machines.run("laptop", ["ss", "-Hltn", f"sport = :{port}"]).split()
    assert f"127.0.0.1:{port}" in listening and len(listening) == 5
    path = home / "to: 100% c1"
    laptop.do(f"wait(line.forward(Path({str(path)!r}), 'c1', {there}))")
    assert laptop.do(f"get_unix({str(path)!r})") == "it is c1"
    assert path.stat().st_mode & 0o777 == 0o600
    why, message = trouble(laptop, f"SshConnection('login').forward(port, 'c2', {there})")
    assert "cannot forward" in message and str(port) in message
    laptop.do("wait(line.close())")
    assert laptop.do("get(port)") == "" and not path.exists()
    assert laptop.do("wait(line.alive())")
    # After the connection was ended on purpose, the error says what to do.
    laptop.do("wait(line.end())")
    why, message = trouble(laptop, f"line.forward(port, 'c1', {there})")
    assert why == "closed" and "open it first" in message


def test_a_cut_link_is_noticed_and_opened_again_with_its_forwards(
    machines: Machines, laptop: RemotePython, there: int
):
    laptop.do(GET + "import time\nport, line, told = free(), SshConnection('login'), []")
    laptop.do("kept = go(line.keep(lambda state, words: told.append([state, words])))")
    laptop.until("told")
    laptop.do(f"wait(line.forward(port, 'c1', {there}))")
    assert laptop.do("get(port)") == "it is c1"
    laptop.do("hanging = go(line.run(['sleep', '600']))")
    machines.unplug("login", "campus")
    try:
        assert laptop.until("told[1:]")[0][0] == "lost"
        # The running command fails with this reason, and a new command fails without waiting.
        message = laptop.do(
            "try: hanging.result(60)\nexcept SshError as error: said = str(error)\nsaid"
        )
        assert "was lost while `sleep` ran there" in message
        why, _ = trouble(laptop, "line.run(['hostname'])")
        assert why in ("lost", "unreachable")
        laptop.until("'it does not respond' in told[-1][1]")
        assert laptop.do("wait(line.alive())") is False
    finally:
        machines.plug("login", "campus")
    laptop.until("told[-1][0] == 'open'")
    assert laptop.until("get(port)") == "it is c1"
    assert laptop.do("wait(line.run(['hostname'])).output.strip()") == "login"
    states = [state for state, _ in laptop.do("told")]
    assert [states[0], states[-1]] == ["open", "open"] and set(states[1:-1]) == {"lost"}
    # No state is reported twice in a row.
    assert laptop.do("all(a != b for a, b in zip(told, told[1:]))")


def test_a_connection_reopened_by_another_process_is_used(
    machines: Machines, home: Path, laptop: RemotePython, there: int
):
    laptop.do(GET + "port, line, told = free(), SshConnection('login'), []")
    laptop.do("kept = go(line.keep(lambda state, words: told.append([state, words])))")
    laptop.until("told")
    laptop.do(f"wait(line.forward(port, 'c1', {there}))")
    with RemotePython(machines, "laptop", "root", settings(home)) as other:
        other.do(LINE + "line = SshConnection('login')\nwait(line.end())\nwait(line.open())")
        laptop.until("[state for state, _ in told] == ['open', 'lost', 'open']")
        assert laptop.until("get(port)") == "it is c1"


# -- failures


@pytest.mark.thorough
def test_too_many_logins_at_once_are_tried_again(
    machines: Machines, home: Path, laptop: RemotePython
):
    with another_sshd(machines, home, "MaxStartups 1:100:1\nLoginGraceTime 0") as log:
        # A silent connection occupies the only place until it is closed.
        hold = (
            "import socket\ngreeting = b''\n"
            # The server's process for an earlier connection may still occupy the place.
            "while not greeting.startswith(b'SSH'):\n"
            "    held = socket.create_connection(('10.88.0.10', 2222))\n"
            "    try: greeting = held.recv(99)\n"
            "    except OSError: greeting = b''\n"
        )
        laptop.do(hold)
        laptop.do("opening = go(SshConnection('strict').open())")
        until_refused(log)
        laptop.do("held.close()")
        laptop.do("opening.result(60)")
        laptop.do(hold)
        laptop.do("wait(SshConnection('strict').end())")
        why, message = trouble(laptop, "SshConnection('strict').open()")
        assert why == "busy" and "too many logins at once" in message
        assert "kex_exchange_identification" in message


def until_refused(log: Path) -> None:
    """Wait until the server has refused a connection because there are too many at once."""
    deadline = time.monotonic() + 60
    while "MaxStartups" not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


@pytest.mark.thorough
def test_twenty_log_in_at_once(machines: Machines, home: Path, laptop: RemotePython):
    names = [f"user{n}" for n in range(20)]
    # The default is 10:30:100; this server starts to refuse connections at three.
    with another_sshd(machines, home, "MaxStartups 3:30:100") as log:
        for name in names:
            hosts = f"Host {name}\n  HostName login\n  Port {PORT}\n  HostKeyAlias login\n"
            prepend(home, hosts)
        laptop.do(
            "import asyncio\nasync def everybody():\n"
            f"    lines = [SshConnection(name) for name in {names}]\n"
            "    await asyncio.gather(*(line.open() for line in lines))\n"
            "    done = await asyncio.gather(*(line.run(['whoami']) for line in lines))\n"
            "    await asyncio.gather(*(line.end() for line in lines))\n"
            "    return [each.output.strip() for each in done]\n"
        )
        # Three silent connections come first, so that logins are refused even if they are slow.
        laptop.do(
            "import socket\n"
            f"held = [socket.create_connection(('10.88.0.10', {PORT})) for _ in range(3)]\n"
            "greetings = [each.recv(99) for each in held]\n"
            "everybody = go(everybody())"
        )
        until_refused(log)
        laptop.do("for each in held: each.close()")
        # Refused logins were tried again and accepted.
        assert laptop.do("everybody.result(90)") == ["alice"] * 20
        assert log.read_text().count("Accepted") == 20


def test_a_changed_host_key_is_not_accepted(machines: Machines, home: Path, laptop: RemotePython):
    key = home / "another"
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    (home / "known").write_text("login " + key.with_suffix(".pub").read_text())
    prepend(home, f"Host *\n  UserKnownHostsFile {home}/known\n")
    why, message = trouble(laptop, "SshConnection('login').open()")
    assert why == "changed" and "ssh-keygen -R login" in message
    (home / "known").write_text("")
    why, message = trouble(laptop, "SshConnection('login').open()")
    assert why == "unknown key" and "compare the key" in message


def test_a_denied_key_and_a_wrong_name_are_told_apart(machines: Machines, laptop: RemotePython):
    assert trouble(laptop, "SshConnection('carol@login').open()")[0] == "denied"
    assert trouble(laptop, "SshConnection('no.such.machine').open()")[0] == "unknown host"
    why, message = trouble(laptop, f"SshConnection('{machines.address('c3')}').open()")
    assert why == "unreachable" and "VPN" in message
    # A host name in a profile is never taken for an option of ssh.
    trouble(laptop, "SshConnection('-oProxyCommand=touch /tmp/fooled').open()")
    assert laptop.do("import os\nos.path.exists('/tmp/fooled')") is False


# -- questions


@pytest.fixture
def locked(home: Path) -> None:
    """The laptop's key has a passphrase, and ssh asks about unknown host keys."""
    key = home / "locked"
    words = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "open sesame", "-f", str(key)]
    key.write_bytes((home.parent / "client" / "id_ed25519").read_bytes())
    key.chmod(0o600)
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    prepend(
        home,
        f"Host *\n  IdentityFile {key}\n  IdentitiesOnly yes\n  IdentityAgent none\n"
        f"  UserKnownHostsFile {home}/known\n  StrictHostKeyChecking ask\n",
    )


ASKED = (
    "from rankroom.ssh import questions\nfrom dataclasses import asdict\n"
    "def asked(word): return [q for q in questions.pending() if word in q.text]\n"
)


def test_another_process_can_answer_the_questions_of_ssh(
    machines: Machines, home: Path, locked: None, laptop: RemotePython
):
    laptop.do("told = []\nline = SshConnection('login')")
    laptop.do("opening = go(line.open(lambda *words: told.append(words)))")
    with RemotePython(machines, "laptop", "root", settings(home)) as lab:
        lab.do(ASKED)
        lab.until("asked('authenticity')")
        assert lab.do("[[q.host, q.secret] for q in asked('authenticity')]") == [["login", False]]
        file = next((home / "questions").glob("*.json"))
        assert file.stat().st_mode & 0o777 == 0o600
        assert (home / "questions").stat().st_mode & 0o777 == 0o700
        lab.do("questions.answer(asked('authenticity')[0].id, 'yes')")
        lab.until("asked('passphrase')")
        assert lab.do("[q.secret for q in questions.pending()]") == [True]
        lab.do("id = asked('passphrase')[0].id\nquestions.answer(id, 'open sesame')")
        laptop.do("opening.result(90)")
        assert laptop.do("wait(line.run(['hostname'])).output.strip()") == "login"
        assert laptop.do("[state for state, _ in told]") == ["asks", "asks"]
        assert "passphrase" in laptop.do("told[-1][1]")
        # No question is left, and no file has the answer.
        assert list((home / "questions").iterdir()) == []
        with pytest.raises(AssertionError, match="no longer open"):
            lab.do("questions.answer(id, 'again')")
    for file in home.rglob("*"):
        assert not file.is_file() or b"open sesame" not in file.read_bytes(), file


@pytest.mark.thorough
def test_questions_of_a_jump_host_do_not_count_towards_the_timeout(
    machines: Machines, home: Path, locked: None, laptop: RemotePython
):
    """Time that a question takes does not count towards the connection timeout."""
    laptop.do(ASKED + "opening = go(SshConnection('c2').open())")
    laptop.until("asked('authenticity')")
    time.sleep(CONNECT_TIMEOUT_S + 3)
    laptop.do(
        """
from rankroom.errors import UsageError
def answer():
    for each in questions.pending():
        try:
            known = "authenticity" in each.text
            questions.answer(each.id, "yes" if known else "open sesame")
        except UsageError:
            pass
    return opening.done()
"""
    )
    laptop.until("answer()")
    laptop.do("opening.result(0)")
    assert laptop.do("wait(SshConnection('c2').run(['hostname'])).output.strip()") == "c2"
    assert laptop.do("questions.pending()") == []


def test_refusing_a_question_ends_the_login_attempt(
    machines: Machines, home: Path, locked: None, laptop: RemotePython
):
    laptop.do(ASKED + "opening = go(SshConnection('login').open())")
    laptop.until("asked('authenticity')")
    laptop.do("questions.refuse(asked('authenticity')[0].id)")
    why, message = laptop.do(
        "try: opening.result(90)\nexcept SshError as error: said = [error.why, str(error)]\nsaid"
    )
    assert why == "refused" and "try again to be asked again" in message
    assert laptop.do("questions.pending()") == []


def test_an_unanswered_question_ends_the_login(machines: Machines, home: Path, locked: None):
    patience = {**settings(home), "RANKROOM_ASK_SECONDS": "1"}
    with RemotePython(machines, "laptop", "root", patience) as laptop:
        laptop.do(LINE)
        why, message = trouble(laptop, "SshConnection('login').open()")
        assert why == "unanswered" and "what ssh asked was not answered (The authent" in message
        # A connection that is kept open does not repeat the question.
        laptop.do(
            ASKED + "told = []\ngo(SshConnection('login').keep(lambda *words: told.append(words)))"
        )
        laptop.until("told and told[-1][0] == 'lost'")
        assert laptop.do("[state for state, _ in told]") == ["asks", "lost"]
        assert laptop.do("questions.pending()") == []


def test_a_password_is_asked_and_a_wrong_one_asked_again(
    machines: Machines, home: Path, laptop: RemotePython
):
    shadow = machines.root / "etc" / "shadow"
    before = shadow.read_text()
    words = ["openssl", "passwd", "-6", "-stdin"]
    hashed = subprocess.run(words, input="tomato", capture_output=True, text=True, check=True)
    line = f"bob:{hashed.stdout.strip()}:19000:0:99999:7:::"
    shadow.write_text(
        "\n".join([line, *(x for x in before.splitlines() if x[:4] != "bob:")]) + "\n"
    )
    options = "PasswordAuthentication yes\nPubkeyAuthentication no"
    try:
        with another_sshd(machines, home, options):
            laptop.do(ASKED + "line = SshConnection('bob@strict')\nopening = go(line.open())")
            for word in ("potato", "tomato"):
                laptop.until("asked('password')")
                assert laptop.do("asked('password')[0].secret")
                laptop.do(f"id = asked('password')[0].id\nquestions.answer(id, {word!r})")
                laptop.until("id not in [q.id for q in questions.pending()]")
            laptop.do("opening.result(90)")
            assert laptop.do("wait(line.run(['whoami'])).output.strip()") == "bob"
    finally:
        shadow.write_text(before)


def test_in_a_terminal_ssh_asks_there(machines: Machines, home: Path, locked: None):
    code = (
        "import asyncio\nfrom rankroom.ssh.host import place\nhere = place('login')\n"
        "asyncio.run(here.open())\n"
        "print('it is', asyncio.run(here.run(['hostname'])).output)"
    )
    own = [f"{name}={value}" for name, value in settings(home).items()]
    words = machines.words("laptop", ["env", *own, sys.executable, "-c", code], "root")
    child, terminal = pty.fork()
    if child == 0:
        os.execvp(words[0], words)
    try:
        read_until(terminal, "(yes/no")
        os.write(terminal, b"yes\n")
        read_until(terminal, "passphrase")
        os.write(terminal, b"open sesame\n")
        said = read_until(terminal, "it is login")
        assert "open sesame" not in said
    finally:
        os.close(terminal)
        os.waitpid(child, 0)


def read_until(terminal: int, word: str) -> str:
    said, deadline = "", time.monotonic() + 90
    while word not in said:
        ready = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0]
        assert ready, f"no {word!r} in {said!r}"
        said += os.read(terminal, 4096).decode()
    return said
