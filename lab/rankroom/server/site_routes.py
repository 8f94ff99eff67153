"""Sites over HTTP: their list, and the job that a start on one of them would submit."""

from __future__ import annotations

from dataclasses import asdict

from rankroom.cluster import start_request
from rankroom.server.handler import Handler, allowed


class Sites(Handler):
    @allowed
    async def get(self) -> None:
        found = await self.threads.look("sites", start_request.choices)
        self.finish({"sites": [asdict(site) for site in found]})


class Script(Handler):
    @allowed
    async def post(self, name: str) -> None:
        asked = self.words()
        run = await self.threads.run(lambda: start_request.dry_run(name, asked))
        self.finish(asdict(run))


ROUTES: list[tuple[str, type[Handler]]] = [
    (r"rankroom/sites", Sites),
    (r"rankroom/sites/([^/]+)/script", Script),
]
