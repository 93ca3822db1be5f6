"""The command line of a store, for people and for scripts.

- A command prints text and tables, and shows a spinner on a terminal. With `--json` it prints one JSON
  document, or one JSON object per line for rows. `status --json` prints exactly `Store.status()`.
- An error is printed on stderr with its `[ES_...]` code, with `--json` as a JSON object. The exit code shows
  what to do:

      0  done
      1  an unexpected error, with its traceback
      2  correct the call                            (`UsageError`, and options that do not parse)
      3  the same call may succeed later             (`TryAgain`)
      4  start a new scan                            (`StartAgain`)
      5  the store or its disks need an operator     (`OperatorNeeded`, damage that `verify` found)

- The size of a page limits the memory, not the size of the table.

app          registers the commands; exit codes of errors
options      options that several commands share
output       tables, JSON, spinner, errors
store        create, status, tables, ui
table        drop, update, delete, columns, compression, history, restore-table, set-retention, tag, index
files        load, export
rows         scan, changes, count, get, aggregate, sql, explain
topology     expand, contract, rebalance, move, split, join, topologies
maintenance  keep, compact, gc, backup, restore, adopt, verify, repair, rotate-secret

`typer` and `rich` belong to an extra (`pip install 'elasticscan[cli]'`), so they are imported when `main`
runs. `import elasticscan` loads the packages for Arrow and SQL when their names are first used, so that
`--help` and shell completion are fast.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    try:
        from elasticscan.cli.app import app  # an optional extra  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        hint = "pip install 'elasticscan[cli]'"
        raise SystemExit(f"The command line needs the package {error.name!r}: {hint}") from None
    app()


__all__ = ["main"]
