"""The site: the README, docs/ and the docstrings of what users import. `make site` fails at any warning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import elasticscan

project = "elasticscan"
author = "the elasticscan authors"
copyright = author  # noqa: A001 - the name that Sphinx has for it
version = release = elasticscan.__version__

# The root of the repository is the root of the site, so that links between its pages are the same in both.
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "docs/*.rst", "docs/decisions/*.md", "spark-conf/*.md"]
exclude_patterns = [".venv*", "build"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_heading_anchors = 4
myst_links_external_new_tab = True

default_role = "code"  # a name between single backticks, as in docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_numpy_docstring = False
suppress_warnings = ["misc.highlighting_failure"]  # shells beside their output are no language

html_theme = "furo"
html_title = f"elasticscan {version}"
html_static_path = []

CONTENTS = {
    "Use": [
        "tour",
        "cookbook",
        "coming-from",
        "options",
        "writes",
        "sql",
        "streaming",
        "indexes",
        "history",
        "schema-changes",
        "moving-data",
        "command-line",
        "ui",
        "api",
    ],
    "Run": [
        "operations",
        "upkeep",
        "cluster",
        "../spark-conf/README",
        "object-storage",
        "security",
        "errors",
        "guarantees",
        "limits",
    ],
    "Know": [
        "architecture",
        "worked-example",
        "formats",
        "performance",
        "peers",
        "scale",
        "testing",
        "decisions/README",
    ],
    "Project": ["../CHANGELOG", "../CONTRIBUTING", "../SECURITY"],
}


def with_contents(_: Any, name: str, source: list[str]) -> None:
    """Pages with the pages below them; in the repository these are links alone."""
    if name == "docs/decisions/README":
        source[0] += _contents("Decisions", ["0*"], ":glob:")
    if name == root_doc:
        for caption, pages in CONTENTS.items():
            places = [f"/docs/{page}".replace("/docs/../", "/") for page in pages]
            source[0] += _contents(caption, places)


def _contents(caption: str, pages: Sequence[str], *options: str) -> str:
    lines = ["", "```{toctree}", f":caption: {caption}", ":hidden:", *options, "", *pages, "```", ""]
    return "\n".join(lines)


def setup(app: Any) -> None:
    app.connect("source-read", with_contents)
