"""Diagrams for the lessons: a ring, buckets, a pipeline, ZeRO's stages, a split layer, a tunnel.

Each is drawn from its parameters; without a browser, it is described in words.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from rankroom.course.figures import COLOURS, TEXT

_LINE = "var(--jp-ui-font-color2, #888)"
_EMPTY = "none"
_STEP = 56  # pixels: the largest width of a grid's column


class Diagram:
    """One diagram: `parts` are SVG elements within width × height (pixels), `words` describe it."""

    def __init__(self, title: str, words: str, width: int, height: int, parts: Iterable[str]):
        self.title, self.words = title, words
        self.width, self.height, self.parts = width, height, list(parts)

    def __repr__(self) -> str:
        return f"{self.title}\n{self.words}"

    def _repr_html_(self) -> str:
        return (
            f'<svg role="img" width="{self.width}" height="{self.height}" '
            f'viewBox="0 0 {self.width} {self.height}" style="max-width:100%" '
            'font-family="sans-serif" font-size="13">'
            f"<title>{html.escape(self.title)}</title><desc>{html.escape(self.words)}</desc>"
            f"{''.join(self.parts)}</svg>"
        )


def ring(ranks: int = 4) -> Diagram:
    """Draw ranks in a ring, each of which sends to the next."""
    middle, radius = 150, 105
    places = [
        (middle + 40 + radius * math.sin(turn), middle - radius * math.cos(turn))
        for turn in (2 * math.pi * rank / ranks for rank in range(ranks))
    ]
    parts = []
    if ranks > 1:  # an arrow to its own start has no direction
        for (x, y), (to_x, to_y) in zip(places, [*places[1:], places[0]], strict=True):
            parts.append(_arrow(x, y, to_x, to_y, cut=38))
    for rank, (x, y) in enumerate(places):
        parts.append(_box(x - 32, y - 15, 64, 30, f"rank {rank}", COLOURS[rank % len(COLOURS)]))
    words = ", ".join(f"{rank} → {(rank + 1) % ranks}" for rank in range(ranks))
    return Diagram(f"a ring of {ranks} ranks", f"each sends to the next: {words}", 380, 300, parts)


def buckets(layers: int = 4) -> Diagram:
    """Draw how the gradients of the last layers are sent while those of the first are computed."""
    wide, begin = 84, 96
    parts = [_text(0, 34, "computing"), _text(0, 78, "all-reduce")]
    for place in range(layers):
        name = f"layer {layers - place}"
        colour = COLOURS[place // 2 % len(COLOURS)]
        parts.append(_box(begin + place * wide, 16, wide - 4, 28, name, colour))
    count = -(-layers // 2)
    for bucket in range(count):
        left = begin + min(2 * (bucket + 1), layers) * wide
        name = f"bucket {bucket + 1}"
        parts.append(_box(left, 60, 2 * wide - 24, 28, name, COLOURS[bucket % len(COLOURS)]))
    end = begin + layers * wide
    parts.append(f'<path d="M{end} 8V104" stroke="{_LINE}" stroke-dasharray="4 3"/>')
    parts.append(_text(end + 6, 108, "exposed: nothing is computed meanwhile"))
    return Diagram(
        "the backward pass, in buckets",
        f"{layers} layers are computed from the last to the first; as soon as the gradients of two "
        "are there, they are sent together, while the next ones are computed. Only the last bucket "
        "is exposed.",
        end + 2 * wide + 60, 120, parts,
    )  # fmt: skip


def pipeline(stages: int = 4, micro: int = 4) -> Diagram:
    """Draw which stage works on which micro-batch, slot by slot; empty slots are the bubble."""
    slots = micro + stages - 1
    begin, wide, high = 70, min(_STEP, 700 // slots), 30
    parts = []
    for stage in range(stages):
        parts.append(_text(0, 34 + stage * high, f"stage {stage}"))
        for slot in range(slots):
            piece = slot - stage
            is_busy = 0 <= piece < micro
            fill = COLOURS[stage % len(COLOURS)] if is_busy else _EMPTY
            words = str(piece + 1) if is_busy else ""
            parts.append(_box(begin + slot * wide, 16 + stage * high, wide - 3, 25, words, fill))
    parts.append(_text(begin, 36 + stages * high, "time →"))
    idle = (stages - 1) / slots
    return Diagram(
        f"{micro} micro-batches through {stages} stages",
        f"{slots} slots of time, in {micro} of which a stage works: {idle:.0%} are empty",
        begin + slots * wide + 4, 44 + stages * high, parts,
    )  # fmt: skip


def shared_out(ranks: int = 4) -> Diagram:
    """Draw what each rank keeps of weights, gradients and optimizer state in each ZeRO stage."""
    kinds = (("optimizer", 12, 1), ("gradients", 2, 2), ("weights", 2, 3))
    begin, wide, scale, told = 74, 30, 9, []
    parts = []
    for stage in range(4):
        left = begin + stage * (ranks * wide + 26)
        parts.append(_text(left, 14, f"stage {stage}"))
        total = 0.0
        for number, (_, size, since) in enumerate(kinds):
            each = size / ranks if stage >= since else size
            total += each
            for rank in range(ranks):
                top = 24 + scale * sum(one for _, one, _ in kinds[:number])
                high = each * scale - 2
                x = left + rank * wide
                parts.append(_box(x, top, wide - 3, max(high, 2), "", COLOURS[number]))
        told.append(f"stage {stage}: {total:g}")
        parts.append(_text(left, 42 + 16 * scale, f"{total:g} bytes"))
    for number, (name, size, _) in enumerate(kinds):
        before = sum(one for _, one, _ in kinds[:number])
        parts.append(_text(0, 24 + scale * (before + size / 2) + 4, name))
    width = begin + 4 * (ranks * wide + 26)
    return Diagram(
        f"bytes for each parameter on each of {ranks} ranks", "; ".join(told), width,
        52 + 16 * scale, parts,
    )  # fmt: skip


def split_layer(ranks: int = 2) -> Diagram:
    """Draw two layers: the first split by columns, the second by rows, then one all-reduce."""
    parts, wide = [], 34
    size = wide * ranks
    for rank in range(ranks):
        colour = COLOURS[rank % len(COLOURS)]
        parts.append(_box(90 + rank * wide, 30, wide - 2, 76, str(rank), colour))
        parts.append(_box(170 + size, 30 + rank * wide, 64, wide - 2, str(rank), colour))
    middle = 30 + max(76, size) / 2
    parts.append(_box(0, 54, 44, 28, "x", "#ffffff"))
    parts.append(_arrow(44, 68, 88, 68))
    parts.append(_arrow(92 + size, 68, 166 + size, 68))
    parts.append(_text(100 + size, 56, "nothing"))
    parts.append(_arrow(236 + size, 68, 300 + size, 68))
    parts.append(_box(302 + size, 54, 96, 28, "all-reduce", "#ffffff"))
    parts.append(_text(90, 20, "by columns"))
    parts.append(_text(166 + size, 20, "by rows"))
    return Diagram(
        f"two layers on {ranks} ranks",
        "each rank has some columns of the first layer and the same rows of the second: between "
        "them nothing is sent, after them one all-reduce adds up the parts",
        410 + size, int(middle + max(76, size) / 2 + 14), parts,
    )  # fmt: skip


def tunnel(here: int = 8888, port: int = 20100) -> Diagram:
    """Draw the path from the browser on a laptop to a server on a compute node."""
    places = ("your laptop", "login node", "compute node")
    inside = (f"browser, localhost:{here}", "ssh", f"JupyterLab, port {port}")
    parts = []
    for number, (name, words) in enumerate(zip(places, inside, strict=True)):
        left = number * 230
        parts.append(_box(left, 10, 170, 66, "", _EMPTY))
        parts.append(_text(left + 10, 30, name, "bold"))
        parts.append(_text(left + 10, 56, words))
    parts += [_arrow(170, 50, 228, 50), _arrow(400, 50, 458, 50)]
    parts += [_text(172, 98, "encrypted"), _text(366, 98, "plain, unless ssh goes on to the node")]
    return Diagram(
        "a tunnel",
        "what comes to the laptop's port goes encrypted to the login node, and from there to the "
        "compute node: plain, unless ssh goes on to that",
        640, 108, parts,
    )  # fmt: skip


def _box(x: float, y: float, wide: float, high: float, words: str, fill: str) -> str:
    ink = TEXT if fill == _EMPTY else "#000"
    dashed = ' stroke-dasharray="3 3"' if fill == _EMPTY and not words and high < 60 else ""
    box = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" rx="3" '
        f'fill="{fill}" stroke="{_LINE}"{dashed}/>'
    )
    if not words:
        return box
    middle = f'x="{x + wide / 2:.1f}" y="{y + high / 2 + 4.5:.1f}"'
    return f'{box}<text {middle} text-anchor="middle" fill="{ink}">{html.escape(words)}</text>'


def _text(x: float, y: float, words: str, weight: str = "normal") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}"'
    return f'<text {where} fill="{TEXT}" font-weight="{weight}">{html.escape(words)}</text>'


def _arrow(x: float, y: float, to_x: float, to_y: float, cut: float = 0.0) -> str:
    """Return a line with an arrowhead, shortened by `cut` (pixels) at both ends."""
    length = math.hypot(to_x - x, to_y - y)
    along = (to_x - x) / length, (to_y - y) / length
    begin = x + cut * along[0], y + cut * along[1]
    end = to_x - cut * along[0], to_y - cut * along[1]
    head = [
        (end[0] - 9 * along[0] + side * 4 * along[1], end[1] - 9 * along[1] - side * 4 * along[0])
        for side in (1, -1)
    ]
    return _path([begin, end], _EMPTY) + _path([end, *head, end], _LINE)


def _path(points: Sequence[tuple[float, float]], fill: str) -> str:
    places = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path d="M{places}" fill="{fill}" stroke="{_LINE}" stroke-width="1.5"/>'
