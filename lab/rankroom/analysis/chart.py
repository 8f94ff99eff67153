"""The base of all plots: Vega-Lite, which JupyterLab renders itself, in light and dark themes."""

from __future__ import annotations

from typing import Any

from rankroom.record.model import Json

VEGA = "application/vnd.vegalite.v5+json"
_GREY = "#777777"  # readable on light and on dark
_INK = {
    "title": {"color": _GREY},
    "axis": {"labelColor": _GREY, "titleColor": _GREY, "gridColor": "#77777744"},
    "legend": {"labelColor": _GREY},
    "view": {"stroke": "#77777744"},
}


def chart(**parts: Any) -> Json:
    """Return a Vega-Lite chart with these top-level properties and a transparent background."""
    schema = "https://vega.github.io/schema/vega-lite/v5.json"
    return {"$schema": schema, "background": None, "config": _INK, **parts}
