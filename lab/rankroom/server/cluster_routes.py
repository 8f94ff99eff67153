"""Clusters over HTTP: their states, and the actions on them."""

from __future__ import annotations

import time
from dataclasses import asdict

from rankroom.cluster import actions, cluster_status
from rankroom.server.handler import PLAIN_TEXT, Handler, allowed
from rankroom.text.rank_ranges import parse_ranks


class Clusters(Handler):
    @allowed
    async def get(self) -> None:
        found = await self.threads.state("clusters", cluster_status.all_clusters)
        self.finish({"clusters": [asdict(each) for each in found], "now": time.time()})

    @allowed
    async def post(self) -> None:
        asked = self.words()
        site = asked.pop("site", "local")
        cwd = asked.pop("cwd", "") or None
        name = await self.threads.run(lambda: actions.start(site, asked, cwd))
        self.finish({"name": name})


class Look(Handler):
    @allowed
    async def get(self, name: str) -> None:
        self.finish(await self.threads.look(f"load of {name}", lambda: actions.look(name)))


class Log(Handler):
    @allowed
    async def get(self, name: str) -> None:
        text = await self.threads.look(f"log of {name}", lambda: actions.log(name))
        self.finish(text, set_content_type=PLAIN_TEXT)


class Stop(Handler):
    @allowed
    async def post(self, name: str) -> None:
        said = await self.threads.run(lambda: actions.stop(name))
        self.finish({"message": said or f"{name} was stopped"})


class Restart(Handler):
    @allowed
    async def post(self, name: str) -> None:
        text = self.words().get("ranks", "")
        size = (await self.threads.run(lambda: actions.find(name)))[1].size
        ranks = parse_ranks(text, size) if text else None
        self.finish({"message": await self.threads.run(lambda: actions.restart(name, ranks))})


class Resize(Handler):
    @allowed
    async def post(self, name: str) -> None:
        asked = self.words()
        await self.threads.run(lambda: actions.resize(name, asked))
        self.finish({"message": f"{name} is being restarted"})


class Interrupt(Handler):
    @allowed
    async def post(self, name: str) -> None:
        await self.threads.run(lambda: actions.interrupt(name))
        self.finish({"message": f"every rank of {name} was sent an interrupt"})


_CLUSTER = r"rankroom/clusters/([^/]+)"
ROUTES: list[tuple[str, type[Handler]]] = [
    (r"rankroom/clusters", Clusters),
    (_CLUSTER + "/look", Look),
    (_CLUSTER + "/log", Log),
    (_CLUSTER + "/stop", Stop),
    (_CLUSTER + "/restart", Restart),
    (_CLUSTER + "/resize", Resize),
    (_CLUSTER + "/interrupt", Interrupt),
]
