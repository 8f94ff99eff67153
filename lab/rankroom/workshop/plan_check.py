"""Check a workshop's plan before learners come: one line for each thing that could go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import re
import shutil
import stat
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from rankroom.course.lessons import lesson
from rankroom.course.requirements import missing_here
from rankroom.display.words import counted
from rankroom.errors import RankroomError, UsageError
from rankroom.scheduler import site as sites
from rankroom.scheduler.same_machine import is_here
from rankroom.scheduler.scheduler_client import COMMAND_TIMEOUT_S, Scheduler
from rankroom.scheduler.site import Site
from rankroom.scheduler.site_check import Check, Step
from rankroom.ssh.host import place
from rankroom.system import control_groups, gpus
from rankroom.workshop.owned_files import make_folder
from rankroom.workshop.seat import MAX_SEAT_BYTES
from rankroom.workshop.workshop_folder import FOLDER_MODES, Folder, demand_own, demand_reachable
from rankroom.workshop.workshop_plan import SEATS_OPEN_BEFORE_START_S, Plan

HUB_S = 10.0
DAY_S = 86_400
ROOM_FOR_NEWS = 64 << 20  # bytes that messages and shown records may take


async def steps(plan: Plan, tell: Callable[[str], None]) -> AsyncIterator[Step]:
    """Check the parts of a plan, one after the other; `tell` is called with what is in progress."""
    parts: list[tuple[str, Callable[[Plan], Awaitable[Step]]]] = [
        ("dates", _dates), ("learners", _learners), ("folder", _folder), ("lessons", _lessons),
    ]  # fmt: skip
    if plan.way == "hub":
        parts.append(("hub", _hub))
    if plan.way == "node":
        parts.append(("this machine", _node))
    for name, attempt in parts:
        try:
            yield await attempt(plan)
        except RankroomError as error:
            yield Step(name, "failed", str(error))
    if plan.way != "node":
        async for step in _site(plan, tell):
            yield step


async def _dates(plan: Plan) -> Step:
    minutes = sum(each for _, each in plan.lessons)
    words = f"{counted(len(plan.lessons), 'lesson')} in {counted(minutes, 'minute')}"
    if plan.is_over(time.time()):
        raise UsageError(f"the workshop ended on {plan.ends:%d %B %Y, %H:%M}: correct `ends`")
    if plan.starts and plan.ends:
        words += f", from {plan.starts:%d %B, %H:%M} to {plan.ends:%d %B, %H:%M}"
        lasts = (plan.ends - plan.starts).total_seconds()
        if minutes * 60 > lasts:
            return Step("dates", "warned", f"{words}: the lessons take longer than that")
        # If it lasts several days, learners join again on each.
        needed = int(SEATS_OPEN_BEFORE_START_S + (lasts % DAY_S or DAY_S))
        if plan.way != "node" and sites.parse_time(plan.time) < needed:
            return Step("dates", "warned", f"{words}: {SHORT.format(time=sites.clock(needed))}")
    return Step("dates", "ok", words)


async def _learners(plan: Plan) -> Step:
    if not plan.learners:
        return Step("learners", "ok", "everybody who knows the folder")
    # By the system's own databases, so that LDAP accounts count.
    gone = [user for user in plan.learners if not _exists(user)]
    if gone:
        raise UsageError(f"there is no account {', '.join(gone)} on this machine")
    twice = sorted({user for user in plan.learners if plan.learners.count(user) > 1})
    homeless = [user for user in plan.learners if _has_no_home(user)]
    doubts = [f"named twice: {', '.join(twice)}"] if twice else []
    doubts += [NO_HOME.format(users=", ".join(homeless))] if homeless else []
    named = [(user, pwd.getpwnam(user).pw_name) for user in plan.learners]
    doubts += [OTHER_NAME.format(user=user, name=name) for user, name in named if user != name]
    if doubts:
        return Step("learners", "warned", "; ".join(doubts))
    count = len(plan.learners)
    words = f"all {count} accounts exist" if count > 1 else "its account exists"
    return Step("learners", "ok", words)


async def _folder(plan: Plan) -> Step:
    folder = Folder(plan.folder)
    demand_reachable(folder.path)
    try:
        is_there = folder.path.exists()
    except OSError as error:  # learners may enter the folder above it, but this account may not
        raise UsageError(f"cannot look into {folder.path.parent}: {error.strerror}") from None
    if is_there:
        if not folder.is_teacher():
            raise UsageError(f"{folder.path} is there, and belongs to {folder.teacher}")
        where = folder.path
    else:
        where = folder.path.parent
    demand_own(folder.path)
    room = len(plan.learners or range(100)) * MAX_SEAT_BYTES + ROOM_FOR_NEWS
    try:
        _try_modes(where)
        free = shutil.disk_usage(where).free
    except OSError as error:
        raise UsageError(f"cannot make it in {where}: {error.strerror or error}") from None
    if free < room:
        raise UsageError(f"{where} has {free >> 20} MB free, and {room >> 20} MB may be needed")
    out = [user for user in plan.learners if _exists(user) and not _may_enter(user, where)]
    if out:
        words = f"by its modes, {where} cannot be entered by {', '.join(out)}"
        return Step("folder", "warned", f"{words} (unless an access list lets them)")
    if loose := next((each for each in folder.path.parents if _group_may_replace(each)), None):
        words = f"the group of {loose} could put another folder in the place of {folder.path}"
        return Step("folder", "warned", f"{words}: `chmod +t {loose}` keeps them from it")
    state = "is there" if where == folder.path else "can be made"
    return Step("folder", "ok", f"{folder.path} {state}, and learners can enter it")


async def _lessons(plan: Plan) -> Step:
    lessons = [lesson(number) for number, _ in plan.lessons]
    if many := next((each for each in lessons if each.ranks > plan.ranks), None):
        raise UsageError(f"{many.name} needs {many.ranks} ranks, and a seat has {plan.ranks}")
    needs = {name for each in lessons for name in each.needs}
    packages = {name if ">" in name else name.partition(".")[0] for name in needs}
    gone = sorted(missing_here(sorted(packages)))
    if gone:
        return Step("lessons", "warned", f"this Python lacks {', '.join(gone)}")
    return Step(
        "lessons",
        "ok",
        "all packages they need are installed" if packages else "they need no packages",
    )


async def _hub(plan: Plan) -> Step:
    def ask() -> str:
        with urllib.request.urlopen(f"{plan.hub.rstrip('/')}/hub/api", timeout=HUB_S) as answer:
            return str(json.loads(answer.read(MAX_SEAT_BYTES))["version"])

    try:
        version = await asyncio.to_thread(ask)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{plan.hub} does not answer as JupyterHub: {error}") from None
    return Step("hub", "ok", f"JupyterHub {version} answers at {plan.hub}")


async def _node(plan: Plan) -> Step:
    if find_spec("jupyterlab") is None:
        raise UsageError("this Python has no JupyterLab: `pip install 'jupyterlab>=4.2,<5'`")
    cores, ranks = control_groups.cores(), plan.ranks * len(plan.learners)
    said = f"{counted(cores, 'core')}, for {counted(ranks or plan.ranks, 'rank')}"
    said += "" if ranks else " a learner"
    doubts = ["ranks share each core"] if ranks > 2 * cores else []
    if (there := gpus.visible_gpus()) < plan.gpus:
        raise UsageError(FEW_GPUS.format(there=counted(there, "GPU"), gpus=plan.gpus))
    if there and not plan.gpus:
        said += f"; {counted(there, 'GPU')}, hidden from learners: `gpus` is what each gets"
    elif plan.gpus:
        said += f"; {counted(there, 'GPU')}, and {plan.gpus} for each learner"
        if plan.gpus * len(plan.learners) > there:
            doubts.append("learners share GPUs")
        doubts += _shared_gpus(plan.ranks, plan.gpus)
    return Step("this machine", "warned" if doubts else "ok", "; ".join([said, *doubts]))


def _shared_gpus(ranks: int, count: int) -> list[str]:
    """Return a warning if a learner has fewer GPUs than ranks."""
    return [SHARED.format(ranks=ranks, gpus=counted(count, "GPU"))] if 0 < count < ranks else []


async def _site(plan: Plan, tell: Callable[[str], None]) -> AsyncIterator[Step]:
    try:
        site = plan.of_site()
    except RankroomError as error:
        yield Step("site", "failed", str(error))
        return
    if site.scheduler == "none":
        yield Step("site", "failed", NO_JOBS.format(site=plan.site))
        return
    if not site.name:  # a hub's own Slurm, which the plan alone describes
        site = replace(site, name="hub")
    for doubt in _shared_gpus(plan.ranks, site.job.gpus_per_node):
        yield Step("GPUs", "warned", doubt)
    if site.job.gpus_per_node > plan.ranks:
        words = MANY_GPUS.format(gpus=site.job.gpus_per_node, ranks=counted(plan.ranks, "rank"))
        yield Step("GPUs", "warned", words)
    if left := _left_behind(plan, site):
        file = sites.profile_of(plan.site)
        yield Step("profile", "warned", PRIVATE.format(file=file, keys=", ".join(left)))
    there = place("" if is_here(site) else site.login)
    is_reached, at = False, "site"
    try:
        async for step in Check(site, there, tell).steps(job=False):
            is_reached = is_reached or (step.name == "scheduler" and step.state == "ok")
            yield step
        if plan.learners and site.scheduler == "slurm" and is_reached:
            at = "associations"
            yield await _associations(plan, Scheduler(site, there))
        if plan.reservation and site.scheduler == "slurm":
            at = "reservation"
            yield await _reservation(plan, Scheduler(site, there))
    except RankroomError as error:
        yield Step(at, "failed", str(error))
    finally:
        await there.close()


def _left_behind(plan: Plan, site: Site) -> list[str]:
    """Return the keys that only the teacher's profile sets and the plan does not pass on: learners'
    jobs run without them."""
    is_shipped = (sites.shipped_folder() / f"{plan.site}.toml").is_file()
    if plan.way != "ssh" or is_shipped or plan.site not in sites.files():
        return []
    values = {
        "constraint": site.job.constraint,
        "extra": site.job.extra,
        "memory_per_cpu": site.job.memory_per_cpu,
        "modules": site.environment.modules,
        "setup": site.environment.setup,
        "container": site.container.image,
        "scratch": site.scratch != Site(site.name).scratch,
        "interface": site.interface,
    }
    # A plan can set these, but does not take them from a profile: they may be the teacher's own.
    personal = ("account", "qos", "reservation")
    values |= {key: getattr(site.job, key) for key in personal if not getattr(plan, key)}
    return [key for key, value in values.items() if value]


async def _associations(plan: Plan, scheduler: Scheduler) -> Step:
    """Check that Slurm's database knows the learners. Missing entries prove nothing: not all sites
    keep a database, and some show each user only their own entry."""
    charged = scheduler.site.job.account
    words = ["sacctmgr", "-nP", "show", "assoc", "where", f"user={','.join(plan.learners)}"]
    words += [f"account={charged}"] if charged else []
    done = await scheduler.call([*words, "format=user,account"], COMMAND_TIMEOUT_S)
    if not done.ok:
        why = done.tail(1) or "no answer"
        return Step("associations", "skipped", f"Slurm does not tell who may submit jobs: {why}")
    rows = [line.split("|") for line in done.output.splitlines()]
    known = {row[0].lower() for row in rows if len(row) == 2}  # stored in lower case
    out = [user for user in plan.learners if user.lower() not in known]
    to = f" with the account {charged}" if charged else ""
    if out:
        who = "the learners" if len(out) == len(plan.learners) else ", ".join(out)
        return Step("associations", "warned", f"Slurm shows no association of {who}{to}: {HIDDEN}")
    return Step("associations", "ok", f"all learners have one{to}")


async def _reservation(plan: Plan, scheduler: Scheduler) -> Step:
    """Check that the reservation covers the time and the learners of the workshop."""
    words = ["scontrol", "--oneliner", "show", "reservation", plan.reservation]
    done = await scheduler.call(["env", "SLURM_TIME_FORMAT=%s", *words], COMMAND_TIMEOUT_S)
    if not done.ok:
        raise UsageError(
            f"Slurm does not show the reservation {plan.reservation}, which may not exist, or have "
            f"ended: {done.output.strip()}"
        )
    found = dict(re.findall(r"(\w+)=(\S+)", done.output))
    begin, end = (_moment(found.get(key, "")) for key in ("StartTime", "EndTime"))
    if plan.starts and begin > plan.starts.timestamp():
        raise UsageError(f"{plan.reservation} begins {_clock(begin)}, after the workshop does")
    if plan.ends and end and end < plan.ends.timestamp():
        raise UsageError(f"{plan.reservation} ends {_clock(end)}, before the workshop does")
    users = found.get("Users", "(null)").split(",")
    # If access is by accounts or groups, only Slurm can tell.
    out = [user for user in plan.learners if user not in users]
    if users != ["(null)"] and found.get("Accounts", "(null)") == "(null)" and out:
        raise UsageError(f"{plan.reservation} is not for {', '.join(out)}")
    nodes = counted(_moment(found.get("NodeCnt", "")), "node")
    said = f"{plan.reservation} has {nodes} until {_clock(end)}"
    if plan.starts and begin > plan.starts.timestamp() - SEATS_OPEN_BEFORE_START_S:
        return Step("reservation", "warned", f"{said}; {LATE.format(begin=_clock(begin))}")
    return Step("reservation", "ok", said)


def _moment(text: str) -> int:
    return int(text) if text.isdigit() else 0  # a time that Slurm does not know


def _clock(moment: int) -> str:
    return time.strftime("on %a %d %b, %H:%M", time.localtime(moment))


def _exists(user: str) -> bool:
    with contextlib.suppress(KeyError):
        pwd.getpwnam(user)
        return True
    return False


def _has_no_home(user: str) -> bool:
    """Return whether an account is known to have no home."""
    try:
        return not stat.S_ISDIR(Path(pwd.getpwnam(user).pw_dir).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, KeyError):
        return False  # not even the path to it can be examined


def _may_enter(user: str, folder: Path) -> bool:
    """Return whether an account may enter a folder and those above it, by their modes."""
    about = pwd.getpwnam(user)
    groups = set(os.getgrouplist(user, about.pw_gid))
    for each in (folder, *folder.parents):
        found = each.stat()
        if found.st_uid == about.pw_uid:
            needed = stat.S_IXUSR
        else:
            needed = stat.S_IXGRP if found.st_gid in groups else stat.S_IXOTH
        if not found.st_mode & needed:
            return False
    return True


def _group_may_replace(folder: Path) -> bool:
    """Return whether a group may rename what others own in a folder. Where all users may, `open`
    refuses."""
    about = folder.stat()
    return bool(about.st_mode & stat.S_IWGRP and not about.st_mode & stat.S_ISVTX and about.st_gid)


def _try_modes(where: Path) -> None:
    """Create folders with the modes of a workshop's, and remove them again. Raises OSError."""
    trial = Path(tempfile.mkdtemp(prefix=".rankroom-", dir=where))
    try:
        for name, mode in FOLDER_MODES.items():
            make_folder(trial / name, mode)
    finally:
        shutil.rmtree(trial, ignore_errors=True)


NO_HOME = (
    "no home for {users}: unless the first login makes it, their notebooks have no place, and no "
    "job starts"
)
OTHER_NAME = "the system's name for {user} is {name}: use that in `learners`"
PRIVATE = (
    "only you have {file}: learners' jobs will lack its {keys}. Have it installed for everyone, "
    "beside the profiles that come with Rankroom, or send it to the learners"
)
LATE = (
    "it begins {begin}, and learners may join from an hour before the workshop: their jobs wait "
    "until then"
)
MANY_GPUS = "each learner's job takes {gpus} GPUs for {ranks}: set `gpus`, or more `ranks`"
HIDDEN = "their jobs may be refused. Ask the centre, as associations may only be hidden from you"
FEW_GPUS = "it has {there}, and each learner is to have {gpus}: correct `gpus`"
SHARED = (
    "{ranks} ranks share {gpus}: lessons work, but their measurements mean little. "
    "`gpus = {ranks}` gives each rank its own"
)
SHORT = (
    "a job that begins an hour before is over too early: set `time` to {time}, as jobs end at "
    "`ends` anyway"
)
NO_JOBS = (
    '{site} has no scheduler, so that no one can join: set `way` to "node" where all learners work '
    "on one machine, or `site` to one that has jobs"
)
