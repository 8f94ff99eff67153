"""The documentation as a site, for Sphinx: `make docs` gathers its pages and builds it."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "lab"))
from rankroom import __version__  # noqa: E402

project = "Rankroom"
author = "the authors of Rankroom"
release = version = __version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton"]
html_theme = "furo"
html_title = f"Rankroom {release}"
html_show_copyright = False
# tools/docs.py has run the lessons.
nb_execution_mode = "off"
suppress_warnings = ["misc.highlighting_failure"]  # `!` and `%` lines, before a lesson has run
myst_heading_anchors = 4
default_role = "code"
smartquotes = False  # they would make a dash of `--ranks`
# What a reader of the reference need not install.
autodoc_mock_imports = ["zmq", "psutil", "numpy", "ipyparallel", "ipykernel", "IPython", "click"]
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
autodoc_default_options = {
    "members": True, "inherited-members": True, "exclude-members": "__init__, __new__, ready, told",
}  # fmt: skip
copybutton_exclude = ".linenos, .gp, .go"
