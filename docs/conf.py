"""The site: the README, docs/ and the docstrings of what users import. `make site` fails at any warning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from myst_parser.parsers.sphinx_ import MystParser

import elasticscan

project = "elasticscan"
author = "the elasticscan authors"
copyright = author  # noqa: A001 - the name that Sphinx has for it
version = release = elasticscan.__version__

# The root of the repository is the root of the site, so that links between its pages are the same in both.
root_doc = "README"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/*.rst",
    "docs/notebooks/*.ipynb",
    "docs/decisions/*.md",
    "spark-conf/*.md",
]
exclude_patterns = [".venv*", "build"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_heading_anchors = 4
myst_links_external_new_tab = True

default_role = "code"  # a name between single backticks, as in docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_numpy_docstring = False
suppress_warnings = ["misc.highlighting_failure"]  # shells alongside their output are no language

html_theme = "furo"
html_title = f"elasticscan {version}"
html_static_path = []

CONTENTS = {
    "Use": [
        "tour",
        "notebooks/python",
        "notebooks/spark",
        "notebooks/flights",
        "cookbook",
        "coming-from",
        "options",
        "filters",
        "writes",
        "sql",
        "streaming",
        "spark-connect",
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


class NotebookParser(MystParser):  # type: ignore[misc]
    """Notebooks as pages: cells of text as they are, and code above what came out when it was run."""

    supported = ("notebook",)

    def parse(self, text: str, document: Any) -> None:
        cells = json.loads(text)["cells"]
        super().parse("\n\n".join(map(_page_of, cells)), document)


def _page_of(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        return source
    parts = ["```python", source, "```"]
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "text/html" in data:
            parts += ["", "```{raw} html", *"".join(data["text/html"]).splitlines(), "```"]
        else:
            parts += ["", "```text", "".join(output.get("text") or data["text/plain"]).rstrip(), "```"]
    return "\n".join(parts)


def setup(app: Any) -> None:
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    app.connect("source-read", with_contents)
