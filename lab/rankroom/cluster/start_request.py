"""A request to start ranks, from a magic, command or form: on which site, and in which job.

Magics and commands have parsed their options; a form sends what was typed, which is checked field
by field before anything is started.
"""

from __future__ import annotations

import dataclasses
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rankroom.cluster import launch, liveness
from rankroom.errors import UsageError
from rankroom.record.cluster_file import NAME_PATTERN, NAME_RULE, ClusterPaths
from rankroom.remote.queue import command
from rankroom.scheduler import pbs, site, slurm
from rankroom.scheduler.site import JOB_OPTIONS, Site
from rankroom.system import control_groups

# Fields of a form other than those of a job.
HERE = {"ranks", "auto_restart"}
_OPTIONS = {each.name: each for each in JOB_OPTIONS}


class StartRequestError(UsageError):
    """An invalid request: `errors` says by field what is wrong, and `message` states the first
    error for callers without fields."""

    def __init__(self, errors: dict[str, str], message: str = "") -> None:
        field, what = next(iter(errors.items()))
        super().__init__(message or f"{field} {what}")
        self.errors = errors


@dataclass(frozen=True)
class SiteChoice:
    """A site to start ranks on; `wrong` is why its profile is invalid, if it is."""

    name: str
    description: str = ""
    scheduler: str = "none"
    login: str = ""
    wrong: str = ""
    defaults: dict[str, str] = field(default_factory=dict)  # what its profile asks for


@dataclass(frozen=True)
class DryRun:
    """The job that would be submitted, or what is wrong with the request, by field."""

    script: str
    errors: dict[str, str] = field(default_factory=dict)


def choices() -> list[SiteChoice]:
    """Return the available sites, this machine first."""
    found = [_choice(name) for name in sorted(site.files())]
    return sorted(found, key=lambda choice: choice.scheduler != "none" or bool(choice.wrong))


def _choice(name: str) -> SiteChoice:
    try:
        one = site.load(name)
        job_on(one, {})
    except UsageError as error:
        return SiteChoice(name, wrong=str(error))
    return SiteChoice(name, one.description, one.scheduler, one.login, defaults=as_typed(one))


def dry_run(name: str, asked: Mapping[str, str]) -> DryRun:
    """Return what a start of ranks on the site called `name` would submit."""
    try:
        where = granted(site.load(name), asked)
        again = auto_restart(asked)
        return DryRun("" if where is None else script(where, asked.get("name", ""), again))
    except StartRequestError as error:
        return DryRun("", error.errors)


def site_asked(
    name: str | None, given: Mapping[str, Any], ranks: int | None = None, preload: str = ""
) -> Site | None:
    """Return `job_on` for the site of this name, or for none."""
    return job_on(None if name is None else site.load(name), given, ranks, preload)


def job_on(
    where: Site | None, given: Mapping[str, Any], ranks: int | None = None, preload: str = ""
) -> Site | None:
    """Return the site with the job options that are `given`, by field (None if not specified); None
    if ranks are to start on this machine, as without a site.

    Raises StartRequestError for job options where no job is submitted, UsageError for other invalid
    values, and for a site that is reached by ssh and has no scheduler.
    """
    if where is not None and where.scheduler != "none":
        found = where.asking(**given).preloading(preload)
        return found if ranks is None else found.with_ranks(ranks)
    if where is not None and where.login:
        profile = site.profile_of(where.name)
        raise UsageError(NO_SCHEDULER_THERE.format(login=where.login, profile=profile))
    words = NO_SITE if where is None else NO_JOB_THERE.format(site=where.name)
    unmeant = [option for option in JOB_OPTIONS if given.get(option.name) is not None]
    if unmeant:
        wrong = {option.name: words for option in unmeant}
        raise StartRequestError(wrong, f"{unmeant[0].flag} {words}")
    return None


def granted(where: Site, asked: Mapping[str, str]) -> Site | None:
    """Return `job_on` of a form's fields. Raises StartRequestError with what is wrong, by field."""
    errors: dict[str, str] = {}
    given: dict[str, Any] = {}
    for key, text in asked.items():
        if key in ("name", *HERE) or not text.strip():
            continue
        try:
            given[key] = _value(key, text.strip())
            where.asking(**{key: given[key]})
        except UsageError as error:
            given.pop(key, None)
            # The form shows the field's name beside the message.
            errors[key] = str(error).removeprefix(f"{where.name}: ").removeprefix(f"{key} ")
    if given.get("memory_per_node") and given.get("memory_per_cpu"):
        errors.setdefault("memory_per_cpu", ONE_MEMORY)
    name, number = asked.get("name", ""), asked.get("ranks", "").strip()
    if name and not NAME_PATTERN.fullmatch(name):
        errors["name"] = NAME_RULE
    elif name and liveness.alive(ClusterPaths(name).read()):
        errors["name"] = f"is taken: a cluster named {name} is there already"
    most = launch.most_ranks(control_groups.cores())
    sound = re.fullmatch(r"\d{1,9}", number) and 1 <= int(number) <= most
    if number and where.scheduler == "none" and not sound:
        errors["ranks"] = f"must be a number from 1 to {most} on this machine, not {number!r}"
    if errors:
        raise StartRequestError(errors)
    return job_on(where, given, ranks(asked))


def ranks(asked: Mapping[str, str]) -> int | None:
    """Return how many ranks are asked for; None if not specified. Raises StartRequestError."""
    text = asked.get("ranks", "").strip()
    if not re.fullmatch(r"\d{0,9}", text):
        raise StartRequestError({"ranks": f"must be a whole number, not {text!r}"})
    return int(text) if text else None


def auto_restart(asked: Mapping[str, str]) -> bool:
    """Return whether ranks that die are to be restarted automatically."""
    return asked.get("auto_restart", "") == "true"


def as_typed(where: Site) -> dict[str, str]:
    """Return the job options of the site's profile, as a user would type them."""
    job = dataclasses.asdict(where.job)
    return {key: str(job[key]) if job[key] else "" for key in _OPTIONS}


def script(where: Site, name: str, again: bool) -> str:
    """Return the job script that starts ranks on a site that has a scheduler."""
    how = {"slurm": slurm.script, "pbs": pbs.script}[where.scheduler]
    called = name or f"{where.name}-NAME"
    line = command(where, called, where.login or socket.gethostname(), "", again)
    return how(where, called, where.scratch, [line])


def _value(key: str, text: str) -> Any:
    if key not in _OPTIONS:
        raise UsageError(f"{key} is not a known field; the fields are {', '.join(_OPTIONS)}")
    if _OPTIONS[key].type is not int:
        return text
    if not re.fullmatch(r"-?\d{1,9}", text):
        raise UsageError(f"{key} must be a whole number, not {text!r}")
    return int(text)


NO_SITE = "applies to a job only: name a site with --site NAME"
NO_JOB_THERE = "applies to a job only, and {site} has no scheduler"
NO_SCHEDULER_THERE = (
    'ranks on {login} are started by its scheduler, and {profile} says `scheduler = "none"`: '
    "name the scheduler that is there, or remove `login` to start ranks on this machine"
)
ONE_MEMORY = "cannot be combined with memory per node: give only one of them"
