"""Imports go downward only: the table of layers is checked against the source."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import architecture
import rankroom
from architecture import DEBT, LAYERS, ONLY

ROOT = Path(rankroom.__file__).parent

FRAMEWORKS = {"torch", "tensorflow", "keras", "horovod", "numpy"}
# Modules that compute and draw may import NumPy at the top; others import them when needed.
COMPUTES, NUMPY_TOO = ("analysis/", "display/picture"), {"numpy"}


def modules() -> list[str]:
    """Every module of the package as `errors` or `rank/engine`; the package itself is left out.

    So is horovod_build/edits/added: those files become part of Horovod's own source.
    """
    paths = (path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
    paths = (path for path in paths if "horovod_build/edits/added" not in path.as_posix())
    return sorted(
        str(path.with_suffix("")).removesuffix("/__init__")
        for path in paths
        if path.name not in ("__main__.py",) and str(path) != "__init__.py"
    )


def place(module: str) -> str:
    return module.partition("/")[0] + "/*" if (ROOT / module.partition("/")[0]).is_dir() else module


def layer(name: str) -> int:
    found = [i for i, names in enumerate(LAYERS) if name in names]
    assert found, f"{name} is in no layer: add it to LAYERS"
    return found[0]


def imports(module: str, top_only: bool = False) -> Iterator[str]:
    """Dotted names that a module imports, also inside functions unless `top_only`."""
    file = ROOT / f"{module}.py"
    tree = ast.parse((file if file.exists() else ROOT / module / "__init__.py").read_text())
    for node in tree.body if top_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(module: str) -> set[str]:
    """Modules of the package that `module` imports."""
    found = set()
    for name in imports(module):
        path = name.replace(".", "/").removeprefix("rankroom/")
        if name.startswith("rankroom."):
            while path and path not in KNOWN:
                path = path.rpartition("/")[0]
            if path:
                found.add(path)
    return found - {module}


KNOWN = set(modules())


@pytest.mark.parametrize("module", sorted(KNOWN))
def test_imports_go_downward(module: str):
    here = place(module)
    wrong = {
        other
        for other in own_imports(module)
        if layer(place(other)) > layer(here) or place(other) not in ONLY.get(here, {place(other)})
    }
    excused = {b for a, b in DEBT if a == module}
    assert wrong <= excused, f"{module} may not import {sorted(wrong - excused)}"


def test_the_architecture_picture_matches_the_imports():
    drawn = architecture.PICTURE.read_text()
    assert drawn == architecture.draw(), "run `python tools/architecture.py`"


def test_every_excused_import_still_exists():
    for module, other in DEBT:
        assert other in own_imports(module), f"{module} → {other} is paid: take it off DEBT"


def test_every_package_has_a_docstring():
    for file in ROOT.rglob("__init__.py"):
        if "edits/added" not in file.as_posix():
            assert ast.get_docstring(ast.parse(file.read_text("utf-8"))), file


def test_a_package_imports_what_its_docstring_says():
    checked = 0
    imports = architecture.package_imports()
    for file in ROOT.glob("*/__init__.py"):
        doc = " ".join((ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").split())
        named = re.search(r"Imports [^.]*?the packages? ((?:\w+, )*\w+(?: and \w+)?)\.", doc)
        if named and "below" not in named[1]:
            said = set(re.split(", | and ", named[1]))
        elif "Imports nothing of Rankroom but its errors." in doc:
            said = set()
        else:
            continue
        package = file.parent.name
        found = {b for a, b in imports if a == package}
        assert found - {"errors", "config"} == said, (
            f"{package}/__init__.py says that it imports {sorted(said)}"
        )
        checked += 1
    assert checked > 8


def test_module_names_are_unique():
    found: dict[str, list[str]] = {}
    for module in KNOWN:
        if (ROOT / f"{module}.py").exists():
            found.setdefault(module.rpartition("/")[2], []).append(module)
    assert not {name: modules for name, modules in found.items() if len(modules) > 1}


def test_imports_have_no_cycles():
    todo = {module: own_imports(module) for module in KNOWN}
    while todo:
        free = [module for module, needs in todo.items() if not needs & todo.keys()]
        assert free, f"these import one another: {sorted(todo)}"
        for module in free:
            del todo[module]


@pytest.mark.parametrize("module", sorted(KNOWN))
def test_no_module_imports_a_framework_at_its_top(module: str):
    found = {name.partition(".")[0] for name in imports(module, top_only=True)}
    assert not found & FRAMEWORKS - (NUMPY_TOO if module.startswith(COMPUTES) else set())


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_rankroom_loads_the_standard_library_only():
    bare = loaded_by("")
    new = {name.partition(".")[0] for name in loaded_by("import rankroom") - bare}
    assert new <= {"rankroom", *sys.stdlib_module_names}
    assert {name for name in loaded_by("import rankroom") if name.startswith("rankroom.")} == set()


def test_importing_a_module_loads_no_framework():
    """One interpreter imports all of them, and names the first module that loads a framework."""
    on_ranks = [m for m in sorted(KNOWN) if m.startswith(("rank/", "reporting/"))]
    assert len(on_ranks) > 50
    here = ["server", "cli/runs_command", "display", "notebook/magics"]
    code = (
        "import importlib, sys\n"
        f"for module in {[m.replace('/', '.') for m in [*on_ranks, *here]]}:\n"
        "    importlib.import_module('rankroom.' + module)\n"
        f"    for framework in {sorted(FRAMEWORKS)}:\n"
        "        if sys.modules.get(framework): sys.exit(f'{module} imports {framework}')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_help_loads_no_jupyter():
    done = loaded_by(
        "from rankroom.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: assert not end.code"
    )
    assert not {name.partition(".")[0] for name in done} & {
        "jupyter_server",
        "ipyparallel",
        "IPython",
    }
