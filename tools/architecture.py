"""Which packages of Rankroom may import which, and docs/architecture.svg, drawn from the source.

`tools/architecture.py` draws it; tests/unit/project/test_layers.py enforces the table, and checks
that the picture is current.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "lab" / "rankroom"
PICTURE = ROOT / "docs" / "architecture.svg"

# From the bottom up. A name with `/*` is a package. A module may import from its own layer (without
# cycles) and from those below it.
LAYERS = [
    ["errors"],
    ["config"],
    ["record/*", "rpc/*", "system/*", "text/*"],
    ["scheduler/*", "ssh/*", "reporting/*"],
    ["rank/*", "horovod_build/*"],
    ["agent/*", "analysis/*"],
    # A client's run reaches its supervisor only through a callable, which the cluster passes to it.
    ["supervisor/*", "run/*", "display/*"],
    # Each uses the other: a job on a site starts a cluster on its nodes, and a cluster that a user
    # attaches to by name may be on a site.
    ["cluster/*", "remote/*"],
    ["batch/*", "course/*", "jupyter_job/*", "lint/*"],
    ["workshop/*"],
    ["server/*", "notebook/*", "cli/*"],
]
# Packages that may import less than their layer, with the reason.
ONLY = {
    # Runs on a rank: it must import fast, and a site may run it without the rest.
    "rank/*": {"rank/*", "reporting/*", "record/*", "rpc/*", "system/*", "errors", "config"},
    "reporting/*": {"reporting/*", "record/*", "errors"},
    # The packages that all others may use depend on little else.
    "record/*": {"record/*", "system/*", "errors", "config"},
    "rpc/*": {"rpc/*", "errors"},
    "system/*": {"system/*", "errors"},
    "text/*": {"text/*", "errors"},
    # Routes without logic.
    "server/*": {
        "server/*",
        "workshop/*",
        "course/*",
        "cluster/*",
        "ssh/*",
        "record/*",
        "analysis/*",
        "text/*",
        "errors",
        "config",
    },
}
# Remaining upward imports. This list may only shrink.
DEBT: list[tuple[str, str]] = [
    # A rank, too, asks the scheduler how much time its job has left.
    ("rank/deadline", "scheduler/job_end"),
]

WIDTH, ROW, BOX, GAP, TOP = 900, 92, (128, 44), 24, 28
STYLE = """
text { font: 15px system-ui, sans-serif; fill: #1f2328; text-anchor: middle }
rect { fill: #eaf2fb; stroke: #3a6ea5 }
path { fill: none; stroke: #6e7781; stroke-width: 1.2; marker-end: url(#arrow) }
path.debt { stroke: #bc4c00; stroke-dasharray: 5 4; marker-end: url(#debt) }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } rect { fill: #16304d; stroke: #79b0e8 } path { stroke: #9aa4ae }
}
""".strip()


def package_of(module: str) -> str:
    return module.partition("/")[0]


def package_imports() -> set[tuple[str, str]]:
    """Return which package imports which according to the source, without DEBT."""
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).with_suffix("").as_posix().removesuffix("/__init__")
        if "/" not in str(path.relative_to(PACKAGE)) or "added" in path.parts:
            continue
        for name in imported(path):
            other = name.replace(".", "/")
            if not any(module == a and other.startswith(b) for a, b in DEBT):
                found.add((package_of(module), package_of(other)))
    return {(a, b) for a, b in found if a != b}


def imported(path: Path) -> Iterator[str]:
    """Yield the modules and names of `rankroom` that a file imports, without that prefix."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rankroom"):
            yield from (f"{node.module}.{each.name}".partition(".")[2] for each in node.names)
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names if each.name.startswith("rankroom.")]
            yield from (name.partition(".")[2] for name in names)


def reduced(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the edges without those that follow from others."""
    after: dict[str, set[str]] = {}
    for a, b in edges:
        after.setdefault(a, set()).add(b)

    def reaches(a: str, b: str, seen: set[str]) -> bool:
        nexts = after.get(a, set()) - seen
        return b in nexts or any(reaches(each, b, seen | nexts) for each in nexts)

    return {
        (a, b)
        for a, b in edges
        if not any(c not in (a, b) and reaches(c, b, {a}) for c in after[a] if c != b)
    }


def draw() -> str:
    """Return the picture as SVG: a row for each layer, the top one first."""
    places: dict[str, tuple[float, float]] = {}
    # Without `errors` and `config`, which all use, and which are not packages.
    rows = [names for names in reversed(LAYERS) if all(name.endswith("/*") for name in names)]
    for row, names in enumerate(rows):
        whole = len(names) * BOX[0] + (len(names) - 1) * GAP
        for column, name in enumerate(names):
            x = (WIDTH - whole) / 2 + column * (BOX[0] + GAP)
            places[package_of(name)] = (x + BOX[0] / 2, TOP + row * ROW)
    edges = reduced({(a, b) for a, b in package_imports() if a in places and b in places})
    debts = {(package_of(a), package_of(b)) for a, b in DEBT}
    lines = [arrow(places[a], places[b], "") for a, b in sorted(edges)]
    lines += [arrow(places[a], places[b], "debt") for a, b in sorted(debts)]
    for name, (x, y) in places.items():
        lines.append(
            f'<rect x="{x - BOX[0] / 2:g}" y="{y:g}" width="{BOX[0]}" height="{BOX[1]}" rx="7"/>'
            f'<text x="{x:g}" y="{y + BOX[1] / 2 + 5:g}">{escape(name)}</text>'
        )
    height = 2 * TOP + BOX[1] + (len(rows) - 1) * ROW
    heads = "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0L8 4L0 8z" style="fill:{colour};stroke:none"/></marker>'
        for name, colour in (("arrow", "#6e7781"), ("debt", "#bc4c00"))
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'role="img" aria-label="The packages of Rankroom and their imports">',
            f"<style>{STYLE}</style>",
            f"<defs>{heads}</defs>",
            *lines,
            "</svg>\n",
        ]
    )


def arrow(start: tuple[float, float], end: tuple[float, float], kind: str) -> str:
    """Return a curved arrow from the bottom of a box to the top of another, or to one beside it."""
    (x1, y1), (x2, y2) = start, end
    if y2 > y1:
        y1, bend = y1 + BOX[1], ROW / 3
        way = f"M{x1:g} {y1:g}C{x1:g} {y1 + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2:g}"
    elif y2 < y1:
        y2, bend = y2 + BOX[1], ROW / 3
        x1, x2 = x1 + 18, x2 + 18
        way = f"M{x1:g} {y1:g}C{x1:g} {y1 - bend:g} {x2:g} {y2 + bend:g} {x2:g} {y2:g}"
    elif abs(x2 - x1) > BOX[0] + GAP:  # below the boxes between them
        y1, bend = y1 + BOX[1], TOP
        way = f"M{x1:g} {y1:g}C{x1:g} {y1 + bend:g} {x2:g} {y1 + bend:g} {x2:g} {y1:g}"
    else:
        side = BOX[0] / 2 if x2 > x1 else -BOX[0] / 2
        middle = y1 + BOX[1] / 2
        way = f"M{x1 + side:g} {middle:g}L{x2 - side:g} {middle:g}"
    marked = f' class="{kind}"' if kind else ""
    return f'<path d="{way}"{marked}/>'


if __name__ == "__main__":
    PICTURE.write_text(draw())
    print(f"drawn: {PICTURE.relative_to(ROOT)}")
