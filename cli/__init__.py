"""The command line: everything a store offers, for people and for scripts.

What it promises:

- **Every command has two voices.** For people: colours, pictures, and progress bars when a
  terminal is there to see them. With `--json`: values for scripts on stdout, one JSON document, or
  one JSON object a line for the rows of a scan. `status --json` is exactly `Store.status()`.
- **Errors are sorted by what to do about them.** The message, with its `[ES_...]` code, goes to
  stderr (as a JSON object with `--json`), and the exit code says who has to act:

      0  done
      1  something nobody foresaw, with its traceback
      2  mend the call                           (`UsageError`, and options that do not parse)
      3  the same call may succeed later         (`TryAgain`)
      4  start a new scan                        (`StartAgain`)
      5  the store or its disks need somebody    (`OperatorNeeded`, damage that `verify` found)

- **Nothing happens by halves.** `load` is one commit over all its files, and a table that it made
  goes again when the load fails; as a job it is a commit for each file, and goes on where it stopped.
  `scan --output` gives its file the name it was asked for when the file is complete. A scan that stops
  early prints the key that goes on after the last row printed, not somewhere near it. An index whose build
  was stopped is not used by scans, and the same `index create` goes on where it stopped.
- **Memory follows the page, not the table**, for `load` as for `scan`.

How it is cut:

commands     the commands by name; app: how they are found, errors and their exit codes
options      options that several commands share
output       the two voices: consoles, JSON, progress
files        CSV, Parquet and Arrow files, written
picture      a store's status, drawn
stores       create, status, tables, drop
watching     ui: the page of a store (`elasticscan.ui`)
columns      add-column, drop-column, rename-column, widen-column, set-compression
loading      load
exporting    export
changing     update, delete
scanning     scan, changes, count; getting: get
aggregating  aggregate
explaining   explain
snapshots    history, set-retention, tag create, tag drop, tag list, restore-table
indexes      index create, index drop, index list
topology     expand, contract, rebalance, move, split, join, topologies
querying     sql
backups      backup, restore
upkeep       keep, compact, gc, adopt, verify, repair, rotate-secret

`typer` and `rich` are optional (`pip install 'elasticscan[cli]'`): whoever only reads from Spark
needs neither. So nothing here is imported before `main` runs, and `main` says what is missing.
"""

from __future__ import annotations

import gc
import sys
from importlib.abc import MetaPathFinder

EXTRA = "elasticscan[cli]"


class _WithoutPandas(MetaPathFinder):
    """Keeps pandas out of this process: Arrow would import it with its first array."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("no command needs pandas", name=name)


def main() -> None:
    """The console entry point."""
    # Importing makes many objects and little garbage; looking for it takes a tenth of `status` or more.
    gc.set_threshold(100_000, 20, 20)
    sys.meta_path.insert(0, _WithoutPandas())
    try:
        from elasticscan.cli.app import app  # an optional extra  # noqa: PLC0415
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("rich", "typer"):
            raise
        print(
            f"The command line needs the package {missing!r}, which is not installed. Install it with:\n\n"
            f"    pip install '{EXTRA}'\n",
            file=sys.stderr,
        )
        raise SystemExit(1) from None
    app()


__all__ = ["main"]
