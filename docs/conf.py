"""The manual, built by Sphinx: `sphinx-build -W --keep-going -b html docs build/manual`. In one
process (no `-j`): the generated parts run JAX, whose threads do not survive a fork.

Pages are MyST Markdown. Those that run code are notebooks: the front matter of `docs/index.md`'s
neighbours says `file_format: mystnb`, and every `{code-cell}` is executed by the build. Three parts
are written by `docs/generate/` before Sphinx reads anything: a page for each pass, the options of
the command line, and the API reference.
"""

import atexit
import importlib.metadata
import os
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from generate import api, commands, docstrings, mathematics, passes  # noqa: E402

# What this machine has measured and tuned must not decide what the pages show.
_cache = tempfile.mkdtemp(prefix="gnnjit-manual-")
atexit.register(shutil.rmtree, _cache, ignore_errors=True)
os.environ["XDG_CACHE_HOME"] = _cache

project = "gnnjit"
release = importlib.metadata.version("gnnjit")
version = release
author = "the authors of gnnjit"
copyright = f"{author}, Apache-2.0"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "generate", "command-line-options.md"]

# Pages
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 4
suppress_warnings: list[str] = []

# Notebooks: executed in every build. A cell that fails is a warning with its traceback, which `-W`
# makes an error; so one build shows all that fail.
nb_execution_mode = "force"
nb_execution_timeout = 300  # seconds for a cell, on a busy machine
nb_execution_show_tb = True
nb_output_stderr = "warn"
nb_merge_streams = True
nb_number_source_lines = False

# The API reference
autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    "special-members": "__call__",
}
autodoc_class_signature = "mixed"
autodoc_typehints_format = "short"
autodoc_type_aliases = api.type_aliases()
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
add_module_names = True
toc_object_entries = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_use_param = False
napoleon_use_rtype = False

# The theme. Everything that a page loads lies beside it.
templates_path: list[str] = []
html_theme = "sphinx_book_theme"
html_title = f"gnnjit {release}"
html_static_path = ["static"]
html_css_files = ["manual.css"]
html_math_renderer = "mathml"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "navigation_with_keys": False,
}


def _write(app):
    """Before anything is read."""
    passes.write(HERE)
    commands.write(HERE)
    api.write(HERE)


def setup(app):
    app.add_html_math_renderer("mathml", (mathematics.inline, None), (mathematics.display, None))
    app.connect("builder-inited", _write)
    app.connect("autodoc-process-docstring", docstrings.process, priority=400)  # before napoleon
    app.connect("autodoc-before-process-signature", docstrings.name_defaults)
    app.connect("autodoc-process-signature", docstrings.signature)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
