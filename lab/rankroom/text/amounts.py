"""How amounts are written, the same everywhere: times, sizes and steps."""

from __future__ import annotations


def duration(micros: int) -> str:
    """Format microseconds for people: `85 ms`, `12.4 s`, `2 min 05 s`, `1 h 02 min`."""
    ms = max(micros, 0) / 1000
    if ms < 999.5:
        return f"{ms:.0f} ms"
    if ms < 59_950:
        return f"{ms / 1000:.1f} s"
    seconds = round(ms / 1000)
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min"


def size(count: float) -> str:
    """Format bytes for people: `830 B`, `12.5 kB`, `1.2 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def step_number(step: float) -> str:
    """Format the number of a step for people: `41`, `1,234,567`; fractional ones as `0.5`."""
    return f"{step:,.0f}" if float(step).is_integer() and abs(step) < 1e15 else f"{step:g}"
