"""A learner's invitation: the plan in a workshop's folder, here or on a login node, and whether
there is a place for this account."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from rankroom import __version__
from rankroom.errors import UsageError
from rankroom.scheduler import site as sites
from rankroom.scheduler.site import Site
from rankroom.ssh.host import Host
from rankroom.workshop import seat, workshop_plan
from rankroom.workshop.owned_files import account
from rankroom.workshop.seat import OwnSeat, Seat
from rankroom.workshop.sharing import NOT_LISTED, OVER, WORKSHOP_VARIABLE
from rankroom.workshop.workshop_folder import NO_PLAN, Folder
from rankroom.workshop.workshop_plan import Plan

READ_TIMEOUT_S = 20.0
_MARK = "--- workshop ---"  # login shells may print greetings before it
# Print the owners of folder and plan, the user, and the last open or end news; then the plan.
_LOOK = f"""\
cd "$1" && echo "{_MARK}" && stat -c %U . && stat -c %U workshop.toml && id -un &&
{{ grep -hE '"kind": "(open|end)".*}}$' teacher/news.jsonl 2>/dev/null | tail -n 1; echo; }} &&
head -c 65537 workshop.toml
"""


@dataclass(frozen=True)
class Invitation:
    """A workshop that an account may join. `login` is the login node of its folder, empty for this
    machine; `user` is the account there, and `teacher` the owner of the folder."""

    plan: Plan
    folder: str
    login: str
    user: str
    teacher: str

    def demand_open(self, now: float) -> None:
        """Raise UsageError if there is no place for this account, now or at all, or if Rankroom is
        too old."""
        plan = self.plan
        if plan.learners and self.user not in (*plan.learners, self.teacher):
            raise UsageError(
                NOT_LISTED.format(user=self.user, name=plan.name, teacher=self.teacher)
            )
        if plan.is_over(now):
            raise UsageError(OVER.format(name=plan.name))
        if self.user != self.teacher:  # the teacher may try it the day before
            plan.demand_begun(now)
        if _version(__version__) < _version(plan.version):
            raise UsageError(
                OLD.format(name=plan.name, theirs=plan.version, ours=__version__,
                           python=sys.executable)
            )  # fmt: skip

    def site(self, now: float) -> Site:
        """Return the site with the job of a seat, whose environment names the workshop. Raises
        UsageError."""
        if self.login and self.plan.site not in sites.files():
            raise UsageError(NO_PROFILE.format(site=self.plan.site, login=self.login))
        found = self.plan.of_site(now)
        given = found.environment
        lines = (*given.setup, "cd", f"export {WORKSHOP_VARIABLE}={shlex.quote(self.folder)}")
        found = replace(found, environment=replace(given, setup=lines))
        return replace(found, login=self.login) if self.login else found

    @property
    def page(self) -> str:
        """The path of the notebook that is opened first, on the learner's server."""
        return f"lab/tree/{self.plan.first_notebook}"

    @property
    def hub_page(self) -> str:
        """The URL at which the hub opens that notebook."""
        return f"{self.plan.hub.rstrip('/')}/hub/user-redirect/{self.page}"


def at(where: str) -> tuple[str, str]:
    """Return the login node and the normalized folder of `LOGIN:FOLDER`; for a FOLDER on this
    machine, the login node is empty."""
    match = re.fullmatch(r"([\w.@-]+):(/.*)", where)
    if match is None:
        return "", os.path.normpath(Path(where).absolute())
    return match[1], os.path.normpath(match[2])


async def invitation(where: str, there: Host) -> Invitation:
    """Return the invitation to a workshop. `there` is the host of its folder. Raises UsageError,
    SshError."""
    login, path = at(where)
    if not login:
        folder = Folder(path)
        plan, user = folder.plan(), account(os.getuid())
        if folder.is_over():
            raise UsageError(OVER.format(name=plan.name))
        return Invitation(plan, path, "", user, folder.teacher)
    done = await there.run(["sh", "-c", _LOOK, "sh", path], timeout=READ_TIMEOUT_S)
    if done.timed_out:
        raise UsageError(SLOW.format(login=login, seconds=READ_TIMEOUT_S))
    lines = done.output.partition(f"{_MARK}\n")[2].split("\n", 4)
    if not done.ok or len(lines) < 5:
        raise UsageError(NO_PLAN.format(folder=f"{login}:{path}"))
    teacher, owner, user, said, text = lines
    if owner != teacher:
        raise UsageError(NO_PLAN.format(folder=f"{login}:{path}"))
    text = text.removeprefix("\n")
    plan = workshop_plan.parsed(Path(path, "workshop.toml"), text.encode())
    if said and (told := json.loads(said))["kind"] == "end" and told["until"] <= time.time():
        raise UsageError(OVER.format(name=plan.name))
    return Invitation(plan, path, login, user, teacher)


def job_of(folder: str, site: str) -> str:
    """Return the last job of this account's seat in this workshop; empty if there is none. A job
    that was submitted from another machine is found in the seat only."""
    kept = seat.read_choices()
    if kept.folder != folder:
        return ""
    if kept.site == site:
        return kept.job
    found = Seat.read(OwnSeat(Path(folder), kept.seat, kept.owner).path) if kept.seat else None
    return found.status.job if found is not None and found.uid == os.getuid() else ""


def keep_job(folder: str, site: str, job: str) -> None:
    """Store the seat's job, so that joining again finds it."""
    kept = seat.read_choices()
    if kept.folder != folder:
        kept = seat.SeatChoices(folder)
    seat.write_choices(replace(kept, site=site, job=job))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))


OLD = (
    "{name} was opened with Rankroom {theirs}, but {python} has {ours}. If that is an environment "
    "of your own, leave it (`deactivate`, `conda deactivate`), load the workshop's, and join again"
)
NO_PROFILE = (
    "there is no profile of {site} here, which says how Python is found there: write one "
    "(docs/sites.md), or log in to {login} and join there, which needs none"
)
SLOW = (
    "{login} has not answered within {seconds:g} s, so whether the workshop is there is unknown: "
    "try again"
)
