"""The library that closes ports: where it is stored, tested and loaded, and reports of failures."""

from __future__ import annotations

import os
import platform
import stat
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import another_user
from rankroom import config
from rankroom.rank import open_ports
from rankroom.reporting.spans import SpanRecorder
from rankroom.supervisor.processes import port_guard
from rankroom.system import preloaded, socket_owner


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch, home: Path, tmp_path: Path) -> Path:
    """Return the folder in /tmp that is used for a home with a space in its path."""
    folder = tmp_path / "rankroom-of-a-user"
    own = config.home() / "native"
    monkeypatch.setattr(
        config, "without_spaces", lambda wanted: folder if wanted == own else wanted
    )
    monkeypatch.setattr(port_guard, "TMP", tmp_path)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return folder


def refuse(monkeypatch: pytest.MonkeyPatch, *refused: Path) -> None:
    """Make these folders appear to be another user's."""
    ours = config.make_own

    def make_own(folder: Path) -> None:
        if folder in refused:
            raise config.NotPrivateError(config.NOT_YOURS.format(folder=folder))
        ours(folder)

    monkeypatch.setattr(config, "make_own", make_own)


def test_a_private_folder_is_used_if_another_user_owns_the_usual_one(
    native: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    native.mkdir()
    refuse(monkeypatch, native)
    made = port_guard.library()
    assert made is not None
    folder = made.parent
    assert folder.parent == tmp_path and folder.name.startswith(f"rankroom-{os.getuid()}-")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert port_guard.library() == made  # no other folder was created


def test_the_session_folder_is_used(native: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    refuse(monkeypatch, native)
    made = port_guard.library()
    assert made is not None and made.parent == tmp_path / "rankroom-native"


def test_the_refused_folder_is_named_if_no_other_can_be_made(
    native: Path, monkeypatch: pytest.MonkeyPatch
):
    refuse(monkeypatch, native)
    monkeypatch.setattr(port_guard, "TMP", Path("/proc"))
    [(name, why)] = port_guard.environment({}).items()
    assert name == preloaded.UNGUARDED
    assert why == config.NOT_YOURS.format(folder=native)


def test_an_unreadable_library_folder_is_replaced_by_another(native, monkeypatch):
    exists = Path.exists

    def refuse(self: Path, **how: bool) -> bool:
        if self.parent == native:
            raise PermissionError(13, os.strerror(13), str(self))
        return exists(self, **how)

    monkeypatch.setattr(Path, "exists", refuse)
    made = port_guard.library()
    assert made is not None and made.parent != native


@pytest.mark.parametrize(
    ("compiler", "why"),
    [
        ("gcc '-O2", 'CC, "gcc \'-O2", is not a valid command'),
        ("/no/such/cc", "it could not be compiled with /no/such/cc: "),
        ("/bin/false", "it could not be compiled with /bin/false: "),
        ("/bin/true", "it wrote no output file"),
    ],
)
def test_a_compiler_that_does_not_work_is_named(
    native: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, why: str
):
    monkeypatch.setenv("CC", compiler)
    [(name, said)] = port_guard.environment({"LD_PRELOAD": "/usr/lib/other.so"}).items()
    assert name == preloaded.UNGUARDED and why in said


def test_a_missing_compiler_is_given_as_the_reason(native: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    assert port_guard.environment({}) == {preloaded.UNGUARDED: port_guard.NO_COMPILER}


def test_an_inherited_reason_is_cleared_once_the_library_is_available(home: Path):
    env = port_guard.environment({preloaded.UNGUARDED: port_guard.NO_COMPILER})
    assert env[preloaded.UNGUARDED] == "" and "port_guard" in env["LD_PRELOAD"]


def test_the_library_is_tried_once_per_machine_and_boot(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    made = port_guard.library()
    assert made is not None
    tried: list[Path] = []
    monkeypatch.setattr(port_guard, "_try", tried.append)
    monkeypatch.setattr(port_guard, "BOOT", tmp_path / "boot")
    for boot in ("first", "second"):
        (tmp_path / "boot").write_text(boot)
        assert port_guard.library() == port_guard.library() == made
    monkeypatch.setattr(port_guard.socket, "gethostname", lambda: "another-node")
    assert port_guard.library() == made
    assert tried == [made, made, made]
    (tmp_path / "boot").unlink()  # a container may not reveal it
    assert port_guard.library() == port_guard.library() == made
    assert len(tried) == 5


def test_a_library_that_does_not_work_after_a_boot_is_not_used(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    made = port_guard.library()
    assert made is not None
    made.write_bytes(b"")
    monkeypatch.setattr(port_guard, "BOOT", tmp_path / "another-boot")
    monkeypatch.setattr(port_guard, "TMP", Path("/proc"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    why = port_guard.environment({})[preloaded.UNGUARDED]
    assert "it does not work on this machine" in why and str(made.parent) in why


def test_startup_messages_of_python_do_not_disable_the_library(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """A .pth file that a removed package left, for example, prints an error at each start."""
    venv.create(tmp_path / "venv", symlinks=True)
    [packages] = (tmp_path / "venv/lib").glob("python*/site-packages")
    (packages / "left.pth").write_text("import no_such_module\n")
    python = str(tmp_path / "venv/bin/python")
    said = subprocess.run([python, "-I", "-c", ""], capture_output=True, text=True, check=True)
    assert "left.pth" in said.stderr
    monkeypatch.setattr(sys, "executable", python)
    assert port_guard.environment({}).get(preloaded.UNGUARDED, "") == ""


def test_the_library_compiles_with_an_old_c_standard(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CC", "gcc -std=gnu90")
    assert port_guard.library() is not None


def test_each_c_library_version_has_its_own_build(home: Path, monkeypatch: pytest.MonkeyPatch):
    made = port_guard.library()
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.17"))
    older = port_guard.library()
    assert made is not None and older is not None
    assert made != older and "-glibc-2.17-" in older.name


def test_an_unloadable_library_is_removed_from_ld_preload_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    named = tmp_path / "port_guard-x86_64-glibc-2.99-0123.so"
    own = {"LD_PRELOAD": f"{named}:/usr/lib/other.so"}
    env = preloaded.without_missing(own)
    assert env["LD_PRELOAD"] == "/usr/lib/other.so"
    assert env[preloaded.UNGUARDED].startswith(f"{named} is not on this node: another node")
    named.touch()
    assert preloaded.without_missing(own)[preloaded.UNGUARDED] == (
        f"{named} cannot be loaded on this node, whose C library may be older"
    )
    assert preloaded.without_missing({"LD_PRELOAD": "/usr/lib/other.so"}) == {}
    monkeypatch.setattr(preloaded, "is_guarded", lambda: True)
    assert preloaded.without_missing(own) == {}


@pytest.mark.parametrize(
    ("guarded", "told", "why", "says"),
    [
        (False, True, "there is no C compiler", "is not in use, because there is no C compiler"),
        (False, True, "", "which may be in a container"),
        (True, False, "", "its kernel does not reveal who owns a connection"),
        (True, True, "", ""),
    ],
)
def test_the_note_about_open_ports_names_the_cause(
    monkeypatch: pytest.MonkeyPatch, guarded: bool, told: bool, why: str, says: str
):
    recorder = SpanRecorder()
    monkeypatch.setattr(open_ports, "recorder", recorder)
    monkeypatch.setattr(open_ports, "_told", set())
    monkeypatch.setattr(preloaded, "is_guarded", lambda: guarded)
    monkeypatch.setattr(socket_owner, "tells_owners", lambda: told)
    # A library that is named here may still not be loaded.
    monkeypatch.setenv("LD_PRELOAD", "/home/native/port_guard-x86_64.so")
    monkeypatch.setenv(preloaded.UNGUARDED, why)
    monkeypatch.delenv("RANKROOM_PEERS", raising=False)
    for _ in range(2):
        open_ports.note_open_ports("a framework")
    notes = recorder.new_notes()
    assert len(notes) == bool(says)
    assert all(says in each and "other users of this machine" in each for each in notes)


LISTENS = """
import socket, sys
door = socket.create_server(("127.0.0.1", 0))
print(door.getsockname()[1], flush=True)
sys.stdin.readline()
"""
CONNECTS = """
import socket, sys
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5)
    print("there")
except ConnectionRefusedError:
    print("refused")
"""


@pytest.mark.parametrize(
    ("user", "variable", "value", "found"),
    [
        (another_user.UID, "MASTER_PORT", "{}", "refused"),
        (another_user.UID, "TF_CONFIG", '{{"cluster": {{"worker": ["127.0.0.1:{}"]}}}}', "refused"),
        # Another user's service, on a port that the ranks do not use.
        (another_user.UID, "MASTER_PORT", "1{}", "there"),
        (another_user.UID, "TF_CONFIG", '{{"cluster": {{"worker": ["127.0.0.1:{}0"]}}}}', "there"),
        (os.geteuid(), "MASTER_PORT", "{}", "there"),
    ],
)
def test_ranks_cannot_connect_to_their_port_if_another_user_listens_on_it(
    home: Path, user: int, variable: str, value: str, found: str
):
    """Another user may listen on the port chosen for rank 0 before rank 0 does."""
    with another_user.start(LISTENS, uid=user) as other:
        assert other.stdout is not None
        port = other.stdout.readline().strip()
        env = {**os.environ, **port_guard.environment({}), "RANKROOM_BIND": "127.0.0.1"}
        env[variable] = value.format(port)
        done = subprocess.run(
            [sys.executable, "-c", CONNECTS, port], env=env, capture_output=True, text=True
        )
        other.communicate("\n")
    assert (done.stdout, done.stderr) == (f"{found}\n", "")
