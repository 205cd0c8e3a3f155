"""Sphinx configuration of the site; ``nox -s site`` builds it. The pages are plain Markdown."""

from __future__ import annotations

project = "matrix"
author = "the matrix developers"
extensions = ["myst_parser", "sphinx_copybutton", "sphinx_external_toc"]
external_toc_path = "docs/_toc.yml"
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**"]
exclude_patterns = [
    ".*",
    "*.egg-info",
    "build",
    "dist",
    "site",
    "benchmarks",
    "builders",
    "examples",
    "matrix",
    "resolver",
    "tests",
]
nitpicky = True
myst_heading_anchors = 4
html_theme = "furo"
html_title = "matrix"
html_extra_path = ["_extra"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
suppress_warnings = ["misc.highlighting_failure"]  # output of commands is not a language
