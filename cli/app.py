"""Registration of the commands; errors become exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from elasticscan.base.errors import ElasticScanError, InvalidOption
from elasticscan.cli import files, maintenance, rows, store, table, topology
from elasticscan.cli.output import is_json, report_error, take_json

# The error for options that do not parse. It comes from the copy of click inside typer.
ParseError = cast("type[Exception]", typer.BadParameter.__base__)


JSON = "With --json it prints JSON, for scripts."


class Commands(TyperGroup):
    """A group that reports the errors of all its commands and exits with their codes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, take_json(args))

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # fails here, not at Python's exit, if the reader has ended
            return result
        except ElasticScanError as error:
            raise typer.Exit(report_error(error)) from error
        except ParseError as error:
            if not is_json():
                raise
            wrong = InvalidOption(cast("Any", error).format_message())
            raise typer.Exit(report_error(wrong)) from error


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Sharded tables whose tablets move while scans return every row exactly once.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(metadata.version("elasticscan"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Define the options that come before a command."""


COMMANDS: Mapping[str, Sequence[Callable[..., None] | typer.Typer]] = {
    "A store": (store.create, store.status, store.ui, store.tables, table.drop),
    "Its data": (
        files.load, files.export, table.update, table.delete,
        rows.scan, rows.get, rows.count, rows.changes, rows.aggregate, rows.sql, rows.explain,
        table.history, table.restore_table, table.set_retention, table.tags, table.indexes,
        table.add_column, table.drop_column, table.rename_column, table.widen_column, table.set_compression,
    ),
    "Where tablets live": (
        topology.expand, topology.contract, topology.rebalance, topology.move, topology.split, topology.join,
        topology.topologies,
    ),
    "Its upkeep": (
        maintenance.keep, maintenance.compact, maintenance.gc, maintenance.backup, maintenance.restore,
        maintenance.adopt, maintenance.verify, maintenance.repair, maintenance.rotate_secret,
    ),
}  # fmt: skip

for panel, commands in COMMANDS.items():
    for command in commands:
        if isinstance(command, typer.Typer):
            app.add_typer(command, rich_help_panel=panel, epilog=JSON)
        else:
            app.command(rich_help_panel=panel, epilog=JSON)(command)
