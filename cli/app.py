"""The commands by name, and what becomes of an error."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from elasticscan.base.errors import ElasticScanError, InvalidOption
from elasticscan.cli.commands import (
    BELOW_INSTEAD,
    BY_NAME,
    EXAMPLES,
    INSTEAD,
    MORE_TOLD,
    OPTIONS_INSTEAD,
    OPTIONS_TOLD,
)
from elasticscan.cli.output import remember_json, report_error, unwritten, wants_json

_TOO_MANY = "Got unexpected extra argument"  # words of the parser
_NO_COMMAND = re.compile(r"No such command '([^']*)'")

# What words that cannot be parsed raise, in whichever click typer brings along.
WrongWords = cast("type[Exception]", typer.BadParameter.__base__)


class Commands(TyperGroup):
    """Turns typed errors into a message and an exit code, in one place for all commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        remember_json(ctx, "--json" in args)  # its own callback is not reached when other words are wrong
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args[0] in INSTEAD:
            ctx.fail(f"No such command {args[0]!r}: write `elasticscan {INSTEAD[args[0]]}`.")
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed and BY_NAME[args[0]].load(), rest

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
            return result
        except WrongWords as error:
            text = cast("Any", error)
            _tell_options(text)
            if not wants_json(ctx):
                raise
            why = text.format_message().rstrip(".")
            wrong = InvalidOption(f"{why}; see `{(text.ctx or ctx).command_path} --help`")
            raise typer.Exit(report_error(wrong, as_json=True)) from error
        except ElasticScanError as error:
            raise typer.Exit(report_error(error, wants_json(ctx))) from error
        except (OSError, UnicodeEncodeError) as error:
            if (text := unwritten(error)) is None:
                raise
            raise typer.Exit(report_error(text, wants_json(ctx))) from error
        except KeyboardInterrupt as error:
            # The files that the command had staged were removed on the way here: nothing is half done.
            raise typer.Exit(130) from error


def _tell_options(error: Any) -> None:
    """Put the right words into the error about an option of other systems."""
    if error.ctx is None:  # an option without its value is told before the command is known
        return
    wrong, command = getattr(error, "option_name", ""), str(error.ctx.info_name)
    why = OPTIONS_TOLD.get(f"{command} {wrong}", OPTIONS_TOLD.get(wrong))
    if (error.message or "").startswith(_TOO_MANY):
        why = MORE_TOLD.get(command)
    if why is not None:
        error.message, error.possibilities = f"{error.message}: {why}", None
        return
    instead = OPTIONS_INSTEAD.get(wrong, ())
    below = getattr(error.ctx.command, "commands", {})
    named = _NO_COMMAND.match(error.message or "")
    if below and named is not None and error.ctx.parent is not None:
        meant = BELOW_INSTEAD.get(named[1], next(iter(below)))
        there = f"there are {', '.join(below)}; as in {_example(error.ctx, meant)}"
        error.message = f"No such command {named[1]!r}: {there}"
        return
    own = {word for parameter in error.ctx.command.params for word in parameter.opts} if instead else set()
    here = [word for word in instead if word in own]
    elsewhere = [words for words in instead if not words.startswith("--")]
    if here or elsewhere:
        error.possibilities = here
    if elsewhere and not here:
        error.message += f": write `elasticscan {elsewhere[0]}`"
    elif not here and error.ctx.parent is not None and not getattr(error, "possibilities", None):
        example = _example(error.ctx)
        # Of an option that is missing there is no message yet, and a dot before it.
        error.message = f"{error.message}; as in {example}" if error.message else f"As in {example}"


def _example(ctx: Any, last: str = "") -> str:
    """A call of the command, as people type it."""
    names: list[str] = [last] if last else []
    while ctx.parent is not None:
        names.insert(0, ctx.info_name)
        ctx = ctx.parent
    calls, below = EXAMPLES[BY_NAME[names[0]].place], " ".join(names[1:])
    words = next((call for call in calls if call.startswith(below)), calls[0])
    return f"`elasticscan {names[0]} {words}`"


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
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


def _entry(ctx: typer.Context) -> None:
    """Stands in the list of commands for one whose module is imported when it is called."""


for entry in BY_NAME.values():
    app.command(entry.name, help=entry.help, rich_help_panel=entry.panel, hidden=entry.is_alias)(_entry)
