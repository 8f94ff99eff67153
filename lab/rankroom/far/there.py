"""The desk on the login node as its keeper here talks to it: questions, answers, what it tells."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections import deque
from collections.abc import Callable
from typing import Any

import rankroom
from rankroom import errors
from rankroom.errors import RankroomError, SshError, StartError
from rankroom.far import frames
from rankroom.far.frames import Head
from rankroom.scheduler import jobs
from rankroom.scheduler.site import Site
from rankroom.ssh.host import Host
from rankroom.system import commands, python_command

GREETS_S = 60.0  # a login node's file system may be slow
ALIVE_S = 2.0
ENDS_S = 1.0
Say = Callable[[Head, bytes], None]


class There:
    """One desk, until its line is cut."""

    def __init__(self, site: Site, place: Host, say: Say) -> None:
        self.greeting: Head = {}
        self._site = site
        self._place = place
        self._say = say
        self._said: deque[str] = deque(maxlen=20)
        self._waiting: dict[int, asyncio.Future[tuple[Head, bytes]]] = {}
        self._count = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Start the desk and hear who it is.

        Raises SshError where the line is cut, StartError with the remedy where there is no
        Rankroom, or another one.
        """
        argv = python_command.command("rankroom.far.desk", python=[self._site.environment.python])
        words = jobs.there(self._site, argv)
        self._process = await commands.start(self._place.words(words))
        self._tasks = [asyncio.create_task(self._hear_errors())]
        try:
            self.greeting = await asyncio.wait_for(self._greeting(), GREETS_S)
        except asyncio.TimeoutError:
            await self.close()
            raise StartError(self._failed(f"did not greet within {GREETS_S:.0f} s")) from None
        if not self.greeting:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._process.wait(), ENDS_S)
            code = self._process.returncode
            await self.close()
            raise self._no_desk(code)
        if (other := str(self.greeting[frames.GREETING])) != rankroom.__version__:
            await self.close()
            raise StartError(
                VERSIONS.format(
                    here=rankroom.__version__, there=other, where=self._where,
                    install=self._install(),
                )
            )  # fmt: skip
        self._tasks.append(asyncio.create_task(self._be_alive()))

    async def listen(self) -> None:
        """Take what the desk says, until it says nothing more."""
        stream = self._process.stdout
        assert stream is not None
        try:
            while line := await stream.readline():
                head = frames.parse(line)
                body = await stream.readexactly(head.get("bytes", 0))
                future = self._waiting.pop(head["id"], None) if "id" in head else None
                if future is not None and not future.done():
                    future.set_result((head, body))
                elif "say" in head:
                    self._say(head, body)
        except (ValueError, OSError, asyncio.IncompleteReadError):
            pass  # a line that is cut may be so in the middle of a message
        finally:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(SshError(CUT.format(where=self._where), "unreachable"))
            self._waiting.clear()

    async def ask(self, do: str, body: bytes = b"", **question: Any) -> tuple[Head, bytes]:
        """The desk's answer. Raises what the desk raised, SshError where the line is cut."""
        self._count += 1
        number = self._count
        future: asyncio.Future[tuple[Head, bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            await self._send({"id": number, "do": do, **question}, body)
            head, data = await future
        finally:
            self._waiting.pop(number, None)
        errors.raise_told(head)
        return head, data

    async def tell(self, do: str, **words: Any) -> None:
        """Say something that is not answered."""
        await self._send({"do": do, **words})

    async def close(self) -> None:
        """End the desk; it lets its runs go on."""
        for task in self._tasks:
            task.cancel()
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process.wait(), ENDS_S)
        await commands.end(self._process)

    async def _send(self, head: Head, body: bytes = b"") -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(frames.frame(head, body))
            await self._process.stdin.drain()
        except (OSError, RuntimeError):
            raise SshError(CUT.format(where=self._where), "unreachable") from None

    async def _greeting(self) -> Head:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if found := frames.greeting(line):
                return found
            self._said.append(line.decode("utf-8", "replace").rstrip())
        return {}

    async def _hear_errors(self) -> None:
        assert self._process.stderr is not None
        with contextlib.suppress(ValueError, OSError):
            while line := await self._process.stderr.readline():
                self._said.append(line.decode("utf-8", "replace").rstrip())

    async def _be_alive(self) -> None:
        """A desk that hears nothing lets its runs go."""
        with contextlib.suppress(SshError):
            while True:
                await asyncio.sleep(ALIVE_S)
                await self.tell("alive")

    @property
    def _where(self) -> str:
        return self._place.name or "this machine"

    @property
    def _command(self) -> str:
        return f"{self._site.environment.python} -m rankroom.far.desk"

    def _failed(self, how: str) -> str:
        said = "\n".join(self._said) or "(it said nothing)"
        return FAILED.format(command=self._command, where=self._where, how=how, said=said)

    def _no_desk(self, code: int | None) -> RankroomError:
        said = "\n".join(self._said)
        if code == 255 and self._place.name:
            return SshError(f"{CUT.format(where=self._where)}; ssh said:\n{said}", "unreachable")
        how = f"ended with status {code}"
        if "No module named" in said and "rankroom" in said:
            remedy = NONE_THERE.format(where=self._where, install=self._install())
        elif code == 127:
            remedy = NO_PYTHON.format(site=self._site.name, python=self._site.environment.python)
        else:
            remedy = OTHER.format(site=self._site.name)
        return StartError(f"{self._failed(how)}\n{remedy}")

    def _install(self) -> str:
        """The line that installs the same Rankroom there."""
        python = self._site.environment.python
        argv = [python, "-m", "pip", "install", f"rankroom=={rankroom.__version__}"]
        return shlex.join(argv)


CUT = "the connection to {where} is cut"
FAILED = "`{command}` on {where} {how}; it said:\n{said}"
NONE_THERE = (
    "Rankroom is not installed on {where}, in the environment that the site's profile names: "
    "there, run `{install}` (or install the wheel that `make dist` made here)"
)
VERSIONS = (
    "Rankroom {there} is on {where}, and {here} is here: both sides have to be the same. There, in "
    "the environment of the site's profile, run `{install}` (or install the wheel that `make dist` "
    "made here)"
)
NO_PYTHON = (
    "There is no `{python}` in the environment of the site's profile: set `python`, `venv`, "
    "`conda` or `modules` in its [environment]; `rankroom site check {site}` tries it step by step"
)
OTHER = "`rankroom site check {site}` tries each step of the way, and says which one fails"
