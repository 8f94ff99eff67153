"""Site profiles: shipped ones, a user's own, and mistakes reported with their lines."""

import contextlib
import dataclasses
import io
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from checkout import ROOT
from rankroom.cli import main
from rankroom.errors import UsageError
from rankroom.notebook import cluster_magic
from rankroom.scheduler import jobs, site
from rankroom.scheduler.site import Environment, Site


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a profile of the user's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = site.own_folder()
    folder.mkdir(parents=True)

    def write(name: str, text: str) -> Path:
        path = folder / f"{name}.toml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("name", sorted(p.stem for p in site.shipped_folder().glob("*.toml")))
def test_shipped_profiles_are_sound(name: str):
    found = site.load(name)
    assert found.description
    assert found.login or name == "local"
    assert found.ranks_per_node >= 1


def test_the_tutorials_machines_have_shipped_profiles():
    assert {"local", "perlmutter", "neuron", "taurus-ml", "taurus-gpu2", "polaris"} <= set(
        site.files()
    )
    assert site.load("polaris").scheduler == "pbs"
    assert site.load("taurus-ml").job.memory_per_node == "250000"


def test_ones_own_profile_extends_the_shipped_one_of_the_same_name(own):
    own("perlmutter", 'extends = "perlmutter"\n[job]\naccount = "m1234_g"\n')
    found = site.load("perlmutter")
    assert (found.job.account, found.job.constraint) == ("m1234_g", "gpu")
    assert found.login == "perlmutter.nersc.gov"


def test_profiles_that_extend_each_other_are_refused(own):
    own("one", 'extends = "two"\n')
    own("two", 'extends = "one"\n')
    with pytest.raises(UsageError, match=r"two\.toml, line 1: extends there is no other site"):
        site.load("one")


def test_ssh_to_nodes_is_read_and_defaults_to_false(own):
    own("one", "ssh_to_nodes = true\n")
    assert site.load("one").ssh_to_nodes is True
    assert site.load("perlmutter").ssh_to_nodes is False


MISTAKES = {
    "a switch as text": (
        'ssh_to_nodes = "yes"',
        1,
        "ssh_to_nodes must be true or false, not 'yes'",
    ),
    "a switch for a number": ("[job]\nnodes = true", 2, "nodes must be a whole number, not True"),
    "unknown key": ('[job]\npartion = "gpu"', 2, "partion is not known (did you mean partition?)"),
    "unknown key at the top": ('logn = "x"', 1, "logn is not known (did you mean login?)"),
    "unknown table": ("[jobs]\nnodes = 2", 1, "jobs is not known (did you mean job?)"),
    "a number as text": ('[job]\n\nnodes = "2"', 3, "nodes must be a whole number, not '2'"),
    "a text as number": ("[job]\naccount = 7", 2, "account must be a string, not 7"),
    "no list": ('[environment]\nmodules = "x"', 2, "modules must be a list of strings"),
    "no nodes": ("[job]\nnodes = 0", 2, "nodes must be 1 or more, not 0"),
    "no time": ('[job]\ntime = "an hour"', 2, "time 'an hour' is not a time"),
    "both memories": (
        '[job]\nmemory_per_node = "1G"\nmemory_per_cpu = 100',
        3,
        "memory_per_cpu cannot be combined with memory_per_node",
    ),
    "memory": ('[job]\nmemory_per_node = "much"', 2, "memory_per_node must be megabytes"),
    "scheduler": ('scheduler = "lsf"', 1, "scheduler must be one of slurm, pbs, none, not 'lsf'"),
    "half a container": ('[container]\nimage = "x"', None, "runtime and image"),
    "an account of two lines": (
        '[job]\naccount = "a\\n#SBATCH -N 99"',
        2,
        "account must be a single word",
    ),
    "an option as login": ('login = "-oProxyCommand=x"', 1, "login cannot be"),
    "a table as a value": ("job = 3", 1, "job must be a table"),
    "a list as parent": (
        'extends = ["perlmutter"]',
        1,
        "extends must be a string, not ['perlmutter']",
    ),
    "another cluster": ('[job]\nextra = ["-M b"]', 2, "extra must not contain --clusters: squeue"),
    "another name": ('[job]\nextra = ["--job-name=x"]', 2, "extra must not contain --job-name"),
    "an array": ('[job]\nextra = ["--array=0-3"]', 2, "extra must not contain --array"),
    "another log of PBS": ('scheduler = "pbs"\n[job]\nextra = ["-o x"]', 3, "must not contain -o"),
    "a QoS of PBS": ('scheduler = "pbs"\n[job]\nqos = "high"', 3, "qos has no counterpart in PBS"),
    "a path for no shell": (
        '[container]\nruntime = "apptainer"\nimage = "~/a.sif"',
        3,
        "image cannot have ~ or $",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_refused_with_its_line(own, case: str):
    text, line, message = MISTAKES[case]
    path = own("mine", text)
    with pytest.raises(UsageError) as caught:
        site.load("mine")
    where = f"{path}, line {line}: " if line else f"{path}: "
    if line:
        assert str(caught.value).startswith(where)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        'scheduler = "pbs"\n[job]\nextra = ["-m abe", "-M ada@example.org"]',
        '[job]\nextra = ["--cluster-constraint=x", "--open-mode=append", "--account=x"]',
    ],
)
def test_extra_options_that_resemble_refused_ones_are_accepted(own, text: str):
    own("mine", text)
    assert site.load("mine").job.extra


def test_bad_toml_is_refused_with_the_file(own):
    path = own("mine", "[job\n")
    with pytest.raises(UsageError, match=str(path)):
        site.load("mine")


def test_an_unknown_site_is_answered_with_the_known_ones(own):
    with pytest.raises(UsageError, match=r"'perlmuter' \(did you mean perlmutter\?\).*polaris"):
        site.load("perlmuter")


def test_options_replace_what_the_profile_says_and_are_checked():
    found = site.load("perlmutter").asking(nodes=2, time="00:10:00", account=None)
    assert (found.job.nodes, found.seconds) == (2, 600)
    with pytest.raises(UsageError, match="perlmutter: nodes must be 1 or more"):
        found.asking(nodes=0)


TIMES = {
    "00:30:00": 1800,
    # In both Slurm and PBS, two numbers are minutes and seconds.
    "30:00": 1800,
    "1:00": 60,
    "90:00": 5400,
    "2-00:00:00": 172800,
    "1-12": 129600,
    "1-00:30": 88200,
    "48:00:00": 172800,
    "100:00:01": 360001,
}


@pytest.mark.parametrize("text", TIMES)
def test_time_limits_are_parsed_and_formatted(text: str):
    assert site.parse_time(text) == TIMES[text]
    assert site.parse_time(site.clock(TIMES[text])) == TIMES[text]


@pytest.mark.parametrize("text", ["", "90", "an hour", "1:60", "1:90:00", "1-", "-1:00", "1:2:3:4"])
def test_an_invalid_time_limit_is_refused(text: str):
    with pytest.raises(ValueError, match="is not a time: write hours:minutes:seconds"):
        site.parse_time(text)


def test_resizing_a_job_on_part_of_a_node_requests_whole_nodes_again():
    """Also if the profile was stored in a cluster's file in between."""
    whole = site.Site("hpc", job=site.Job(gpus_per_node=4))
    part = whole.with_ranks(2)
    assert (part.job.nodes, part.ranks_per_node, part.job.gpus_per_node) == (1, 2, 2)
    part = site.Site.from_json(json.loads(json.dumps(dataclasses.asdict(part))))
    for ranks, nodes in ((4, 1), (8, 2)):
        found = part.with_ranks(ranks)
        assert (found.job.nodes, found.ranks_per_node, found.job.gpus_per_node) == (nodes, 4, 4)
    smaller = part.asking(gpus_per_node=2, ranks_per_node=2).with_ranks(4)
    assert (smaller.job.nodes, smaller.job.gpus_per_node) == (2, 2)


# -- command options

ASKED = {
    "account": "a1", "partition": "gpu", "qos": "debug", "constraint": "v100", "reservation": "r1",
    "nodes": 3, "gpus_per_node": 2, "ranks_per_node": 2, "cpus_per_task": 5,
    "memory_per_node": "64G", "time": "02:00:00",
}  # fmt: skip


@pytest.mark.parametrize("command", ["batch", "lab", "%cluster start"])
def test_every_command_that_submits_a_job_takes_every_field(own, tmp_path, command):
    own("mine", 'login = "nowhere.invalid"\n[job]\nmemory_per_cpu = "1G"')
    line = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in ASKED.items())
    line = f"--site mine {line} --dry-run"
    if command == "%cluster start":
        with contextlib.redirect_stdout(io.StringIO()) as out:
            cluster_magic.start(line)
        script = out.getvalue()
    else:
        notebook = tmp_path / "train.ipynb"
        cell = {"cell_type": "code", "source": "1", "metadata": {}, "outputs": [], "id": "a"}
        text = {
            "cells": [{**cell, "execution_count": None}],
            "metadata": {},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        notebook.write_text(json.dumps(text))
        words = [command, *([str(notebook)] if command == "batch" else []), *line.split()]
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
        script = done.output
    asked = {**ASKED, "ntasks_per_node": ASKED["ranks_per_node"], "mem": ASKED["memory_per_node"]}
    for name in ("ranks_per_node", "memory_per_node"):
        del asked[name]
    for name, value in asked.items():
        assert f"#SBATCH --{name.replace('_', '-')}={value}\n" in script
    assert "mem-per-cpu" not in script


def test_the_start_form_has_every_field_of_a_job():
    source = ROOT / "extension" / "src" / "sidebar" / "fields.ts"
    form = source.read_text().partition("function jobKinds()")[2].partition("];")[0]
    assert set(re.findall(r"name: '(\w+)'", form)) == {option.name for option in site.JOB_OPTIONS}


def test_preload_comes_from_the_profile_unless_the_start_overrides_it():
    named = Site("x", environment=Environment(preload="numpy"))
    line = "export RANKROOM_PRELOAD={}"
    assert line.format("numpy") in jobs.body(named.preloading(""), [])
    assert line.format("torch,horovod.torch") in jobs.body(
        named.preloading("torch,horovod.torch"), []
    )
    assert not any("RANKROOM_PRELOAD" in each for each in jobs.body(Site("x"), []))
