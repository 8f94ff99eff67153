"""Make slides of the lessons: `tools/slides.py [-o FILE] [LESSON …]`, one HTML file for all.

nbconvert's exporter makes them, with reveal.js from its npm package embedded in the page, so that
it needs no network. Slides begin by a rule, not by metadata in notebooks: at a lesson's title, at
each heading, and where a cell no longer fits. Lessons are arranged side by side, with their
sections below; hints and solutions are speaker notes (S).
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rankroom.course.lessons import LESSONS, Lesson, folder

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("RANKROOM_CACHE") or ROOT / ".cache") / "slides"
SLIDES = ROOT / "dist" / "slides.html"
REVEAL = "5.2.1"
# Of the npm package's archive.
REVEAL_SHA256 = "359b575dd51bbda32f89b2fd4c7dc46ad7389a805572158916c29252f7a27333"
PARTS = ("dist/reveal.css", "dist/reveal.js", "plugin/notes/notes.js")
WIDTH, HEIGHT = 1280, 800  # of a slide in CSS pixels, like all lengths here
ROOM = 720  # height that a slide has for its cells
CODE_LINE, TEXT_LINE, ROW, FRAME = 25, 34, 42, 36
TEXT_COLUMNS, CODE_COLUMNS = 98, 100
DRAWN = "from rankroom.course.diagrams import"
LINK = re.compile(r"(?<!!)\[([^]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
HEADING = re.compile(r"(#+) ")


def main(argv: list[str]) -> int:
    """Write the file, and print its path."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("lessons", nargs="*", type=int, metavar="LESSON")
    parser.add_argument("-o", "--output", type=Path, default=SLIDES)
    chosen = parser.parse_args(argv)
    lessons = [each for each in LESSONS if not chosen.lessons or each.number in chosen.lessons]
    if not lessons:
        print(
            f"there is no such lesson: the course has {LESSONS[0].number} to {LESSONS[-1].number}"
        )
        return 1
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text(page(lessons, reveal()), "utf-8")
    print(chosen.output)
    return 0


def page(lessons: Sequence[Lesson], parts: dict[str, str]) -> str:
    """Return the whole page. `parts` are reveal.js's files, by PARTS."""
    # Imported here, as `make lint` checks this file without these packages.
    import nbformat
    from nbconvert import SlidesExporter

    cells = [cell for place, each in enumerate(lessons) for cell in slides(each, place, lessons)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    exporter = SlidesExporter(
        raw_template=TEMPLATE, exclude_input_prompt=True, exclude_output_prompt=True
    )
    own = {
        "css": [parts[PARTS[0]], CSS],
        # In a page, these characters end a script, even inside a string.
        "scripts": [parts[each].replace("</script", r"<\/script") for each in PARTS[1:]],
        "size": f"width: {WIDTH}, height: {HEIGHT}",
    }
    made: str = exporter.from_notebook_node(notebook, resources={"slides": own})[0]
    return made


# -- the division into slides


def slides(lesson: Lesson, place: int, lessons: Sequence[Lesson]) -> Iterator[Any]:
    """Yield a lesson's cells, each marked as beginning a slide, belonging to one, or as notes."""
    import nbformat

    there = {each.file: number for number, each in enumerate(lessons)}
    used = 0
    for cell in nbformat.read(folder() / lesson.file, as_version=4).cells:
        if cell.cell_type == "markdown" and "<details>" in cell.source:
            yield _marked(cell, "notes")
            continue
        for part, height in _parts(cell, there):
            heading = HEADING.match(part.source) if part.cell_type == "markdown" else None
            if heading and len(heading[1]) == 1:
                kind, used = "slide", 0
            elif heading or used + height > ROOM:
                kind, used = "subslide", 0
            else:
                kind = "-"
            used += height
            yield _marked(part, kind, f"lesson-{lesson.number}" if kind == "slide" else "")


def _marked(cell: Any, kind: str, name: str = "") -> Any:
    cell.metadata["slideshow"] = {"slide_type": kind, "data": {"lesson": name} if name else {}}
    return cell


def _parts(cell: Any, there: dict[str, int]) -> Iterator[tuple[Any, int]]:
    """Yield the parts of a cell that stay together on a slide, and their approximate heights."""
    import nbformat

    if cell.cell_type == "code":
        if cell.source.startswith(DRAWN):
            for drawing in drawn(cell.source):
                output = nbformat.v4.new_output(
                    "display_data", {"text/html": drawing._repr_html_()}
                )
                yield nbformat.v4.new_code_cell(outputs=[output]), drawing.height + FRAME
            return
        lines = [row for each in cell.source.splitlines() for row in _wrapped(each)]
        shown = nbformat.v4.new_code_cell("\n".join(lines))
        yield shown, len(lines) * CODE_LINE + FRAME
        return
    for block in blocks(cell.source):
        linked = LINK.sub(lambda found: _link(found, there), block)
        yield nbformat.v4.new_markdown_cell(linked), height_of(block)


def _wrapped(line: str) -> list[str]:
    """Return a line of code, wrapped to the width of a slide."""
    rest = " " * (len(line) - len(line.lstrip()) + 4)
    options: Any = {"subsequent_indent": rest, "break_long_words": False, "drop_whitespace": False}
    wrapped = textwrap.wrap(line, CODE_COLUMNS, break_on_hyphens=False, **options)
    return wrapped or [""]


def _link(found: re.Match[str], there: dict[str, int]) -> str:
    """Return a link to a lesson's slides, a web link as it is, and only the words of any other."""
    words, target = found[1], found[2]
    if target in there:
        return f"[{words}](#/{there[target]})"
    return found[0] if "://" in target else words


def blocks(source: str) -> Iterator[str]:
    """Yield the paragraphs, lists, tables and code of a Markdown text; long ones in pieces."""
    gathered: list[str] = []
    fenced = False
    for line in [*source.splitlines(), ""]:
        fenced ^= line.lstrip().startswith("```")
        if line.strip() or fenced:
            gathered.append(line)
            if HEADING.match(line) and not fenced:
                yield gathered.pop()
        elif gathered:
            yield from _pieces(gathered)
            gathered = []


def _pieces(lines: list[str]) -> Iterator[str]:
    head: list[str] = []
    if lines[0].startswith("|"):
        head, lines = lines[:2], lines[2:]
    elif not re.match(r"[-*] |\d+\. ", lines[0]):
        yield "\n".join(lines)
        return
    piece: list[str] = []
    for line in lines:
        begins = bool(head) or not line.startswith(" ")
        if begins and piece and height_of("\n".join([*head, *piece, line])) > ROOM - 2 * ROW:
            yield "\n".join([*head, *piece])
            piece = []
        piece.append(line)
    yield "\n".join([*head, *piece])


def height_of(block: str) -> int:
    """Return the approximate height of a block of Markdown."""
    lines = block.splitlines()
    if HEADING.match(block):
        return 2 * TEXT_LINE
    if block.startswith("```"):
        return (len(lines) - 2) * CODE_LINE + FRAME
    if block.startswith("|"):
        return sum(ROW + TEXT_LINE * (len(line) // (TEXT_COLUMNS + 20)) for line in lines)
    if re.match(r"[-*] |\d+\. ", block):
        items = re.split(r"\n(?=[-*] |\d+\. )", block)
        return sum(TEXT_LINE * (len(each) // TEXT_COLUMNS + 1) + 8 for each in items) + FRAME // 2
    return TEXT_LINE * (len(" ".join(lines)) // TEXT_COLUMNS + 1) + FRAME // 2


def drawn(source: str) -> Iterator[Any]:
    """Yield the drawings of a cell, which needs no results of other cells."""
    names: dict[str, Any] = {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Expr):
            found = eval(compile(ast.Expression(statement.value), "lesson", "eval"), names)
            if hasattr(found, "_repr_html_"):
                yield found
        else:
            exec(compile(ast.Module([statement], []), "lesson", "exec"), names)


# -- reveal.js


def reveal() -> dict[str, str]:
    """Return the files of reveal.js that a page needs, fetched from npm the first time."""
    archive = CACHE / f"reveal.js-{REVEAL}.tgz"
    if not archive.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        pack = ["npm", "pack", "--silent", f"reveal.js@{REVEAL}", "--pack-destination", CACHE]
        subprocess.run([str(each) for each in pack], check=True, stdout=subprocess.DEVNULL)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != REVEAL_SHA256:
        archive.unlink()
        raise SystemExit(f"{archive.name} is not what it was: its SHA-256 is {found}")
    with tarfile.open(archive) as package:
        return {name: _text(package, f"package/{name}") for name in PARTS}


def _text(package: tarfile.TarFile, name: str) -> str:
    member = package.extractfile(name)
    assert member is not None
    return member.read().decode()


TEMPLATE = """\
{%- extends 'reveal/base.html.j2' -%}
{%- block header -%}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Rankroom: the course</title>
{{ resources.include_css("static/theme-light.css") }}
{%- for css in resources.inlining.css + resources.slides.css %}
<style>
{{ css }}
</style>
{%- endfor %}
</head>
{%- endblock header -%}
{%- block body_header -%}
<body>
<div class="reveal">
<div class="slides">
{%- endblock body_header -%}
{%- block body_footer -%}
</div>
</div>
{%- for script in resources.slides.scripts %}
<script>
{{ script }}
</script>
{%- endfor %}
<script>
Reveal.initialize({
  {{ resources.slides.size }}, margin: 0.02, center: false, hash: true, slideNumber: 'h.v',
  transition: 'none', plugins: [RevealNotes]
});
</script>
</body>
{%- endblock body_footer -%}
{%- block footer -%}
</html>
{%- endblock footer -%}
"""
CSS = f"""\
body {{ margin: 0; background: #fff; color: #222; }}
.reveal {{ font: 24px/{TEXT_LINE}px system-ui, 'Noto Sans', 'DejaVu Sans', sans-serif; }}
.reveal .slides {{ text-align: left; }}
.reveal .slides section section {{ padding: 24px 40px; box-sizing: border-box; }}
.reveal h1 {{ font-size: 48px; line-height: 56px; margin: 0 0 12px; }}
.reveal h2 {{ font-size: 34px; line-height: 42px; margin: 0 0 12px; }}
.reveal p, .reveal ul, .reveal ol {{ margin: 0 0 14px; }}
.reveal li {{ margin-bottom: 6px; }}
.reveal code {{ font: 0.8em 'DejaVu Sans Mono', monospace; }}
.reveal pre {{
  font: 19px/{CODE_LINE}px 'DejaVu Sans Mono', monospace; margin: 0 0 14px; padding: 8px 14px;
  background: #f5f5f5; border: 1px solid #ddd; border-radius: 4px; overflow: hidden;
}}
.reveal pre code {{ font: inherit; }}
.reveal table {{ border-collapse: collapse; margin-bottom: 14px; font-size: 21px; }}
.reveal table {{ line-height: 28px; }}
.reveal td, .reveal th {{ border-bottom: 1px solid #ddd; padding: 6px 12px; text-align: left; }}
.reveal a {{ color: #0b5cad; }}
.reveal .anchor-link, .reveal .jp-Collapser {{ display: none; }}
"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
