"""Configuration of Sphinx for the site; ``make docs`` builds it. Why Sphinx:
docs/design/project.md#the-site.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import hyperruntime  # noqa: E402
from docs.site.benchmarks import beside, figures  # noqa: E402

project = "hyperruntime"
author = "the hyperruntime project"
release = version = hyperruntime.__version__
project_copyright = "the hyperruntime project, Apache-2.0"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
    "docs.site.directives",
    "docs.site.plots",
    "docs.site.sources",
]
exclude_patterns = ["site"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

myst_enable_extensions = ["attrs_inline", "colon_fence", "substitution"]
myst_heading_anchors = 4
_exec, _generation = (
    figures("benchmarks.md", row)["podman, root"]
    for row in ("exec of `true`", "a generation beyond the agent's own time, 10 archived")
)
_ours, _theirs = beside("benchmarks.md", "in turn with podman exec")["podman exec"]
myst_substitutions = {
    "exec_ms": f"{_exec:.1f}",
    "exec_times": f"{round(_theirs / _ours, -1):.0f}",
    "generation_s": f"{_generation / 1000:.1f}",
}
myst_url_schemes = {"http": None, "https": None, "mailto": None, "source": None}

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Source"]
python_maximum_signature_line_length = 100

smartquotes = False  # options begin with two hyphens

html_theme = "furo"
html_title = "hyperruntime"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_search_scorer = str(ROOT / "docs/site/search_scorer.js")
pygments_style = "tango"
pygments_dark_style = "monokai"
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
copybutton_remove_prompts = True
