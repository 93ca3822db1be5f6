"""Tables, indexes, columns, and how often each style of program makes which step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.simulation.conditions import INFINITY, NAN

ONE = pa.schema(
    [
        ("id", pa.int64()),
        ("k", pa.int32()),
        ("d", pa.float64()),
        ("s", pa.string()),
        ("v", pa.int64()),
    ]
)
TWO = pa.schema([("a", pa.int64()), ("b", pa.string()), ("k", pa.int64()), ("v", pa.int64())])
# By name: the schema, the primary key, the shard key.
TABLES: dict[str, tuple[pa.Schema, list[str], list[str]]] = {
    "one": (ONE, ["id"], ["id"]),
    "two": (TWO, ["a", "b"], ["a"]),
}

# The values of a column, except nulls.
DOMAINS: dict[str, dict[str, list[Any]]] = {
    "one": {
        "id": [0, 3, 10, 50],
        "k": [0, 1, 2, 3, 7, -1],
        "d": [NAN, -0.0, 0.0, INFINITY, -INFINITY, 0.5, -2.25],
        "s": ["", "a", "ab", "abc", "b", "é", "a%", "Z", "\U0001f600"],
        "v": [0, 100, 500, 900],
    },
    "two": {"a": [0, 1, 3], "b": ["k0", "k1", "k12", "k9"], "k": [0, 1, 2, 1 << 40], "v": [0, 100, 900]},
}
# Columns, kind, included columns.
Definition = tuple[list[str], str, list[str]]
DEFINITIONS: dict[str, dict[str, Definition]] = {
    "one": {
        "by_k": (["k"], "sorted", []),
        "by_kd": (["k", "d"], "sorted", ["v"]),
        "by_d": (["d"], "sorted", ["s", "v"]),
        "by_sk": (["s", "k"], "sorted", []),
        "all_by_v": (["v"], "sorted", ["k", "d", "s"]),
        "hash_k": (["k"], "hash", ["v"]),
        "hash_sk": (["s", "k"], "hash", []),
        "hash_d": (["d"], "hash", []),
    },
    "two": {
        "by_k": (["k"], "sorted", []),
        "by_ka": (["k", "a"], "sorted", ["v"]),
        "by_bk": (["b", "k"], "sorted", []),
        "hash_k": (["k"], "hash", ["v"]),
    },
}
# The types of columns that are added later, and their values except nulls.
ADDED_KINDS: dict[pa.DataType, list[Any]] = {
    pa.int32(): [0, 1, -7],
    pa.string(): ["", "a", "äö"],
    pa.bool_(): [True, False],
    pa.float64(): [0.0, 2.5],
    pa.large_binary(): [b"", b"\0x"],
}
MOST_COLUMNS = 8
# The types of columns that are changed, each with its wider type.
WIDER: dict[pa.DataType, pa.DataType | None] = {
    pa.int8(): pa.int32(),
    pa.int32(): pa.int64(),
    pa.int64(): None,
    pa.float32(): pa.float64(),
    pa.float64(): None,
    pa.decimal128(4, 2): pa.decimal128(20, 2),
    pa.decimal128(20, 2): None,
    pa.string(): None,
}
COLUMN_NAMES = ("x1", "x2", "x3", "x4")
VALUES: dict[pa.DataType, list[Any]] = ADDED_KINDS | {
    pa.int8(): [0, 1, -7, 127],
    pa.int64(): [0, 1, -7, 1 << 40],
    pa.float32(): [0.0, 2.5],
    pa.decimal128(4, 2): [Decimal("0.00"), Decimal("12.25")],
    pa.decimal128(20, 2): [Decimal("0.00"), Decimal("123456789.25")],
}


@dataclass(frozen=True, slots=True)
class Style:
    """A kind of program.

    Attributes:
        weights: how often each step is made.
        is_mixture: each program has its own weights (some are 0), and its own probability of others' steps.
        is_merged: nearly all scans go through indexes, and return rows in one order.
        is_by_key: conditions are on primary keys.
        changes_columns: columns change, so scans read older snapshots, and programs continue in backups.
        is_kept: keepers have bounds, which the store must meet at the end.
    """

    weights: Mapping[str, int]
    is_mixture: bool = False
    is_merged: bool = False
    is_by_key: bool = False
    changes_columns: bool = False
    is_kept: bool = False


# The weights of steps: on rows and tablets, and also on indexes and columns.
# fmt: off
WEIGHTS = {
    "write": 10, "overwrite": 1, "delete": 4, "start_scan": 6, "advance_one": 16, "hand_over": 3,
    "move": 5, "move_and_return": 2, "suspended_move": 5, "resume_moves": 1, "split": 2, "join": 2,
    "expand": 1, "contract": 1, "compact": 4, "flush": 5, "collect_garbage": 3, "wait": 1,
}
ALL_WEIGHTS = WEIGHTS | {"create_index": 5, "drop_index": 1, "build_on": 1, "add_column": 3}
BY_KEY, CHECKING, KEEPERS, CHANGING = "by key", "writes that check", "keepers", "columns change"
KEPT_CHANGING, MERGES, PAST = "kept columns change", "merges of some", "the past"
# Some styles test a corner with few rules; a mixture has random weights.
STYLES: dict[str, Style] = {
    "mixture": Style(ALL_WEIGHTS, is_mixture=True),
    "another mixture": Style(ALL_WEIGHTS, is_mixture=True),
    "a third mixture": Style(ALL_WEIGHTS, is_mixture=True),
    "mixture of rows": Style(WEIGHTS, is_mixture=True),
    "another mixture of rows": Style(WEIGHTS, is_mixture=True),
    "compaction below movers": Style({
        "delete": 8, "suspended_move": 20, "compact": 8, "flush": 8, "start_scan": 1,
    }),
    "leases": Style({
        "delete": 3, "start_scan": 10, "advance_one": 5, "hand_over": 2, "compact": 8, "wait": 2,
    }),
    "indexes come and go": Style({
        "delete": 3, "create_index": 10, "drop_index": 5, "start_scan": 6, "advance_one": 20, "move": 3,
    }),
    "index scans alongside movers": Style({
        "delete": 4, "create_index": 1, "start_scan": 8, "advance_one": 20, "hand_over": 4,
        "suspended_move": 8, "move_and_return": 6, "compact": 2, "flush": 4, "collect_garbage": 2,
    }),
    "merged scans alongside movers": Style({
        "write": 4, "delete": 2, "create_index": 3, "start_scan": 6, "advance_one": 24, "hand_over": 8,
        "move": 6, "move_and_return": 6, "suspended_move": 4, "compact": 4, "flush": 4,
    }, is_merged=True),
    "indexes alongside writes": Style({
        "write": 14, "delete": 3, "create_index": 14, "build_on": 4, "drop_index": 2, "move": 2,
        "start_scan": 4, "advance_one": 6,
    }),
    "builds alongside changes": Style({
        "delete": 4, "overwrite": 1, "create_index": 8, "build_on": 4, "drop_index": 2, "suspended_move": 6,
        "compact": 5, "collect_garbage": 4, "start_scan": 4, "advance_one": 20,
    }),
    "columns below compactions": Style({
        "write": 20, "delete": 2, "add_column": 5, "compact": 10, "start_scan": 2, "advance_one": 16,
    }),
    "columns below movers": Style({
        "delete": 2, "add_column": 5, "create_index": 1, "suspended_move": 10, "move_and_return": 2,
        "start_scan": 3, "advance_one": 8,
    }),
}
# Styles that only run by name, so that the programs of existing seeds stay the same.
STYLES_BY_NAME: dict[str, Style] = {
    MERGES: Style({
        "write": 14, "delete": 8, "overwrite": 1, "create_index": 2, "start_scan": 5, "advance_one": 8,
        "move": 4, "move_and_return": 3, "suspended_move": 4, "split": 1, "collect_garbage": 2,
        "add_column": 1, "merge": 16,
    }),
    PAST: Style({
        "write": 16, "delete": 8, "change_where": 4, "overwrite": 4, "compact": 12, "tag": 9, "drop_tag": 12,
        "restore": 12, "read_tag": 6, "read_changes": 2, "move": 4, "split": 3, "collect_garbage": 4,
    }),
    BY_KEY: Style({
        "write": 16, "overwrite": 1, "delete": 5, "get": 12, "start_scan": 8, "advance_one": 16,
        "hand_over": 4, "move": 5, "move_and_return": 4, "suspended_move": 6, "split": 2, "join": 2,
        "compact": 2, "merge": 6, "wait": 1, "collect_garbage": 2, "create_index": 1,
    }, is_by_key=True),
    CHANGING: Style({
        "write": 14, "overwrite": 1, "delete": 3, "change_column": 12, "get": 3, "start_scan": 8,
        "advance_one": 14, "hand_over": 6, "suspended_move": 5, "move": 2, "compact": 3, "merge": 6,
        "collect_garbage": 2, "create_index": 1, "wait": 1,
    }, changes_columns=True),
    CHECKING: Style({
        "write": 4, "checked_write": 24, "change_where": 8, "delete": 3, "overwrite": 2, "suspended_move": 5,
        "move": 2, "split": 1, "join": 1, "compact": 4, "merge": 6, "collect_garbage": 2, "add_column": 1,
        "create_index": 1,
    }),
    KEEPERS: Style({
        "write": 20, "overwrite": 1, "delete": 5, "checked_write": 5, "change_where": 4, "get": 3,
        "start_scan": 6, "advance_one": 14, "hand_over": 3, "read_changes": 2, "tag": 4, "drop_tag": 2,
        "read_tag": 3, "restore": 3, "back_up": 1, "keep": 16, "merge": 3, "suspended_move": 4, "move": 2,
        "split": 1, "join": 1, "collect_garbage": 2, "create_index": 4, "build_on": 1, "drop_index": 1,
        "add_column": 2, "wait": 1,
    }, is_kept=True),
    KEPT_CHANGING: Style({
        "write": 18, "overwrite": 1, "delete": 3, "checked_write": 3, "change_where": 3, "change_column": 14,
        "get": 2, "start_scan": 6, "advance_one": 12, "hand_over": 5, "read_changes": 3, "tag": 6,
        "drop_tag": 2, "read_tag": 4, "restore": 7, "back_up": 2, "keep": 14, "merge": 4, "suspended_move": 4,
        "move": 2, "split": 1, "join": 1, "collect_garbage": 2, "create_index": 1, "wait": 1,
    }, changes_columns=True, is_kept=True),
}
# fmt: on
