"""What the documents name exists: magics, targets, links, files, figures, settings.

Commands are checked in test_named_commands.py.
"""

import re
from types import SimpleNamespace

import pytest
from IPython.core.interactiveshell import InteractiveShell

import rankroom
from architecture import LAYERS
from checkout import ROOT
from rankroom import config
from rankroom.analysis.importers import trace_file, trace_repair
from rankroom.notebook.cluster_magic import ACTIONS
from rankroom.scheduler import status_cache
from rankroom.ssh.command import IDLE_TIMEOUT_S
from rankroom.supervisor import rendezvous, time_limit
from rankroom.supervisor.processes import restarts

PACKAGE = ROOT / "lab" / "rankroom"
PAGES = sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))
DOCS = {
    name: (ROOT / name).read_text("utf-8")
    for name in (
        *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "notebooks/quickstart.ipynb"),
        *PAGES,
    )
}
CONTRIBUTING = DOCS["CONTRIBUTING.md"]
EVERYTHING = "\n".join(DOCS.values())
MAGIC = re.compile(r"(?<![%\w])(%{1,2})([a-z_]+)((?: [^`\"\\\n|]*)?)")


@pytest.fixture(scope="module")
def shell():
    shell = InteractiveShell()
    rankroom.load_ipython_extension(shell)
    return shell


def test_every_magic_exists(shell):
    found = {(percent, name) for percent, name, _ in MAGIC.findall(EVERYTHING)}
    assert {("%%", "distributed"), ("%", "cluster"), ("%", "runs")} <= found
    for percent, name in found:
        kind = "cell" if percent == "%%" else "line"
        assert shell.find_magic(name, kind), f"{percent}{name} is not there"


def test_every_make_target_exists():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", EVERYTHING, re.M))
    assert {"lab", "demo", "test", "lint", "bench", "dist"} <= named <= targets


@pytest.mark.parametrize("name", DOCS)
def test_every_link_leads_somewhere(name):
    for target in re.findall(r"\]\(([^)#]+)\)", DOCS[name]):
        if "://" not in target:
            assert ((ROOT / name).parent / target).exists(), target


def test_every_path_in_contributing_exists():
    paths = set(re.findall(r"`([\w./-]+/[\w./-]*|[\w-]+\.(?:py|json|toml|lock))`", CONTRIBUTING))
    paths -= {"jax/jax_adapter.py", "lab/rankroom/labextension"}  # an example; not in a clone
    assert len(paths) > 15
    places = [ROOT, PACKAGE, PACKAGE / "rank", PACKAGE / "rank" / "frameworks"]
    for path in paths:
        assert any((place / path).exists() for place in places), path


def test_the_table_of_layers_matches_the_enforced_one():
    rows = re.findall(r"^\| \w* ?\| (`.+?) \|", CONTRIBUTING, re.M)
    told = [set(re.findall(r"`([\w/*]+)`", row)) for row in rows]
    there = {each.stem if each.is_file() else f"{each.name}/*" for each in modules_and_folders()}
    held = [{*names} & there for names in reversed(LAYERS)]
    assert told == [names for names in held if names]


def modules_and_folders():
    yield from PACKAGE.glob("[a-z]*.py")
    yield from (init.parent for init in PACKAGE.glob("*/__init__.py"))


# A page, a text in it with a figure left out, and the figure in the code.
FIGURES = [
    ("README.md", "is explained ({:g} unless set)", config.hang_seconds),
    ("README.md", "has been attached for {:g} hours", config.lease_hours),
    ("README.md", "those older than {:g} days are removed", config.keep_days),
    ("README.md", "the oldest beyond {:g} GB in all", lambda: config.keep_bytes() / 1e9),
    ("README.md", "up to {} times a minute", lambda: words(restarts.MAX_AUTO_RESTARTS)),
    ("README.md", "after the first {:g} million events", lambda: trace_file.MOST_EVENTS / 1e6),
    ("README.md", "after {} minutes of reading", lambda: words(trace_repair.READ_TIMEOUT_S / 60)),
    ("docs/ranks-on-a-site.md", "has been attached for {:g} hours", config.lease_hours),
    (
        "docs/ranks-on-a-site.md",
        "one `squeue` every {:g} seconds",
        lambda: status_cache.MIN_QUERY_INTERVAL_S,
    ),
    (
        "docs/sites.md",
        "(or `qstat`) every {} seconds",
        lambda: words(status_cache.MIN_QUERY_INTERVAL_S),
    ),
    (
        "docs/security.md",
        "{} minutes after its last use",
        lambda: words(IDLE_TIMEOUT_S / 60).title(),
    ),
    (
        "docs/security.md",
        "for {} minutes at most",
        lambda: words(rendezvous.STORE_OPEN_TIMEOUT_S / 60),
    ),
    ("docs/sidebar.md", "{} before its end", lambda: warnings().capitalize()),
    ("docs/in-an-allocation.md", "warned {} before", lambda: warnings().replace(" minutes", "", 1)),
]


def words(number):
    return {2: "two", 3: "three", 5: "five", 10: "ten"}[number]


def warnings():
    return " and ".join(f"{words(seconds / 60)} minutes" for seconds in time_limit.WARN_S)


@pytest.mark.parametrize(("page", "text", "figure"), FIGURES, ids=[text for _, text, _ in FIGURES])
def test_a_figure_in_the_docs_matches_the_code(page, text, figure, monkeypatch):
    for name in ("HANG_SECONDS", "LEASE_HOURS", "KEEP_DAYS", "KEEP_GB"):
        monkeypatch.delenv(f"RANKROOM_{name}", raising=False)
    assert text.format(figure()) in " ".join(DOCS[page].split())


def test_every_setting_is_documented_with_its_default():
    source = (PACKAGE / "config.py").read_text("utf-8")
    settings = re.findall(r' _(?:number|text)\("(\w+)"(?:, ([\d.]+))?', source)
    assert len(settings) > 5
    for name, default in settings:
        shown = f"{float(default):g} |" if default else ""
        assert f"| `RANKROOM_{name.upper()}` | `{name}` | {shown}" in DOCS["docs/settings.md"]


def test_every_documented_variable_is_used_in_the_code():
    code = "\n".join(file.read_text("utf-8") for file in PACKAGE.rglob("*.py"))
    code += (ROOT / "tools" / "machine.py").read_text("utf-8")
    for variable in set(re.findall(r"RANKROOM_[A-Z_]+", DOCS["docs/settings.md"])):
        assert variable in code, variable


def test_every_action_of_the_cluster_magic_is_in_its_help(shell):
    usage = shell.find_magic("cluster", "line").__doc__.partition("\n\n")[0]
    assert set(ACTIONS) <= set(re.findall(r"[a-z]+", usage))


def test_rankroom_is_installed_from_a_wheel_only():
    """On a package index, anybody could have registered the name."""
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "slurm").rglob("*"), ROOT / "notebooks" / "README.md"]
    texts = {str(file): file.read_text("utf-8") for file in files if file.is_file()} | DOCS
    found = 0
    for name, text in texts.items():
        for rest in re.findall(r"pip install ([^`;&|\n]*)", text):
            for word in re.findall(r"(?<!\S)\S*rankroom\S*", rest):
                assert ".whl" in word, (name, rest)
                found += 1
    assert found > 4


@pytest.mark.parametrize(
    ("left", "stops"), [(None, False), (0.0, True), (299.0, True), (301.0, False)]
)
def test_the_documented_loop_stops_when_time_runs_out(left, stops):
    """At and after the limit, `time_left()` is 0.0, which is false."""
    code = DOCS["docs/in-an-allocation.md"].partition("\nleft = ")[2].partition("\nif ")[0]
    ours = SimpleNamespace(time_left=lambda: left)
    names = {"rank": 0, "torch": SimpleNamespace(tensor=bool), "rankroom": ours}
    exec(f"left = {code}", names)
    assert names["stop"] is stops


def test_the_changelog_knows_this_version():
    assert f"\n## {rankroom.__version__}\n" in DOCS["CHANGELOG.md"]


def test_every_page_is_found_from_the_readme():
    assert "docs/security.md" in PAGES
    for page in PAGES:
        assert f"({page})" in DOCS["README.md"], page
