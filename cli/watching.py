"""ui: the page of a store, served until it is stopped."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from elasticscan.base.redaction import shown
from elasticscan.cli.options import Json, Uri
from elasticscan.cli.output import console, print_json_line, warn
from elasticscan.cli.upkeep import until_stopped
from elasticscan.ui import is_loopback, make_server

PORT = 8765


def ui(
    uri: Uri,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Where to listen; beyond this machine there is no password."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 for any that is free.")] = PORT,
    open: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,  # noqa: A002
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Explain scans, too: who reaches the page can count rows that meet a filter.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Show a store while it lives, as a page for a browser; reads only, until this is stopped."""
    server = make_server(uri, host, port, explain)
    if json:
        print_json_line({"url": server.url, "host": server.host, "port": server.port})
    else:
        console().print(f"{shown(uri)}: {server.url}   (Ctrl-C ends it)", markup=False)
    if not is_loopback(host):
        counts = ", and can count its rows" if explain else ""
        warn(
            f"Whoever reaches {host} sees what `status` says of the store{counts}: there is no password.",
            "yellow",
        )
    if open:
        webbrowser.open(server.url)
    with until_stopped():
        server.run()
