"""The login in a lab script's instructions: as configured, or the user at the submit host."""

from __future__ import annotations

import subprocess

import pytest

from rankroom.jupyter_job import lab_script
from rankroom.scheduler.site import Site

ENV = {"USER": "ada", "SLURM_SUBMIT_HOST": "login1"}
ASSIGNS = lab_script.template().read_text().partition(lab_script._SECOND_PART)[0]


def shown(head: str, **more: str) -> str:
    code = f"{head}\nprintf %s {SHOWN}"
    done = subprocess.run(["bash", "-c", code], env=ENV | more, capture_output=True, text=True)
    return done.stdout


# The first argument of the Python code that prints the instructions.
SHOWN = lab_script.template().read_text().partition("\n' \"")[2].split()[0]
SHOWN = f'"{SHOWN}'


@pytest.mark.parametrize(
    ("more", "login"),
    [
        ({}, "ada@login1"),
        ({"LOGIN": "eve@login.example.org"}, "eve@login.example.org"),
        ({"LOGIN": "site"}, "site"),  # a name of ssh's configuration, which may have a user
    ],
)
def test_the_plain_script_shows_the_login(more: dict[str, str], login: str):
    assert shown(ASSIGNS, **more) == login


@pytest.mark.parametrize(
    ("site", "login"), [(Site("x"), "ada@login1"), (Site("x", login="eve@there"), "eve@there")]
)
def test_the_script_of_a_site_shows_the_login(site: Site, login: str):
    head = lab_script.commands(site, "/labs")
    assert shown("\n".join(head[: head.index("")])) == login
