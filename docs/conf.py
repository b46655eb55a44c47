"""How Sphinx builds these pages: sphinx-build -W -q -b html docs <directory>."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

import tfdpg  # noqa: E402 (what it imports reads the environment)

project = "tfdpg"
release = tfdpg.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "docstrings",
    "option_lists",
    "signatures",
    "references",
    "katex",
    "search_words",
]
if find_spec("sphinx_copybutton"):  # in the extra [docs]
    extensions.append("sphinx_copybutton")
exclude_patterns = ["_build", "jupyter_execute"]
nb_execution_mode = "off"  # the notebooks are committed with their outputs
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100
smartquotes_action = "D"  # dashes only: quotes are code's more often than not
html_theme = "furo"
html_title = f"tfdpg {release}"
html_static_path = ["_static"]
html_css_files = ["layout.css"]
html_js_files = [("layout.js", {"defer": "defer"})]
html_favicon = "_static/favicon.svg"
html_math_renderer = "katex"
html_search_scorer = str(HERE / "_ext/scorer.js")
copybutton_selector = "div:not(.highlight-text) > div.highlight pre"
html_copy_source = False
html_show_copyright = False
