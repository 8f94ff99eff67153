"""A site: an HPC system described by a TOML profile, shipped in slurm/sites or the user's own.

Nothing here contacts a machine; a mistake in a profile is reported with its line.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from rankroom import config
from rankroom.errors import UsageError

Scheduler = Literal["slurm", "pbs", "none"]
Runtime = Literal["shifter", "apptainer", "podman-hpc", "charliecloud"]
_TIME_PATTERN = re.compile(r"(?:(\d+):)?(\d+):([0-5]\d)")
_DAYS_PATTERN = re.compile(r"(\d+)-(\d+)(?::([0-5]\d))?(?::([0-5]\d))?")
_MEMORY_PATTERN = re.compile(r"\d+[KMGT]?")
# A name in a job script's header or on a command line; a newline would start a line of its own.
_WORD_PATTERN = re.compile(r"[^\s'\"`$\\;&|<>]*")


def _option(default: Any, metavar: str, help: str) -> Any:
    """Return a field of `Job` that commands also take as an option."""
    return field(default=default, metadata={"metavar": metavar, "help": help})


@dataclass(frozen=True)
class Job:
    """What a job requests unless the user says otherwise."""

    account: str = _option("", "NAME", "Whose budget pays for the job.")
    partition: str = _option("", "NAME", "The partition, or queue.")
    qos: str = _option("", "NAME", "The quality of service.")
    constraint: str = _option("", "WORD", "A feature that nodes must have.")
    reservation: str = _option("", "NAME", "Nodes that were set aside.")
    nodes: int = _option(1, "N", "Compute nodes.")
    gpus_per_node: int = _option(0, "N", "GPUs of each node; each gets a rank.")
    # 0: one per GPU, or 2 without GPUs
    ranks_per_node: int = _option(0, "N", "Ranks on each node.")
    # 0: as the scheduler decides
    cpus_per_task: int = _option(0, "N", "Cores for each rank.")
    memory_per_node: str = _option("", "64G", "Megabytes, or a number with K, M, G or T.")
    memory_per_cpu: str = _option("", "4G", "The same for each core; instead of the node's.")
    time: str = _option("01:00:00", "HH:MM:SS", "How long the job may run.")
    extra: tuple[str, ...] = ()  # further options, as after #SBATCH or #PBS


@dataclass(frozen=True)
class JobOption:
    """A field of `Job` as an option of every command that submits one: `--gpus-per-node N`."""

    name: str
    type: type
    metavar: str
    help: str

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


JOB_OPTIONS = tuple(
    JobOption(each.name, type(each.default), **each.metadata)
    for each in dataclasses.fields(Job)
    if each.metadata
)


@dataclass(frozen=True)
class Environment:
    """What makes Python with Rankroom available in a job, in this order."""

    modules: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()  # lines of shell
    venv: str = ""
    conda: str = ""
    python: str = "python"
    preload: str = ""  # modules that each node's agent imports for its ranks


@dataclass(frozen=True)
class Container:
    """The container that ranks run in; none without an image."""

    runtime: Runtime | Literal[""] = ""
    image: str = ""
    options: tuple[str, ...] = ()
    python: str = "python"


@dataclass(frozen=True)
class FullNode:
    """The ranks and GPUs of a full node, if the job requests only part of one; else 0."""

    ranks: int = 0
    gpus: int = 0


@dataclass(frozen=True)
class Site:
    """One HPC system, and how jobs run on it."""

    name: str
    description: str = ""
    scheduler: Scheduler = "slurm"
    login: str = ""  # as ssh takes it; empty: this machine
    scratch: str = "~/.rankroom"  # where jobs write; compute nodes and login node share it
    interface: str = ""  # network interface of Gloo and NCCL between nodes
    ssh_to_nodes: bool = False  # whether users may ssh to the nodes of their jobs
    job: Job = field(default_factory=Job)
    environment: Environment = field(default_factory=Environment)
    container: Container = field(default_factory=Container)
    full_node: FullNode = field(default_factory=FullNode)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Site:
        """Return a site that was written as JSON. Raises ValueError or TypeError."""
        parts = {"job": Job, "environment": Environment, "container": Container}
        for key, kind in [*parts.items(), ("full_node", FullNode)]:
            if key not in data:  # written by an earlier version
                continue
            values = {k: tuple(v) if isinstance(v, list) else v for k, v in data[key].items()}
            data[key] = kind(**values)
        return cls(**data)

    @property
    def ranks_per_node(self) -> int:
        """The number of ranks on each node."""
        return self.job.ranks_per_node or self.job.gpus_per_node or 2

    @property
    def seconds(self) -> int:
        """The time that a job requests."""
        return parse_time(self.job.time)

    def preloading(self, modules: str) -> Site:
        """Return this site with `modules` ("torch,horovod.torch") preloaded, if any are named."""
        named = replace(self.environment, preload=modules or self.environment.preload)
        return replace(self, environment=named)

    def with_ranks(self, ranks: int) -> Site:
        """Return this site with a job for `ranks` ranks in all, as many on each node as before.

        Fewer than that share one node. Raises UsageError if they cannot be divided evenly.
        """
        full = self.full_node
        if not full.ranks:
            full = FullNode(self.ranks_per_node, self.job.gpus_per_node)
        each = full.ranks
        if ranks < 1 or (ranks > each and ranks % each):
            raise UsageError(UNEVEN.format(ranks=ranks, each=each))
        is_part = ranks < each
        job = replace(
            self.job, nodes=max(1, ranks // each), ranks_per_node=min(ranks, each),
            gpus_per_node=min(ranks, full.gpus) if is_part else full.gpus,
        )  # fmt: skip
        return replace(self, job=job, full_node=full if is_part else FullNode())

    def asking(self, **options: Any) -> Site:
        """Return this site with fields of its job replaced. Raises UsageError for bad values."""
        chosen = {key: value for key, value in options.items() if value is not None}
        # A request for memory per node replaces one per CPU in the profile, and vice versa.
        if chosen.keys() & {"memory_per_node", "memory_per_cpu"}:
            chosen = {"memory_per_node": "", "memory_per_cpu": "", **chosen}
        full = self.full_node
        if chosen.keys() & {"ranks_per_node", "gpus_per_node"}:
            full = FullNode()
        site = replace(self, job=replace(self.job, **chosen), full_node=full)
        _check(site, lambda text: UsageError(f"{self.name}: {text}"))
        return site


def load(name: str) -> Site:
    """Return the site called `name`, from the user's own profile or a shipped one.

    Raises UsageError with the list of sites, or with the line of a mistake in the profile.
    """
    profiles = files()
    if name not in profiles:
        near = difflib.get_close_matches(name, profiles, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UsageError(NO_SITE.format(name=name, hint=hint, names=", ".join(sorted(profiles)),
                                        own=own_folder()))  # fmt: skip
    return _read(name, profiles, ())


def files() -> dict[str, Path]:
    """Return the profiles by name; a user's own replaces a shipped one."""
    found: dict[str, Path] = {}
    for folder in (shipped_folder(), own_folder()):
        if folder.is_dir():
            found |= {path.stem: path for path in sorted(folder.glob("*.toml"))}
    return found


def profile_of(name: str) -> Path:
    """Return the user's own profile for the site called `name`: users change the site there."""
    return own_folder() / f"{name}.toml"


def own_folder() -> Path:
    """Return the folder with the user's own profiles."""
    return config.config_file().with_name("sites")


def shipped_folder() -> Path:
    """Return the folder with the profiles of Rankroom, in the package or in the checkout."""
    inside = Path(__file__).parents[1] / "slurm" / "sites"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "slurm" / "sites"


def parse_time(text: str) -> int:
    """Return `[hours:]minutes:seconds` or `days-hours[:minutes[:seconds]]` in seconds.

    Two numbers are minutes and seconds, as for Slurm and PBS. Raises ValueError.
    """
    days = hours = minutes = seconds = "0"
    if (match := _DAYS_PATTERN.fullmatch(text)) is not None:
        days, hours, minutes, seconds = match.groups("0")
    elif (match := _TIME_PATTERN.fullmatch(text)) is not None:
        hours, minutes, seconds = match.groups("0")
    if match is None or (hours != "0" and int(minutes) > 59):
        raise ValueError(f"{text!r} is not a time: write hours:minutes:seconds, like 01:30:00")
    return ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)


def clock(seconds: int) -> str:
    """Format a duration as hh:mm:ss, which means the same to every scheduler."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest:02}"


def _read(name: str, profiles: Mapping[str, Path], before: tuple[Path, ...]) -> Site:
    path = profiles[name]
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the site profile {path}: {error}") from None
    profile = ProfileText(path, text)
    base = Site(name)
    parent = profile.data.pop("extends", None)
    if parent is not None:
        if not isinstance(parent, str):
            raise profile.wrong("extends", f"must be {_a(str)}, not {parent!r}")
        # A user's profile may extend the shipped one that it replaces.
        known = dict(profiles)
        if parent == name:
            known[name] = shipped_folder() / f"{name}.toml"
        if parent not in known or known[parent] in (path, *before) or not known[parent].is_file():
            raise profile.wrong("extends", f"there is no other site {parent!r}")
        base = replace(_read(parent, known, (*before, path)), name=name)
    return profile.over(base)


class ProfileText:
    """The text of a TOML profile, and on which line each key is."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._lines = text.splitlines()
        try:
            self.data: dict[str, Any] = config.parsed(text)
        except ValueError as error:
            raise UsageError(f"{path}: {error}") from None

    def over(self, base: Site) -> Site:
        """Return `base` with this profile's values."""
        parts: dict[str, Any] = {}
        for key, value in self.data.items():
            if key in ("job", "environment", "container"):
                if not isinstance(value, dict):
                    raise self.wrong(key, f"must be a table: write [{key}] above its lines")
                part = getattr(base, key)
                parts[key] = replace(part, **self.values(value, part, f"[{key}]"))
            elif isinstance(value, dict):
                raise self.unknown(key, ["job", "environment", "container"], "tables")
        plain = {key: value for key, value in self.data.items() if not isinstance(value, dict)}
        site = replace(base, **self.values(plain, base, "the profile"), **parts)
        _check(site, lambda text: self.wrong(text.partition(" ")[0], text.partition(" ")[2]))
        return site

    def values(self, given: dict[str, Any], base: Any, where: str) -> dict[str, Any]:
        """Return `given` as values for the fields of the dataclass `base`. Raises UsageError for an
        unknown key, and for a value of the wrong type."""
        kinds = {each.name: getattr(base, each.name) for each in dataclasses.fields(base)}
        kinds = {key: kind for key, kind in kinds.items() if not dataclasses.is_dataclass(kind)}
        if where == "the profile":
            del kinds["name"]
        for key, value in given.items():
            if key not in kinds:
                raise self.unknown(key, kinds, f"keys of {where}")
            wanted = type(kinds[key])
            if wanted is tuple:
                if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
                    raise self.wrong(key, 'must be a list of strings, like ["one", "two"]')
                given = {**given, key: tuple(value)}
            elif wanted is str and isinstance(value, int) and key.startswith("memory"):
                given = {**given, key: str(value)}
            elif not isinstance(value, wanted) or isinstance(value, bool) != (wanted is bool):
                raise self.wrong(key, f"must be {_a(wanted)}, not {value!r}")
        return given

    def unknown(self, key: str, valid: Iterable[str], what: str) -> UsageError:
        """Return the error for an unknown key."""
        valid = sorted(valid)
        near = difflib.get_close_matches(key, valid, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        return self.wrong(key, f"is not known{hint}; {what}: {', '.join(valid)}")

    def wrong(self, key: str, what: str) -> UsageError:
        """Return the error for a key's value, with its line."""
        pattern = re.compile(rf"""\s*(\[\s*)?["']?{re.escape(key)}["']?\s*[\].=]""")
        line = next((n for n, text in enumerate(self._lines, 1) if pattern.match(text)), None)
        where = f"{self._path}, line {line}" if line else str(self._path)
        return UsageError(f"{where}: {key} {what}")


def _check(site: Site, wrong: Any) -> None:
    """Raise `wrong("KEY what is wrong with it")` for an invalid value."""
    job = site.job
    for key, value, choices in (
        ("scheduler", site.scheduler, get_args(Scheduler)),
        ("runtime", site.container.runtime, ("", *get_args(Runtime))),
    ):
        if value not in choices:
            raise wrong(f"{key} must be one of {', '.join(filter(None, choices))}, not {value!r}")
    if job.memory_per_node and job.memory_per_cpu:
        raise wrong("memory_per_cpu cannot be combined with memory_per_node: give only one of them")
    for key in ("memory_per_node", "memory_per_cpu"):
        if getattr(job, key) and not _MEMORY_PATTERN.fullmatch(getattr(job, key)):
            raise wrong(f"{key} must be megabytes, or a number with K, M, G or T: 60000, 64G")
    for key, least in (("nodes", 1), ("gpus_per_node", 0), ("ranks_per_node", 0),
                       ("cpus_per_task", 0)):  # fmt: skip
        value = getattr(job, key)
        if not isinstance(value, int) or value < least:
            raise wrong(f"{key} must be {least} or more, not {value!r}")
    try:
        if parse_time(job.time) == 0:
            raise wrong("time must be greater than 0")
    except ValueError as error:
        raise wrong(f"time {error}") from None
    for key in ("account", "partition", "qos", "constraint", "reservation"):
        if not _WORD_PATTERN.fullmatch(getattr(job, key).replace("&", "").replace("|", "")):
            raise wrong(
                f"{key} must be a single word, without quotes or shell characters, not "
                f"{getattr(job, key)!r}"
            )
    for option, pattern, why in _FORBIDDEN_EXTRA_OPTIONS.get(site.scheduler, ()):
        if any(re.match(rf"\s*({pattern})", line) for line in job.extra):
            raise wrong(f"extra must not contain {option}: {why}")
    if site.scheduler == "pbs":
        for key, instead in (("qos", "partition"), ("memory_per_cpu", "memory_per_node")):
            if getattr(job, key):
                raise wrong(f"{key} has no counterpart in PBS: use {instead}")
    for key, lines in (("extra", job.extra), ("setup", site.environment.setup)):
        if any("\n" in line for line in lines):
            raise wrong(f"{key} is a list of lines: one of them holds a line break")
    if not _WORD_PATTERN.fullmatch(site.login) or site.login.startswith("-"):
        raise wrong(f"login cannot be {site.login!r}: it is a host as ssh takes it")
    for key, words in (("image", [site.container.image]), ("options", site.container.options)):
        if any(word.startswith("~") or "$" in word for word in words):
            raise wrong(f"{key} cannot have ~ or $, as no shell replaces them: write the path out")
    if bool(site.container.runtime) != bool(site.container.image):
        raise wrong("runtime and image of a container go together")


# What `extra` must not contain: the option, its pattern, and why.
_FORBIDDEN_EXTRA_OPTIONS = {
    "slurm": (
        (
            "--clusters",
            r"-M|--clusters?(?=[=\s]|$)",
            "squeue and scancel would ask another cluster for the job",
        ),
        ("--job-name", r"-J|--job-name\b", "the job is found by the name that it is given"),
        ("--output", r"-o|--output\b", "the job's log is looked for where Rankroom has it written"),
        ("--array", r"-a|--array\b", "Rankroom follows a single job"),
        ("hetjob", r"(hetjob|packjob)\b", "Rankroom follows one job, not its parts"),
    ),
    "pbs": (
        ("-N", r"-N", "the job is found by the name that it is given"),
        ("-o", r"-o", "the job's log is looked for where Rankroom has it written"),
        ("-J", r"-J", "Rankroom follows a single job"),
    ),
}


def _a(kind: type) -> str:
    return {str: "a string", int: "a whole number", bool: "true or false"}.get(kind, kind.__name__)


def expand(path: str) -> str:
    """Replace a leading `~` by `$HOME`, which a job's shell expands within double quotes."""
    return "$HOME" + path[1:] if path == "~" or path.startswith("~/") else path


UNEVEN = (
    "{ranks} ranks cannot be divided evenly, {each} to a node: ask for a multiple of {each}, or "
    "give --nodes and --ranks-per-node"
)
NO_SITE = (
    "there is no site {name!r}{hint}: there are {names}. Your own profiles go to {own}/NAME.toml"
)
