"""The kernel of a rank: runs the cells of distributed runs, and its own engine's requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ipyparallel.engine.kernel import IPythonParallelKernel
from IPython.core.error import StdinNotImplementedError
from traitlets import Type

from rankroom.rank.reporter import Reporter
from rankroom.rank.shell import RankShell
from rankroom.rank.world import World

_NO_INPUT = (
    "input() cannot be answered on a rank: nobody sits at it. "
    "Ask in a %%local cell and send the answer with `%ranks push NAME`."
)


class RankKernel(IPythonParallelKernel):
    """An engine's kernel that knows Rankroom's runs.

    A request whose metadata holds `rankroom` is a run's cell: `{run, start, ranks, epoch, count}`.
    """

    shell_class = Type(RankShell)
    reporter: Reporter
    world: World
    release: Callable[[], list[str]]

    def take_part(self, world: World, reporter: Reporter, release: Any) -> None:
        """Become a rank: called once, when the engine has registered."""
        self.world = world
        self.reporter = reporter
        self.release = release
        self.shell.attach(reporter)
        self.control_handlers["rankroom_request"] = self.rankroom_request
        self.greet()

    def greet(self) -> None:
        """The names a cell finds on every rank, unless the user defined them."""
        world = self.world
        for name in ("rank", "size", "local_rank", "device"):
            self.shell.user_ns.setdefault(name, getattr(world, name))

    async def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: Any = None,
        allow_stdin: bool = False,
        *,
        cell_meta: Any = None,
        cell_id: Any = None,
    ) -> dict[str, Any]:
        """Run a cell; one that belongs to a run reports its beginning, its end and its error."""
        run = (cell_meta or {}).get("rankroom")
        if run is None:
            return await self._execute(code, silent, store_history, user_expressions)
        self.world.rewire(run["epoch"])
        self.world.present = tuple(run["ranks"])
        self.shell.execution_count = run["count"]
        self.shell.failure = None
        self.reporter.begin(run["run"], run["start"])
        try:
            reply = await self._execute(code, False, True, {})
        finally:
            self.world.present = tuple(range(self.world.size))
            self.reporter.end(self._outcome())
        return {**reply, "traceback": []} if reply["status"] == "error" else reply

    async def _execute(self, code: str, silent: bool, history: bool, expressions: Any) -> Any:
        return await super().do_execute(code, silent, history, expressions, False)

    def _outcome(self) -> str:
        failure = self.shell.failure
        if failure is None:
            return "ok"
        return "interrupted" if failure["ename"] == "KeyboardInterrupt" else "error"

    def _publish_execute_input(self, *args: Any, **kwargs: Any) -> None:
        """Nobody listens: the run holds the source."""

    def raw_input(self, prompt: str = "") -> str:
        raise StdinNotImplementedError(_NO_INPUT)

    def getpass(self, prompt: str = "", stream: Any = None) -> str:
        raise StdinNotImplementedError(_NO_INPUT)

    def _forward_input(self, allow_stdin: bool = False) -> None:
        super()._forward_input(False)

    async def rankroom_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Requests that must be answered while a cell runs or hangs: they come to a thread."""
        content: dict[str, Any] = {"status": "ok"}
        try:
            if parent["content"]["do"] == "release":
                content["released"] = self.release()
        except Exception as error:
            content = {
                "status": "error",
                "ename": type(error).__name__,
                "evalue": str(error),
                "traceback": [],
            }
        self.session.send(stream, "rankroom_reply", content, parent=parent, ident=ident)
