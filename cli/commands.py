"""The commands by name: for whom each is, where it is, and what the list of all says of it.

Only the module of the command that is called is imported: most of the time that a list of commands would
take goes into Arrow and SQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

STORE, DATA, CHANGE, CARE = "A store", "Its data", "Where tablets live", "Its upkeep"


class GivenOnce(TyperCommand):
    """A command that refuses an option of one value which is given twice: the last would win in silence."""

    def make_parser(self, ctx: Any) -> Any:
        parser: Any = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_once(args: list[str]) -> Any:
            parsed = parse(args)
            order = parsed[2]
            for option in order:
                many = getattr(option, "multiple", True) or getattr(option, "is_flag", False)
                if not many and order.count(option) > 1:
                    ctx.fail(f"{option.opts[0]} is given twice; give it once.")
            return parsed

        parser.parse_args = parse_once
        return parser


@dataclass(frozen=True, slots=True)
class Command:
    """A command, or a group of them.

    Attributes:
        place: the module of this folder and the function, or the Typer of a group, in it.
        help: the first line of its help.
        is_alias: it is another name of a command, not listed.
    """

    panel: str
    name: str
    place: str
    help: str
    is_alias: bool = False

    def target(self) -> Any:
        """The function, or the Typer of a group."""
        module, _, attribute = self.place.partition(":")
        return getattr(import_module(f"elasticscan.cli.{module}"), attribute)

    def examples(self) -> str:
        """Calls as people type them, below the help."""
        calls = [f"elasticscan {self.name} {words}" for words in EXAMPLES[self.place]]
        return "\n\n".join(["Examples:" if len(calls) > 1 else "Example:", *calls])

    def load(self) -> Any:
        """The command as the parser takes it."""
        group = self.target()
        if not isinstance(group, typer.Typer):
            function, group = group, typer.Typer(add_completion=False, rich_markup_mode="rich")
            group.command(self.name, epilog=self.examples())(function)
        for command in group.registered_commands:
            command.cls = GivenOnce
        group.info.epilog = self.examples()
        return typer.main.get_command(group)


COMMANDS = (
    Command(STORE, "create", "stores:create", "Make a store."),
    Command(STORE, "status", "stores:status", "Show shards, tablets, tables, moves, streams and leases."),
    Command(STORE, "ui", "watching:ui",
        "Show a store while it lives, as a page for a browser; reads only, until this is stopped."),
    Command(STORE, "tables", "stores:tables", "List the tables and their columns."),
    Command(STORE, "drop", "stores:drop",
        "Drop a table with its rows and its history; a later gc removes its files."),
    Command(DATA, "load", "loading:load",
        "Load files into a table: one commit, all or nothing; or, as a job, a commit for each file."),
    Command(DATA, "export", "exporting:export",
        "Write the rows of a snapshot to a file, or as Parquet files with _SUCCESS to a directory."),
    Command(DATA, "update", "changing:update",
        "Give columns new values in the rows that meet a condition: one commit, all or nothing."),
    Command(DATA, "delete", "changing:delete",
        "Delete rows that meet a condition, or that have keys: one commit, all or nothing."),
    Command(DATA, "scan", "scanning:scan",
        "Read every row of a snapshot exactly once, while tablets move."),
    Command(DATA, "get", "getting:get",
        "Read the rows that have some primary keys, in the order of the keys."),
    Command(DATA, "count", "scanning:count",
        "Count the rows of a snapshot, or those that meet a condition."),
    Command(DATA, "aggregate", "aggregating:aggregate",
        "Compute count, sum, min, max and avg of a snapshot's rows, by group."),
    Command(DATA, "sql", "querying:sql",
        "Query the tables of a store with DuckDB: all of them at one snapshot, each row once."),
    Command(DATA, "changes", "scanning:changes",
        "Read what commits did: each insert, update and delete exactly once, while tablets move."),
    Command(DATA, "explain", "explaining:explain", "Say how a scan would read, where, and why so."),
    Command(DATA, "history", "snapshots:history",
        "List a table's commits, oldest first: each is a snapshot that a scan takes."),
    Command(DATA, "log", "snapshots:history", "The same as history.", is_alias=True),
    Command(DATA, "restore-table", "snapshots:restore_table",
        "Make a table again what it was at a snapshot, by a new commit."),
    Command(DATA, "set-retention", "snapshots:set_retention",
        "Say how long snapshots and changes of a table stay readable without a tag or a lease."),
    Command(DATA, "tag", "snapshots:tags", "Names that keep a snapshot: create, drop, list."),
    Command(DATA, "index", "indexes:commands", "Secondary indexes: create, drop, list."),
    Command(DATA, "add-column", "columns:add_column",
        "Add a column to a table, while others write, scan and move; rows that are there are null in it."),
    Command(DATA, "drop-column", "columns:drop_column",
        "Drop a column of a table, while others write, scan and move; merges remove its values later."),
    Command(DATA, "rename-column", "columns:rename_column",
        "Give a column of a table another name, while others write, scan and move."),
    Command(DATA, "widen-column", "columns:widen_column",
        "Give a column of a table a wider type of the same kind: int32 to int64, float to double."),
    Command(DATA, "set-compression", "columns:set_compression",
        "Say how a table's files are written from now on; compact writes those that are there again."),
    Command(CHANGE, "expand", "topology:expand",
        "Add shards that are not there yet, and move the fewest tablets that balance."),
    Command(CHANGE, "contract", "topology:contract", "Move all tablets off a shard and remove it."),
    Command(CHANGE, "rebalance", "topology:rebalance", "Move the fewest tablets that balance the shards."),
    Command(CHANGE, "move", "topology:move",
        "Move one tablet, or finish what processes that died left behind."),
    Command(CHANGE, "split", "topology:split", "Cut a tablet in two; copies nothing."),
    Command(CHANGE, "join", "topology:join",
        "Make two neighbouring tablets of one shard one; copies nothing."),
    Command(CHANGE, "topologies", "topology:topologies",
        "List the topologies that are kept, oldest first; the last may be of a plan that still moves "
        "tablets."),
    Command(CARE, "keep", "upkeep:keep",
        "Keep a store fast which others write to, until this is stopped: merge, split, join, move, "
        "collect."),
    Command(CARE, "compact", "upkeep:compact", "Merge small fragments into large ones."),
    Command(CARE, "optimize", "upkeep:compact", "The same as compact.", is_alias=True),
    Command(CARE, "gc", "upkeep:collect_garbage", "Remove files that nothing needs any more."),
    Command(CARE, "vacuum", "upkeep:collect_garbage", "The same as gc.", is_alias=True),
    Command(CARE, "backup", "backups:backup",
        "Copy a whole store as of now, with all snapshots that it keeps; only what is not there yet."),
    Command(CARE, "restore", "backups:restore", "Make a store of a backup."),
    Command(CARE, "adopt", "upkeep:adopt",
        "Make this catalog the owner of its shards: after a backup of it was put back, or of a copied "
        "store."),
    Command(CARE, "verify", "upkeep:verify",
        "Read every file; exit code 5 if one is damaged, with the rows, slots and commits that it had."),
    Command(CARE, "repair", "upkeep:repair",
        "Make a store again from its files; the damaged one is only read. Exit code 5 if something is "
        "lost."),
    Command(CARE, "rotate-secret", "upkeep:rotate_secret",
        "Replace the secrets of continuation keys and of streams' offsets; those in use go on."),
)  # fmt: skip

# What people would type, by the place of a command; its help shows them.
EXAMPLES: Mapping[str, Sequence[str]] = {
    "stores:create": ["trips.store --shard s1 --shard s2", "trips.store --shard s1=/mnt/a --retention 30d"],
    "stores:status": ["trips.store", "trips.store --tablets", "trips.store --json"],
    "watching:ui": ["trips.store", "trips.store --port 0 --open"],
    "stores:tables": ["trips.store"],
    "stores:drop": ["trips.store old_trips --yes"],
    "loading:load": [
        "trips.store trips trips.csv --primary-key id",
        "trips.store trips trips.txt --delimiter ';' --column-names id,city,km",
        "trips.store trips 'in/**/*.parquet' --job 2026-06",
        "trips.store trips s3://bucket/trips/ --insert",
    ],
    "exporting:export": [
        "trips.store trips trips.csv",
        "trips.store trips out/",
        "trips.store trips s3://bucket/out --filter \"city = 'Oslo'\"",
    ],
    "changing:update": ["trips.store trips --set 'km=km * 2' --where 'id = 7'"],
    "changing:delete": [
        "trips.store trips --where \"city = 'Oslo'\"",
        "trips.store trips --key 7 --key 9",
        "trips.store trips keys.csv",
    ],
    "scanning:scan": [
        "trips.store trips --filter 'km > 9' --columns id,km",
        "trips.store trips --snapshot 2026-03-01T12:00Z -o trips.parquet",
        "trips.store trips --format csv > trips.csv",
    ],
    "scanning:count": ["trips.store trips --filter \"city = 'Oslo'\""],
    "scanning:changes": ["trips.store trips --after 2", "trips.store trips --after 2026-03-01T12:00Z --json"],
    "getting:get": ["trips.store trips 7 9"],
    "aggregating:aggregate": ["trips.store trips 'count(*)' 'avg(km) AS km' --by city"],
    "querying:sql": ["trips.store 'SELECT city, count(*) FROM trips GROUP BY ALL'"],
    "explaining:explain": ["trips.store trips --filter 'id < 10' --analyze"],
    "snapshots:history": ["trips.store trips --limit 10"],
    "snapshots:restore_table": ["trips.store trips --to 2", "trips.store trips --to 2026-03-01T12:00Z"],
    "snapshots:set_retention": ["trips.store trips 30d", "trips.store trips store"],
    "snapshots:tags": ["create trips.store trips june --snapshot 5", "list trips.store trips"],
    "indexes:commands": ["create trips.store trips by_city --columns city", "list trips.store"],
    "columns:add_column": ["trips.store trips note string"],
    "columns:drop_column": ["trips.store trips note"],
    "columns:rename_column": ["trips.store trips km kilometres"],
    "columns:widen_column": ["trips.store trips stops int64"],
    "columns:set_compression": ["trips.store trips zstd", "trips.store trips none"],
    "topology:expand": ["trips.store s3", "trips.store s3=/mnt/c --bytes-per-second 50M"],
    "topology:contract": ["trips.store s1"],
    "topology:rebalance": ["trips.store"],
    "topology:move": ["trips.store 5 s2", "trips.store --resume"],
    "topology:split": ["trips.store 5"],
    "topology:join": ["trips.store 5 6"],
    "topology:topologies": ["trips.store --svg slots.svg"],
    "upkeep:keep": ["trips.store", "trips.store --once"],
    "upkeep:compact": ["trips.store", "trips.store trips"],
    "upkeep:collect_garbage": ["trips.store --dry-run"],
    "backups:backup": ["trips.store /mnt/backups --keep 7"],
    "backups:restore": ["/mnt/backups restored.store"],
    "upkeep:adopt": ["trips.store"],
    "upkeep:verify": ["trips.store"],
    "upkeep:repair": ["damaged.store repaired.store"],
    "upkeep:rotate_secret": ["trips.store --revoke"],
}

BY_NAME = {command.name: command for command in COMMANDS}

# Commands of other systems that people type, each with what to write behind `elasticscan`.
INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(
        ("ls", "list", "describe", "desc", "schema", "topics", "collections", "keyspaces", "databases"),
        "tables STORE",
    ),
    **dict.fromkeys(
        ("lag", "offsets", "groups", "consumer-groups", "consumers", "checkpoints"), "status STORE --streams"
    ),
    **dict.fromkeys(("tail", "watch", "reset-offsets", "replay"), "changes STORE TABLE --after COMMIT"),
    **dict.fromkeys(("find", "filter", "search"), "scan STORE TABLE --filter 'id = 7'"),
    **dict.fromkeys(("cqlsh", "mongo", "mongosh", "psql", "shell"), "sql STORE 'SELECT …'"),
    **dict.fromkeys(("mongoexport", "unload"), "export STORE TABLE FILE"),
    **dict.fromkeys(("mongoimport", "copy-from", "insert-many"), "load STORE TABLE FILE"),
    **dict.fromkeys(("serve", "web", "dashboard", "top"), "ui STORE"),
    **dict.fromkeys(("ttl", "set-ttl", "expire"), "delete STORE TABLE --where CONDITION"),
    **dict.fromkeys(("alter", "alter-table"), "add-column STORE TABLE NAME TYPE"),
    **dict.fromkeys(("show", "head", "read", "cat", "consume", "select"), "scan STORE TABLE --limit 10"),
    **dict.fromkeys(("shards", "leases", "info", "stats", "nodes", "ring", "nodetool"), "status STORE"),
    **dict.fromkeys(("import", "upsert", "merge", "put", "write", "produce"), "load STORE TABLE FILE"),
    **dict.fromkeys(("snapshots", "versions", "commits"), "history STORE TABLE"),
    **dict.fromkeys(("rollback", "revert", "undo"), "restore-table STORE TABLE --to SNAPSHOT"),
    **dict.fromkeys(("check", "fsck", "validate"), "verify STORE"),
    **dict.fromkeys(("init", "new"), "create STORE --shard s1 --shard s2"),
    **dict.fromkeys(("add-shard", "reshard", "scale"), "expand STORE SHARD"),
    **dict.fromkeys(("cdc", "diff"), "changes STORE TABLE --after COMMIT"),
    **dict.fromkeys(("drop-table", "rm", "drop-collection", "delete-topic"), "drop STORE TABLE"),
    **dict.fromkeys(("copy", "clone", "dump"), "backup STORE PLACE"),
    "create-index": "index create STORE TABLE NAME --columns A,B",
    **dict.fromkeys(
        ("create-table", "create-topic", "create-collection"), "load STORE TABLE FILE --primary-key id"
    ),
    "drop-index": "index drop STORE TABLE NAME",
    "expire-snapshots": "gc STORE",
    "help": "--help",
    "insert": "load STORE TABLE FILE --insert",
    "query": "sql STORE 'SELECT …'",
    "remove-shard": "contract STORE SHARD",
    "streams": "status STORE --streams",
    "tablets": "status STORE --tablets",
    "truncate": "delete STORE TABLE --where true",
    "version": "--version",
}

# Options likewise, each with those that say it here, of which a command has some; else with another command.
OPTIONS_INSTEAD: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("--where", "--condition", "--predicate", "--filter"), ("--filter", "--where")),
    **dict.fromkeys(("--as-of", "--version", "--at", "--timestamp"), ("--snapshot", "--to")),
    **dict.fromkeys(
        ("--since", "--from", "--starting-version"),
        ("--after", "--if-unchanged-since", "changes STORE TABLE --after COMMIT"),
    ),
    **dict.fromkeys(("--until", "--ending-version"), ("--upto",)),
    "--mode": ("--insert", "--overwrite"),
    **dict.fromkeys(("--select", "--fields", "--column"), ("--columns", "--set")),
    **dict.fromkeys(("--order", "--sort"), ("--order-by",)),
    **dict.fromkeys(("--head", "--rows", "-n", "--max-rows", "--top"), ("--limit",)),
    **dict.fromkeys(("--key", "--pk"), ("--primary-key", "get STORE TABLE KEY")),
    **dict.fromkeys(("--force", "-y", "-f"), ("--yes",)),
    **dict.fromkeys(("--shards", "--root"), ("--shard",)),
    "--group-by": ("--by",),
    **dict.fromkeys(("--no-header", "--header", "--names"), ("--column-names",)),
    **dict.fromkeys(("--sep", "--separator", "--delim"), ("--delimiter",)),
    "--to": ("--upto", "restore-table STORE TABLE --to SNAPSHOT"),
    **dict.fromkeys(
        ("--retain", "--retention", "--retention-hours", "--older-than"),
        ("set-retention STORE TABLE PERIOD",),
    ),
    "--format": ("scan STORE TABLE --format csv",),
    "--out": ("--output",),
    "--svg": ("topologies STORE --svg FILE",),
    **dict.fromkeys(("--lag", "--groups", "--group"), ("--streams", "status STORE --streams")),
}

# Words of others for commands below `tag` and `index`.
BELOW_INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(("ls", "show", "get"), "list"),
    **dict.fromkeys(("delete", "rm", "remove", "del"), "drop"),
    **dict.fromkeys(("add", "new", "make", "set", "put"), "create"),
}

# Likewise, where no option says it: why, and what to do; some for one command alone.
OPTIONS_TOLD: Mapping[str, str] = {
    **dict.fromkeys(
        ("changes --limit", "changes -n", "changes --max-messages", "changes --head", "changes --max-rows"),
        "--page-rows 10 --pages 1 stops after the first 10 and tells the key that goes on",
    ),
    **dict.fromkeys(
        ("--offset", "--skip"),
        "--pages stops a scan and tells the --key that goes on, and --filter 'id > 17' begins behind a row",
    ),
    "changes --offset": "--after 16 begins behind commit 16",
    **dict.fromkeys(
        ("--from-beginning", "--earliest"), "leave it out: without --after all changes that are kept are read"
    ),
    **dict.fromkeys(
        ("--having", "aggregate --limit", "aggregate --order-by"),
        "`elasticscan sql STORE 'SELECT …'` takes HAVING, ORDER BY and LIMIT",
    ),
    **dict.fromkeys(
        ("changes --follow", "changes -f", "changes --tail", "changes --watch"),
        "what comes later is read by the same command with --after COMMIT, the last one that it told",
    ),
    **dict.fromkeys(
        ("--watch", "--follow", "status -f"), "`elasticscan ui STORE` shows a store while it lives"
    ),
    **dict.fromkeys(
        ("--zorder", "--zorder-by", "--cluster-by", "--sort-by"),
        "rows lie by their key; `elasticscan index create STORE TABLE NAME --columns A,B` makes others",
    ),
    "--consistency": "every read is of one snapshot: leave it out",
    "--ttl": "rows stay until they are deleted: `elasticscan delete STORE TABLE --where CONDITION`",
    "--allow-filtering": "any condition may be asked: leave it out",
    "--query": "--filter takes SQL, as --filter 'id = 7'",
}

# What words too many at the end of a command are meant for.
MORE_TOLD: Mapping[str, str] = {
    "restore": "a backup is made a store; of a table: `elasticscan restore-table STORE TABLE --to SNAPSHOT`",
    **dict.fromkeys(
        ("scan", "changes"), "--columns id,km names columns, --filter 'km > 9' takes a condition"
    ),
    "count": "--filter 'km > 9' takes a condition",
    "history": "--limit 10 says how many",
}
