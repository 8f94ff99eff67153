"""Each command that a document or a message names is accepted by its own parser."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator

import click
import pytest
from IPython.core.interactiveshell import InteractiveShell

import rankroom
from checkout import ROOT
from rankroom.cli import main
from rankroom.errors import RankroomError, UsageError
from rankroom.notebook import cluster_magic
from rankroom.notebook.options import Options

PACKAGE = ROOT / "lab" / "rankroom"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(ROOT / "docs").glob("*.md"), ROOT / "notebooks" / "README.md",
]  # fmt: skip
NOTEBOOKS = [*(ROOT / "notebooks").glob("*.ipynb")]
OURS = "cluster|ranks|runs|distributed|scaling|course|debug"  # the magics that read options
BEGINS = rf"(?:%{{1,2}}(?:{OURS})\b|rankroom(?= ))"
QUOTED = re.compile(rf"`({BEGINS}[^`]*)`")
# A command on a line of a shell or a cell, without a comment, another command or a pipe.
LINE = re.compile(rf"^\s*(?:[!$] ?)?({BEGINS}.*?)\s*(?:(?:\s#|[;|&>]).*)?$", re.M)
WHOLE = re.compile(r"(?:.*: )?\s*(rankroom [^`]*\{x\}[^`]*?)\s*")  # a message that is a command
FENCED = re.compile(r"^```.*?\n(.*?)^```", re.M | re.S)


class Parsed(Exception):
    """A magic has read its options, and must do no more."""


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """A shell whose magics stop once they have read their options, in a temporary folder."""
    shell, read = InteractiveShell(), Options.read
    rankroom.load_ipython_extension(shell)

    def only_read(self, line):
        read(self, line)
        raise Parsed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Options, "read", only_read)
        patched.setattr(cluster_magic, "the_cluster", lambda: None)
        patched.chdir(tmp_path_factory.mktemp("notebook"))
        yield shell


def on_pages() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        text = page.read_text("utf-8")
        for fence in FENCED.findall(text):
            yield from ((each, page.name) for each in LINE.findall(fence))
        yield from ((each, page.name) for each in QUOTED.findall(FENCED.sub("", text)))


def in_notebooks() -> Iterator[tuple[str, str]]:
    for notebook in NOTEBOOKS:
        for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
            text = "".join(cell["source"])
            code = [text] if cell["cell_type"] == "code" else FENCED.findall(text)
            for each in code:
                yield from ((command, notebook.name) for command in LINE.findall(each))
            if cell["cell_type"] != "code":
                found = QUOTED.findall(FENCED.sub("", text))
                yield from ((command, notebook.name) for command in found)


def in_messages() -> Iterator[tuple[str, str]]:
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).as_posix()
        for text in strings(ast.parse(file.read_text("utf-8"))):
            if whole := WHOLE.fullmatch(text):
                yield whole[1], name
            yield from ((each, name) for each in QUOTED.findall(text))


def strings(tree: ast.AST) -> Iterator[str]:
    """Yield a module's strings; an f-string is one of them, with `{x}` for each expression."""
    if isinstance(tree, ast.JoinedStr):
        parts = tree.values
        yield "".join(p.value if isinstance(p, ast.Constant) else "{x}" for p in parts)
        return
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        yield tree.value
    for child in ast.iter_child_nodes(tree):
        yield from strings(child)


def words_of(command: str) -> list[str]:
    """A command's words as typed, with 1 for each placeholder and the first of alternatives."""
    command = command.removesuffix("?").removesuffix(" LINE")
    command = re.sub(r"\{\w*\}|\b[A-Z][A-Z_]*\b(?![.\w/-])", "1", command)
    command = re.sub(r"(\w)\|\S*", r"\1", command.replace("[", "").replace("]", ""))
    return shlex.split(command.partition("…")[0].replace(" \\\n", " "))


def all_commands() -> dict[str, str]:
    """Return a file that names it, by command."""
    named: dict[str, str] = {}
    for found, where in (*on_pages(), *in_notebooks(), *in_messages()):
        named.setdefault(" ".join(found.split()), where)
    return named


def take_magic(shell: InteractiveShell, words: list[str]) -> None:
    """Have the magic read its line. Raises UsageError if the magic refuses it."""
    name = words[0].lstrip("%")
    kind = "cell" if words[0].startswith("%%") else "line"
    magic = shell.find_magic(name, kind)
    if magic is None:
        raise UsageError(f"there is no {words[0]}")
    if name == "cluster" and len(words) > 1 and words[1] not in cluster_magic.ACTIONS:
        raise UsageError(f"there is no {words[0]} {words[1]}")
    if len(words) == 1 or words[-1] in cluster_magic.ACTIONS:
        return  # no options to read
    line = shlex.join(words[1:])
    try:
        magic(line, "pass") if kind == "cell" else magic(line)
    except Parsed:
        pass
    except UsageError as error:  # a text may name an option without its value
        if not (words[-1].startswith("-") and "expected one argument" in str(error)):
            raise


def take_command(words: list[str]) -> None:
    """Parse like the command line, but check no files. Raises click.UsageError."""
    command: click.Command = main
    rest = words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(click.Context(command), rest[0])
        if found is None:
            raise click.UsageError(f"no command {rest[0]}")
        command, rest = found, rest[1:]
    context = click.Context(command)
    if rest and rest[-1].startswith("-"):
        options = [each for each in command.get_params(context) if rest[-1] in each.opts]
        if options and isinstance(options[0], click.Option) and not is_switch(options[0]):
            rest = [*rest, "1"]  # an option that is named without its value
    given, left, _ = command.make_parser(context).parse_args(rest)
    if left and not isinstance(command, click.Group):
        raise click.UsageError(f"{left[0]!r} is one too many")
    for param in command.get_params(context):
        value = given.get(param.name)
        numbers = isinstance(param.type, click.types.IntParamType | click.types.FloatParamType)
        if isinstance(value, str) and (numbers or isinstance(param.type, click.Choice)):
            param.type.convert(value, param, context)


def is_switch(option: click.Option) -> bool:
    return option.is_flag or option.count


def test_commands_in_documents_and_messages_are_accepted(shell):
    refused = []
    for command, where in all_commands().items():
        words = words_of(command)
        try:
            take_command(words) if words[0] == "rankroom" else take_magic(shell, words)
        except (RankroomError, click.UsageError) as error:
            refused.append(f"{where} names `{command}`: {error}")
    assert refused == []


def test_commands_are_found_in_pages_notebooks_and_messages():
    for kind in (on_pages, in_notebooks, in_messages):
        assert len({command for command, _ in kind()}) > 20, kind
    files = {where for _, where in in_messages()}
    assert {"rank/frameworks/torch/torch_device.py", "supervisor/runs.py"} <= files


@pytest.mark.parametrize(
    "wrong",
    ["%cluster restart 1", "%cluster restart --rank 1", "%ranks fetch loss", "%runs a b",
     "%cluster resize many", "%%distributed --detached", "%cluster no-such-word"],
)  # fmt: skip
def test_an_invalid_magic_is_refused(wrong, shell):
    with pytest.raises(RankroomError):
        take_magic(shell, words_of(wrong))


@pytest.mark.parametrize(
    "wrong",
    ["rankroom runs shew last", "rankroom cluster restart a b c", "rankroom jobs --cancelled 1",
     "rankroom cluster resize many", "rankroom horovod build --gpus"],
)  # fmt: skip
def test_an_invalid_command_is_refused(wrong):
    with pytest.raises(click.UsageError):
        take_command(words_of(wrong))
