"""The page as HTML: without a script, and with all text escaped."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from typing import Any

from elasticscan.ui.sections import TABLETS, cells, sections, warnings_of

_STYLE = """
:root { color-scheme: light dark; font: 14px system-ui, sans-serif }
body { margin: 1.5em auto; max-width: 1100px; padding: 0 1em }
h1 { font-size: 1.2em } h2 { font-size: 1em; margin: 1.5em 0 .3em }
svg { width: 100% } .problem { color: #c33 }
div { overflow-x: auto } table { border-collapse: collapse }
th, td { padding: .15em 1.2em .15em 0; text-align: left; white-space: nowrap }
th { font-weight: normal; opacity: .7 } .number { text-align: right }
"""
# The Content-Security-Policy of a page: its own styles, and nothing else.
POLICY = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def page_of(uri: str, status: Mapping[str, Any], slot_map: str) -> str:
    """Return the page of a status and an SVG of the slot map."""
    facts = ", ".join(f"{name} {status[name]:,}" for name in ("topology", "snapshot", "slots"))
    body = [f"<p>{facts}, {len(status['tablets']):,} tablets</p>"]
    body += [f"<p class='problem'>{escape(text)}</p>" for text in warnings_of(status)]
    body += [slot_map, *(_table(*section) for section in sections(status))]
    return _document(uri, [*body, _table("tablets", TABLETS, cells(status["tablets"], TABLETS))])


def page_of_problem(uri: str, problem: str) -> str:
    """Return the page of a store that cannot be read."""
    return _document(uri, [f"<p class='problem'>{escape(problem)}</p>", "<p>This page tries again.</p>"])


def _document(uri: str, body: list[str]) -> str:
    title = escape(uri)
    return "\n".join(
        [
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
            "<meta http-equiv='refresh' content='2'><meta name='viewport' content='width=device-width'>",
            f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>",
            *body,
            "</body></html>",
        ]
    )


def _table(title: str, keys: tuple[str, ...], rows: list[list[int | str]]) -> str:
    heads = "".join(f"<th>{key.replace('_', ' ')}</th>" for key in keys)
    lines = ("".join(map(_cell, row)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<h2>{title}</h2><div><table><tr>{heads}</tr>{body}</table></div>"


def _cell(value: int | str) -> str:
    if isinstance(value, int):
        return f"<td class='number'>{value:,}</td>"
    return f"<td>{escape(value)}</td>"
