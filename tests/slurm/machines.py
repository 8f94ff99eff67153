"""A real Slurm cluster on this machine: laptop, login node, controller and compute nodes.

Each is a process in its own namespaces, with its own hostname, address, /tmp and processes; all but
the laptop share /home. Everything ends with the process that created it, however that happens, and
the host's own accounts, services and files are not changed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PROGRAMS = (
    "slurmctld", "slurmd", "sbatch", "munged", "sshd", "ssh", "ip", "nsenter", "unshare", "setpriv",
)  # fmt: skip
FILES = Path(__file__).parent / "testbed"
CHECKOUT = Path(__file__).parents[2]
PREFIX = "rankroom-slurm-"
UP_S = 120.0
PREFERRED = -10  # niceness: about ten times the processor time of other processes
AGAIN_S = 15.0  # for a node to become idle, before Slurm is told that it was down


def missing() -> str:
    """Why no test cluster can be made here; empty if one can."""
    if os.geteuid() != 0:
        return "the Slurm test cluster needs root"
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    absent = [each for each in PROGRAMS if shutil.which(each, path=path) is None]
    if absent:
        return f"the Slurm test cluster needs {', '.join(absent)}: `make set-up-test` as root"
    done = subprocess.run(["unshare", "-n", "-m", "-p", "-f", "true"], capture_output=True)
    return "" if done.returncode == 0 else "the Slurm test cluster needs to make namespaces"


# A site's own Python, which cannot import the package under test.
BARE = """#!/bin/sh
unset PYTHONPATH
exec /usr/bin/python3 "$@"
"""


class Machines:
    """The cluster. Call `up` first, and `down` at the end whatever happens."""

    def __init__(self, nodes: int = 4, gpus: int = 2, users: Sequence[str] = ("alice", "bob")):
        self.nodes = [f"c{n}" for n in range(1, nodes + 1)]
        self.gpus = gpus
        self.users = list(users)
        sweep()
        self.root = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self.root.chmod(0o755)
        self._machines: dict[str, subprocess.Popen[bytes]] = {}
        self._was_idle = False

    # -- start and end

    def up(self) -> None:
        """Start the cluster, and wait until all nodes are idle."""
        self._write_files()
        names = ["switch", "laptop", "ctl", "login", *self.nodes]
        for name in names:
            self._start(name)
        self.until(lambda: all(self._is(name, "up") for name in names), "machines")
        for bridge in ("cluster", "campus"):
            self._switch(f"link add {bridge} type bridge", f"link set {bridge} up")
        for name in names[1:]:
            self._wire(name)
        self.until(lambda: all(self._is(name, "ready") for name in names[1:]), "daemons")
        self.until_idle()

    def down(self) -> None:
        """End every process, and remove the folder."""
        for process in self._machines.values():
            process.kill()
        for process in self._machines.values():
            process.wait()
        self.until(lambda: not self._left(), "the end of all processes")
        shutil.rmtree(self.root, ignore_errors=True)

    def until_idle(self, *nodes: str) -> None:
        """Wait until these nodes are idle, or all.

        Slurm waits for minutes before it retries a node that did not answer when its job ended,
        unless it is told that the node was down.
        """
        ask = ["sinfo", "-h", "-N", "-t", "idle", "-p", "gpu", "-o", "%N"]
        asked = time.monotonic()

        def idle() -> bool:
            nonlocal asked
            taken = {*(nodes or self.nodes)} - {*self.run("ctl", ask).split()}
            if not taken:
                self._was_idle = True
                return True
            if not self._was_idle:
                return False  # they are still starting
            jobs = ["squeue", "-h", "-t", "R", "-w", ",".join(taken), "-o", "%i"]
            if time.monotonic() - asked > AGAIN_S and not self.run("ctl", jobs).split():
                asked = time.monotonic()
                for node in taken:
                    for state in (["State=DOWN", "Reason=test"], ["State=RESUME"]):
                        self.run("ctl", ["scontrol", "update", f"NodeName={node}", *state])
            return False

        try:
            self.until(idle, "idle nodes")
        except TimeoutError as error:
            jobs = self.run("ctl", ["squeue", "-h", "-o", "%i %T %N %r"])
            nodes = self.run("ctl", ["sinfo", "-h", "-N", "-o", "%N %T %E"])
            raise TimeoutError(f"{jobs}\n{nodes}\n{error}") from None

    def resume(self, node: str) -> None:
        """Return a drained node to service; the command is repeated until Slurm has done so."""
        ask = ["sinfo", "-h", "-N", "-n", node, "-p", "gpu", "-o", "%T"]

        def serves() -> bool:
            self.run("ctl", ["scontrol", "update", f"NodeName={node}", "State=RESUME"])
            return self.run("ctl", ask).strip() in ("idle", "mixed", "allocated")

        self.until(serves, f"{node} in service")

    # -- commands, files and processes

    def words(self, machine: str, command: Sequence[str | Path], user: str = "root") -> list[str]:
        """The command line that runs `command` on a machine, in the user's home."""
        enter = [
            "nsenter",
            "-t",
            str(self._first(machine)),
            *["-m", "-u", "-i", "-n", "-p", "-w", "--"],
        ]
        # In the machine's process tree, the command would otherwise outlive its caller.
        enter += ["setpriv", "--pdeathsig", "TERM"]
        home = "/root"
        if user != "root":
            enter += ["--reuid", self.id(user), "--regid", self.id(user), "--clear-groups"]
            home = f"/home/{user}"
        own = [
            f"HOME={home}", f"USER={user}", f"LOGNAME={user}", "SHELL=/bin/bash", "LANG=C.UTF-8",
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            f"PYTHONPATH={CHECKOUT / 'lab'}", "PYTHONDONTWRITEBYTECODE=1",
        ]  # fmt: skip
        own += [f"PYTHON={sys.executable}"]
        enter += ["env", "-i", *own, "sh", "-c", 'cd; exec "$@"', "sh"]
        return [*enter, *map(str, command)]

    def run(
        self, machine: str, command: Sequence[str | Path], user: str = "root", timeout: float = 60
    ) -> str:
        """What a command prints, on stdout and stderr, whatever its exit status."""
        return self._ended(machine, command, user, timeout).stdout

    def _ended(
        self, machine: str, command: Sequence[str | Path], user: str, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(machine, command, user), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=timeout,
        )  # fmt: skip

    def start(
        self, machine: str, command: Sequence[str | Path], user: str, **how: Any
    ) -> subprocess.Popen[str]:
        """Start a command and leave it running."""
        return subprocess.Popen(self.words(machine, command, user), text=True, **how)

    def home(self, user: str) -> Path:
        """The user's home, as seen from here."""
        return self.root / "home" / user

    def put(self, user: str, name: str, text: str) -> Path:
        """Write a file into the user's home; its path on the machines."""
        file = self.home(user) / name
        file.write_text(text)
        file.chmod(0o700)
        os.chown(file, int(self.id(user)), int(self.id(user)))
        return Path("/home") / user / name

    def id(self, user: str) -> str:
        return str(20001 + self.users.index(user))

    def processes(self, machine: str, user: str) -> list[str]:
        """The command lines of a user's processes on a machine."""
        found = self.run(machine, ["ps", "-u", self.id(user), "-o", "args="])
        return [line for line in found.splitlines() if line.strip()]

    def prefer(self, machine: str, user: str) -> None:
        """Give a user's processes on a machine, in sessions of their own, priority over all others
        on the host, as if the machine had its own processors."""
        space, uid = _space_of(Path(f"/proc/{self._first(machine)}")), int(self.id(user))
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended, or the kernel has no autogroups
                if process.stat().st_uid == uid and _space_of(process) == space:
                    os.setpriority(os.PRIO_PROCESS, int(process.name), PREFERRED)
                    (process / "autogroup").write_text(str(PREFERRED))

    def queue(self, machine: str, command: Sequence[str], user: str = "root") -> str:
        """The answer of squeue, which is repeated while the controller is too slow to answer."""
        said = [""]

        def answers() -> bool:
            done = self._ended(machine, command, user)
            said[0] = done.stdout
            return done.returncode == 0 and "error:" not in said[0]

        self.until(answers, "answer of squeue")
        return said[0]

    def address(self, machine: str) -> str:
        named = {"ctl": "10.77.0.2", "login": "10.77.0.10", "laptop": "10.88.0.2"}
        return named.get(machine) or f"10.77.1.{machine.removeprefix('c')}"

    # -- faults

    def crash(self, machine: str) -> None:
        """Kill everything on a machine at once, as a power failure does."""
        process = self._machines.pop(machine)
        process.kill()
        process.wait()
        for state in ("up", "ready"):
            (self.root / "run" / f"{machine}.{state}").unlink(missing_ok=True)

    def boot(self, machine: str) -> None:
        """Start a machine that crashed."""
        # The old cable has the same name, and is removed some time after the last process ended.
        self.until(lambda: not self._is_plugged(machine), f"end of {machine}")
        self._start(machine)
        self.until(lambda: self._is(machine, "up"), machine)
        self._wire(machine)
        self.until(lambda: self._is(machine, "ready"), f"the daemons of {machine}")

    def unplug(self, machine: str, network: str = "cluster") -> None:
        self._switch(f"link set {machine}-{network[:3]} down")

    def plug(self, machine: str, network: str = "cluster") -> None:
        self._switch(f"link set {machine}-{network[:3]} up")

    # -- construction

    def _start(self, name: str) -> None:
        (self.root / "spool" / name).mkdir(exist_ok=True)
        shown, closed = visible()
        environment = {
            "ROOT": str(self.root), "SHOWN": " ".join(shown), "CLOSED": " ".join(closed),
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        }  # fmt: skip
        with (self.root / "log" / f"machine-{name}.log").open("ab") as log:
            self._machines[name] = subprocess.Popen(
                # Each process dies with its parent, down to process 1.
                ["setpriv", "--pdeathsig", "KILL", "unshare", *UNSHARED,
                 "/bin/bash", str(FILES / "machine.sh"), name],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def _first(self, machine: str) -> int:
        """The process id, on the host, of a machine's process 1."""
        pid = self._machines[machine].pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def _wire(self, name: str) -> None:
        cables = [("cluster", "eth0", f"{self.address(name)}/16")]
        if name == "laptop":
            cables = [("campus", "eth0", "10.88.0.2/24")]
        if name == "login":
            cables.append(("campus", "eth1", "10.88.0.10/24"))
        first = self._first(name)
        for network, interface, address in cables:
            plug = f"{name}-{network[:3]}"
            self._switch(
                f"link add {plug} type veth peer name {interface} netns {first}",
                f"link set {plug} master {network} up",
            )
            lines = f"link set {interface} up\naddr add {address} dev {interface}\n"
            self._ip(first, lines)

    def _switch(self, *lines: str) -> None:
        self._ip(self._first("switch"), "\n".join(lines) + "\n")

    def _ip(self, machine: int, lines: str) -> None:
        words = ["nsenter", "-t", str(machine), "-n", "ip", "-batch", "-"]
        subprocess.run(words, input=lines, text=True, check=True, capture_output=True)

    def _is_plugged(self, name: str) -> bool:
        words = ["nsenter", "-t", str(self._first("switch")), "-n", "ip", "-o", "link", "show"]
        done = subprocess.run(words, text=True, check=True, capture_output=True)
        return f": {name}-" in done.stdout

    def _is(self, name: str, state: str) -> bool:
        return (self.root / "run" / f"{name}.{state}").exists()

    def _left(self) -> list[int]:
        """The host's ids of processes that have the cluster's folder in their environment."""
        found = []
        for file in Path("/proc").glob("[0-9]*/environ"):
            try:
                inside = f"\0ROOT={self.root}\0".encode() in b"\0" + file.read_bytes()
            except OSError:
                continue
            if inside:
                found.append(int(file.parent.name))
        return found

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + UP_S
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {what} after {UP_S:.0f} s; {self._logs()}")
            time.sleep(0.02)

    def _logs(self) -> str:
        return "\n".join(
            f"{log.name}: {log.read_text(errors='replace')[-500:]}"
            for log in sorted((self.root / "log").glob("*"))
            if log.stat().st_size
        )

    def _write_files(self) -> None:
        root = self.root
        for name in ("run", "etc/slurm", "home", "spool", "log", "state", "dev", "ssh", "client"):
            (root / name).mkdir(parents=True)
        for name in ("state", "log"):
            shutil.chown(root / name, "slurm", "slurm")
        self._write_accounts()
        self._write_names()
        self._write_keys()
        for number in range(self.gpus):
            # Slurm only accepts device files as GPUs; no hardware is behind these.
            os.mknod(root / "dev" / f"nvidia{number}", 0o020666, os.makedev(195, number))
        values = {
            "ROOT": root,
            "NODES": len(self.nodes),
            "GPUS": self.gpus,
            "LAB": CHECKOUT / "lab",
        }
        slurm = root / "etc" / "slurm"
        (slurm / "slurm.conf").write_text(filled("slurm.conf", values))
        (slurm / "cgroup.conf").write_text(
            "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/nonexistent\n"
        )
        devices = f"{root}/dev/nvidia[0-{self.gpus - 1}]"
        (slurm / "gres.conf").write_text(
            f"AutoDetect=off\nNodeName=c[1-{len(self.nodes)}] Name=gpu File={devices} "
            "Flags=nvidia_gpu_env\n"
        )
        (root / "ssh" / "sshd_config").write_text(filled("sshd_config", values))

    def _write_accounts(self) -> None:
        """Write the host's accounts and the test users, who exist only on the machines."""
        own = re.compile(f"^({'|'.join(self.users)}):")
        lines: dict[str, list[str]] = {}
        for name in ("passwd", "group", "shadow"):
            host = Path("/etc", name).read_text().splitlines()
            lines[name] = [line for line in host if not own.match(line)]
        for user in self.users:
            number = self.id(user)
            lines["passwd"].append(f"{user}:x:{number}:{number}::/home/{user}:/bin/bash")
            lines["group"].append(f"{user}:x:{number}:")
            # An account locked by `!` would be refused by sshd.
            lines["shadow"].append(f"{user}:*:19000:0:99999:7:::")
        for name, text in lines.items():
            file = self.root / "etc" / name
            file.touch(mode=0o600 if name == "shadow" else 0o644)
            file.write_text("\n".join(text) + "\n")
        services = ["passwd", "group", "shadow", "hosts", "services", "protocols"]
        (self.root / "etc" / "nsswitch.conf").write_text(
            "".join(f"{each}: files\n" for each in services)
        )

    def _write_names(self) -> None:
        inside = ["127.0.0.1 localhost"]
        inside += [f"{self.address(name)} {name}" for name in ("ctl", "login", *self.nodes)]
        (self.root / "etc" / "hosts").write_text("\n".join(inside) + "\n")
        (self.root / "etc" / "hosts.laptop").write_text(
            "127.0.0.1 localhost\n10.88.0.2 laptop\n10.88.0.10 login\n"
        )

    def _write_keys(self) -> None:
        munge = self.root / "etc" / "munge.key"
        munge.touch(mode=0o400)
        munge.write_bytes(os.urandom(128))
        shutil.chown(munge, "munge", "munge")
        client = self.root / "client"
        key, host = client / "id_ed25519", self.root / "ssh" / "hostkey"
        for file in (key, host):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(file)]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        public = " ".join(host.with_suffix(".pub").read_text().split()[:2])
        names = ["login", *self.nodes]
        (client / "known_hosts").write_text("".join(f"{name} {public}\n" for name in names))
        (client / "ssh_config").write_text(
            f"Host *\n  User {self.users[0]}\n  IdentityFile {key}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {client}/known_hosts\n  StrictHostKeyChecking yes\n"
            "Host c*\n  ProxyJump login\n"
        )
        for user in self.users:
            home = self.home(user)
            (home / ".ssh").mkdir(parents=True)
            shutil.copy(key, home / ".ssh" / "id_ed25519")
            shutil.copy(key.with_suffix(".pub"), home / ".ssh" / "authorized_keys")
            for each in (home, home / ".ssh", *(home / ".ssh").iterdir()):
                each.chmod(0o700 if each.is_dir() else 0o600)
                os.chown(each, int(self.id(user)), int(self.id(user)))


ENTERED = ["-m", "-u", "-i", "-n", "-p", "-w", "--"]
UNSHARED = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child=KILL"]


def _space_of(process: Path) -> Path:
    return (process / "ns" / "pid").readlink()


def sweep() -> None:
    """Remove the folders of clusters whose creators were killed, which ended all processes."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if not Path("/proc", folder.name.removeprefix(PREFIX).partition("-")[0]).exists():
            shutil.rmtree(folder, ignore_errors=True)


def filled(name: str, values: dict[str, Any]) -> str:
    """A file of the testbed with its @NAMES@ replaced."""
    text = (FILES / name).read_text()
    for key, value in values.items():
        text = text.replace(f"@{key}@", str(value))
    return text


def visible() -> tuple[list[str], list[str]]:
    """Folders that the machines' users must see, and their outermost parents closed to users."""
    shown = {CHECKOUT, Path(sys.prefix), Path(sys.base_prefix).resolve()}
    private = (Path("/tmp"), Path("/run"), Path("/dev/shm"))
    closed = set()
    for folder in shown:
        for each in folder.parents:
            if each not in private and not each.stat().st_mode & 0o001:
                closed.add(each)
    inmost = {each for each in closed if not closed & set(each.parents)}
    return sorted(map(str, shown)), sorted(map(str, inmost))
