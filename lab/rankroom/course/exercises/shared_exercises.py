"""What is safe on a machine that is shared with others."""

from __future__ import annotations

import math
import os
import random
import shlex
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from rankroom.course.audited import on_audit_events
from rankroom.course.exercise import Learner, Wrong, exercise

# Ways to start a server, and what is unsafe about each; empty if nothing is.
_STARTS = (
    ("jupyter lab --ip=0.0.0.0 --port=8888", "it listens on all addresses of the node"),
    ("jupyter lab --ip='*'", "it listens on all addresses of the node"),
    ("jupyter lab --ip=$(hostname)", "everybody on the cluster reaches that address"),
    ("jupyter lab --ServerApp.ip=0.0.0.0", "it listens on all addresses of the node"),
    ("jupyter lab --ip=127.0.0.1 --IdentityProvider.token=$USER", "everybody knows your name"),
    ("jupyter lab --ip=127.0.0.1 --IdentityProvider.token=''", "there is no token"),
    ("jupyter lab --ip=127.0.0.1 --IdentityProvider.token=9f3a1c", "`ps` shows the token to all"),
    ("jupyter lab --ip=127.0.0.1", ""),
    ("jupyter lab --no-browser", ""),
    ("jupyter lab --config=/home/you/private/config.py --ip=127.0.0.1", ""),
)
# Python audit events: `os.chmod` covers Path.chmod and os.fchmod as well.
_MAY_CHANGE_MODES = ("os.chmod", "os.rename", "os.system", "os.posix_spawn", "subprocess.Popen")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_NO_DIFFERENCE = set("NTfnqvC46")  # ssh flags: no shell, in the background, verbosity, and so on


@exercise("shared.1", answer="tunnel", ranks=1)
def tunnel(learner: Learner) -> None:
    """Check the ssh command for a tunnel to a server on a compute node."""
    ask = learner.function("tunnel")
    here, port = learner.chance.randrange(8000, 9000), learner.chance.randrange(20000, 32000)
    node = f"nid{learner.chance.randrange(1000, 9999)}"
    found = ask(here, node, port, "you@login.example.org")
    login, leads = "you@login.example.org", f"{here}:{node}:{port}"
    right = [[leads, login], *([f"{own}:{leads}", login] for own in _LOOPBACK)]
    if _tunnel(str(found)) not in right:
        raise Wrong(f"it should be\nssh -L {leads} {login}\nand you have\n{found}")


def _tunnel(line: str) -> list[str]:
    """Return the arguments of -L and the destinations in an ssh command, in this order, wherever
    they stand; empty if it is not ssh, or has options that may change what the tunnel does."""
    with suppress(ValueError):
        words = iter(shlex.split(line))
        if next(words, "") != "ssh":
            return []
        leads, goes = [], []
        for word in words:
            if not word.startswith("-"):
                goes.append(word)
                continue
            flags, is_tunnel, rest = word[1:].partition("L")
            if set(flags) - _NO_DIFFERENCE:
                return []
            if is_tunnel:
                leads.append(rest or next(words, ""))
        return leads + goes
    return []  # unbalanced quotes


@exercise("shared.2", answer="is_unsafe", ranks=1)
def unsafe(learner: Learner) -> None:
    """Check which command lines are recognized as letting others in."""
    ask = learner.function("is_unsafe")
    starts = list(_STARTS)
    learner.chance.shuffle(starts)
    for line, why in starts:
        found = ask(line)
        if bool(found) != bool(why):
            if why:
                raise Wrong(f"`{line}` is not safe: {why}")
            raise Wrong(f"`{line}` is safe: only this machine reaches it, and the token is secret")


@exercise("shared.3", answer="write_secret", ranks=1)
def secret(learner: Learner) -> None:
    """Check that a file was never readable by others, and that its token cannot be guessed."""
    write = learner.function("write_secret")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "token"
        seen: list[int] = []
        before, now = os.umask(0), time.time_ns()
        try:
            tokens = []
            with _modes_seen(Path(folder)) as meanwhile:
                for number in range(4):
                    # In the last two calls, all that others may know or find out is the same: the
                    # random seed, the time, and the file's name.
                    own = path.with_suffix(f".{min(number, 2)}")
                    with _frozen_randomness(learner.seed, now) if number >= 2 else nullcontext():
                        write(own)
                    if not own.exists():
                        raise Wrong(f"there is no file {own.name}: write the token into it")
                    seen.append(_mode(own))
                    tokens.append(own.read_text().strip())
                    own.unlink()
        finally:
            os.umask(before)
    if any(mode & 0o077 for mode in seen):
        raise Wrong(f"others may read the file: its mode is {max(seen):o}, and should be 600")
    if any(mode & 0o077 for mode in meanwhile):
        raise Wrong(
            "the file is created first and made private later: others could read it for a moment"
        )
    if tokens[0] == tokens[1]:
        raise Wrong("each call writes the same token: make a new one with secrets.token_urlsafe()")
    if tokens[2] == tokens[3]:
        raise Wrong(
            "the token comes from `random`, the time or the file's name, which others can work "
            "out: secrets.token_urlsafe() is made for this"
        )
    if min(len(token) for token in tokens) < 20:
        chances = 64 ** min(len(token) for token in tokens)
        raise Wrong(
            f"a token of {min(map(len, tokens))} characters is one of some 10^"
            f"{math.log10(max(chances, 1)):.0f}: take 20 characters at least"
        )


@contextmanager
def _modes_seen(folder: Path) -> Iterator[list[int]]:
    """Collect the modes of the files in a folder within the block, before each rename or change of
    a mode, however it is made, and before each program that may make one."""
    found: list[int] = []

    def look(event: str, arguments: object) -> None:
        if event in _MAY_CHANGE_MODES:
            with suppress(OSError):
                found.extend(_mode(path) for path in folder.iterdir())

    with on_audit_events(look):
        yield found


@contextmanager
def _frozen_randomness(seed: int, now: int) -> Iterator[None]:
    """Within the block, stop the clock at `now` (epoch nanoseconds) and seed random numbers with
    `seed`; restore both afterwards."""
    numpy = sys.modules.get("numpy")
    kept, clock, clock_ns = random.getstate(), time.time, time.time_ns
    kept_of_numpy = numpy.random.get_state() if numpy else None
    random.seed(seed)
    if numpy:
        numpy.random.seed(seed % 2**32)
    time.time, time.time_ns = (lambda: now / 1e9), (lambda: now)
    try:
        yield
    finally:
        time.time, time.time_ns = clock, clock_ns
        random.setstate(kept)
        if numpy:
            numpy.random.set_state(kept_of_numpy)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
