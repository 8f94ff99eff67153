"""What all plots have in common: Vega-Lite, which JupyterLab renders by itself, light and dark."""

from __future__ import annotations

from typing import Any

from rankroom.record.model import Json

VEGA = "application/vnd.vegalite.v5+json"
_GREY = "#777777"  # is read on both
_INK = {
    "title": {"color": _GREY},
    "axis": {"labelColor": _GREY, "titleColor": _GREY, "gridColor": "#77777744"},
    "legend": {"labelColor": _GREY},
    "view": {"stroke": "#77777744"},
}


def chart(**parts: Any) -> Json:
    """A plot of these parts of Vega-Lite; the page's own ground shows through."""
    schema = "https://vega.github.io/schema/vega-lite/v5.json"
    return {"$schema": schema, "background": None, "config": _INK, **parts}
