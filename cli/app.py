"""The commands by name, and what becomes of an error."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from elasticscan.base.errors import ElasticScanError, InvalidOption
from elasticscan.cli import (
    backups,
    changing,
    columns,
    explaining,
    getting,
    indexes,
    loading,
    scanning,
    snapshots,
    stores,
    upkeep,
)
from elasticscan.cli import topology as changes
from elasticscan.cli.options import remember_json, wants_json
from elasticscan.cli.output import report_error

STORE, DATA, CHANGE, CARE = "A store", "Its data", "Where tablets live", "Its upkeep"

# What words that cannot be parsed raise, in whichever click typer brings along.
WrongWords = cast("type[Exception]", typer.BadParameter.__base__)


class Commands(TyperGroup):
    """Turns typed errors into a message and an exit code, in one place for all commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        remember_json(ctx, "--json" in args)  # its own callback is not reached when other words are wrong
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except WrongWords as error:
            if not wants_json(ctx):
                raise
            told = cast("Any", error)
            why = told.format_message().rstrip(".")
            wrong = InvalidOption(f"{why}; see `{told.ctx.command_path} --help`")
            raise typer.Exit(report_error(wrong, as_json=True)) from error
        except ElasticScanError as error:
            raise typer.Exit(report_error(error, wants_json(ctx))) from error
        except KeyboardInterrupt as error:
            # The files that the command had staged were removed on the way here: nothing is half done.
            raise typer.Exit(130) from error


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Sharded tables whose tablets move while scans return every row exactly once.",
)


def _version(wanted: bool) -> None:
    if wanted:
        try:
            print(importlib.metadata.version("elasticscan"))
        except importlib.metadata.PackageNotFoundError:  # run from its sources
            print("unknown (not installed)")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options of all commands."""


app.command("create", rich_help_panel=STORE)(stores.create)
app.command("status", rich_help_panel=STORE)(stores.status)
app.command("tables", rich_help_panel=STORE)(stores.tables)
app.command("drop", rich_help_panel=STORE)(stores.drop)
app.command("load", rich_help_panel=DATA)(loading.load)
app.command("update", rich_help_panel=DATA)(changing.update)
app.command("delete", rich_help_panel=DATA)(changing.delete)
app.command("scan", rich_help_panel=DATA)(scanning.scan)
app.command("get", rich_help_panel=DATA)(getting.get)
app.command("explain", rich_help_panel=DATA)(explaining.explain)
app.command("history", rich_help_panel=DATA)(snapshots.history)
app.command("restore-table", rich_help_panel=DATA)(snapshots.restore_table)
app.add_typer(snapshots.tags, name="tag", rich_help_panel=DATA)
app.add_typer(indexes.commands, name="index", rich_help_panel=DATA)
app.command("add-column", rich_help_panel=DATA)(columns.add_column)
app.command("drop-column", rich_help_panel=DATA)(columns.drop_column)
app.command("rename-column", rich_help_panel=DATA)(columns.rename_column)
app.command("widen-column", rich_help_panel=DATA)(columns.widen_column)
app.command("expand", rich_help_panel=CHANGE)(changes.expand)
app.command("contract", rich_help_panel=CHANGE)(changes.contract)
app.command("move", rich_help_panel=CHANGE)(changes.move)
app.command("split", rich_help_panel=CHANGE)(changes.split)
app.command("join", rich_help_panel=CHANGE)(changes.join)
app.command("topologies", rich_help_panel=CHANGE)(changes.topologies)
app.command("keep", rich_help_panel=CARE)(upkeep.keep)
app.command("compact", rich_help_panel=CARE)(upkeep.compact)
app.command("gc", rich_help_panel=CARE)(upkeep.collect_garbage)
app.command("backup", rich_help_panel=CARE)(backups.backup)
app.command("restore", rich_help_panel=CARE)(backups.restore)
app.command("adopt", rich_help_panel=CARE)(upkeep.adopt)
app.command("verify", rich_help_panel=CARE)(upkeep.verify)
app.command("repair", rich_help_panel=CARE)(upkeep.repair)
app.command("rotate-secret", rich_help_panel=CARE)(upkeep.rotate_secret)
