"""What the streams must have done, from what the writers said they did.

Nothing here asks the store what a commit changed: the writers' steps are made again from their seed,
and put into the order of the commits that they got.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from elasticscan.base.hashing import slots_of
from tests.soak.programs import KEYS, Step, names

KINDS = ("insert", "update_preimage", "update_postimage", "delete")
_INSERT, _BEFORE, _AFTER, _DELETE = range(4)
_SHOWN = 12

Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Commit:
    number: int
    step: Step


@dataclass(frozen=True, slots=True)
class Events:
    """Changes as columns of the same length: which key, its value, the kind as an index, the commit."""

    keys: Longs
    values: Longs
    kinds: Longs
    commits: Longs

    def __len__(self) -> int:
        return len(self.keys)

    @staticmethod
    def of(parts: Sequence[tuple[Longs, Longs, int, int]]) -> Events:
        """Of (keys, values, kind, commit)."""
        sizes = [len(keys) for keys, *_ in parts]
        return Events(
            np.concatenate([np.zeros(0, np.int64), *[part[0] for part in parts]]),
            np.concatenate([np.zeros(0, np.int64), *[part[1] for part in parts]]),
            np.repeat(np.array([part[2] for part in parts], dtype=np.int64), sizes),
            np.repeat(np.array([part[3] for part in parts], dtype=np.int64), sizes),
        )

    def ids(self) -> Longs:
        """A number for each (commit, key, kind)."""
        assert KEYS < 1 << 20
        return (self.commits << 22) | (self.keys << 2) | self.kinds


class Table:
    """A table as the commits leave it: of each key whether it is there, and its value."""

    def __init__(self) -> None:
        self.alive = np.zeros(KEYS, dtype=bool)
        self.values = np.zeros(KEYS, dtype=np.int64)

    def rows(self) -> tuple[Longs, Longs]:
        keys = np.flatnonzero(self.alive)
        return keys, self.values[keys]

    def apply(self, commit: Commit) -> Iterator[tuple[Longs, Longs, int, int]]:
        """Do what a commit did; the changes that it made."""
        made, number = commit.step, commit.number
        keys = made.keys
        if made.kind != "write":
            gone = np.zeros(KEYS, dtype=bool)
            gone[keys] = True
            lost = np.flatnonzero(self.alive & (gone if made.kind == "delete" else ~gone))
            yield lost, self.values[lost], _DELETE, number
            self.alive[lost] = False
        if made.kind != "delete":
            written = np.full(len(keys), made.value)
            there = self.alive[keys]
            yield keys[~there], written[~there], _INSERT, number
            yield keys[there], self.values[keys[there]], _BEFORE, number
            yield keys[there], written[there], _AFTER, number
            self.alive[keys], self.values[keys] = True, made.value


def feed_since(commits: Sequence[Commit], snapshot: int) -> tuple[Events, Table]:
    """What a change feed tells that begins with a snapshot, and the table at the end."""
    table, parts = Table(), []
    ordered = sorted(commits, key=lambda commit: commit.number)
    for commit in ordered:
        if commit.number <= snapshot:
            for _ in table.apply(commit):
                pass
    parts.append((*table.rows(), _INSERT, snapshot))
    for commit in ordered:
        if commit.number > snapshot:
            parts += table.apply(commit)
    return Events.of(parts), table


def feed_written(place: Path) -> tuple[Events, list[str]]:
    """The feed as it came out in Parquet, and what is wrong with its rows by themselves."""
    files = committed_files(place)
    if not files:
        return Events.of([]), ["the feed has no files"]
    found = pa.concat_tables([pq.read_table(path) for path in files])
    wrong = []
    if found["name"].combine_chunks().equals(names(found["id"], found["v"]).combine_chunks()) is False:
        wrong.append("rows of the feed hold the values of several rows")
    kinds = np.full(len(found), -1, dtype=np.int64)
    message = found["_change_type"].to_numpy()
    for code, kind in enumerate(KINDS):
        kinds[message == kind] = code
    if (kinds < 0).any():
        wrong.append(f"the feed tells of {set(message[kinds < 0])}")
    columns = [found[name].to_numpy() for name in ("id", "v")]
    return Events(columns[0], columns[1], kinds, found["_commit_version"].to_numpy()), wrong


def committed_files(place: Path) -> list[Path]:
    """The files that Spark's file sink has committed; others are of micro-batches that died."""
    log = place / "_spark_metadata"
    batches = {path.name: path for path in log.iterdir() if not path.name.startswith(".")}
    merged = max((int(name.split(".")[0]) for name in batches if name.endswith(".compact")), default=-1)
    read = [batches[f"{merged}.compact"]] if merged >= 0 else []
    read += [batches[name] for name in sorted(batches, key=len) if name.isdigit() and int(name) > merged]
    lines = [line for path in read for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return [Path(unquote(urlparse(json.loads(line)["path"]).path)) for line in lines]


def differences(wanted: Events, found: Events) -> list[str]:
    """Each change once, with its values; what is not so, in words. Empty if all is well."""
    ids, values = wanted.ids(), wanted.values
    order = np.argsort(ids)
    ids, values = ids[order], values[order]
    theirs, first, counts = np.unique(found.ids(), return_index=True, return_counts=True)
    missing = np.setdiff1d(ids, theirs, assume_unique=True)
    extra = np.setdiff1d(theirs, ids, assume_unique=True)
    message = [
        _told("not reported", missing),
        _told("reported but never happened", extra),
        _told("reported more than once", theirs[counts > 1]),
    ]
    at = np.minimum(np.searchsorted(ids, theirs), max(len(ids) - 1, 0))
    known = ids[at] == theirs if len(ids) else np.zeros(len(theirs), dtype=bool)
    message.append(
        _told("reported with other values", theirs[known][found.values[first][known] != values[at[known]]])
    )
    return [text for text in message if text]


def _told(what: str, ids: Longs) -> str:
    if not len(ids):
        return ""
    by_commit = Counter((ids >> 22).tolist())
    some = [
        f"(commit {number >> 22}, key {number >> 2 & 0xFFFFF}, {KINDS[number & 3]})"
        for number in ids[:_SHOWN].tolist()
    ]
    return (
        f"{len(ids):,} changes of {len(by_commit):,} commits were {what}; by commit: "
        f"{dict(list(by_commit.items())[:_SHOWN])}; the first: {', '.join(some)}"
    )


def table_differences(what: str, wanted: Table, found: pa.Table) -> list[str]:
    """Compare a table that was read with the one that must be there."""
    wrong = []
    if found["name"].combine_chunks().equals(names(found["id"], found["v"]).combine_chunks()) is False:
        wrong.append(f"{what}: rows hold the values of several rows")
    keys, values = found["id"].to_numpy(), found["v"].to_numpy()
    if len(np.unique(keys)) != len(keys):
        wrong.append(f"{what}: {len(keys) - len(np.unique(keys)):,} keys are there twice")
    there = np.zeros(KEYS, dtype=bool)
    there[keys] = True
    now = np.zeros(KEYS, dtype=np.int64)
    now[keys] = values
    for problem, which in (
        ("missing", wanted.alive & ~there),
        ("too many", there & ~wanted.alive),
        ("of another commit", there & wanted.alive & (now != wanted.values)),
    ):
        if which.any():
            some = np.flatnonzero(which)[:_SHOWN]
            shown = [(int(key), int(now[key]), int(wanted.values[key])) for key in some]
            wrong.append(f"{what}: {int(which.sum()):,} rows are {problem}: (key, found, wanted) {shown}")
    return wrong


# Checkpoints


def offsets(checkpoint: Path) -> list[dict[str, Any]]:
    """The end of each micro-batch, the first with where it began."""
    found = {int(path.name): path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()}
    assert sorted(found) == list(range(len(found))), f"offsets are missing: {sorted(found)}"
    return [
        json.loads(found[number].read_text(encoding="utf-8").splitlines()[-1]) for number in range(len(found))
    ]


def begun(ends: Sequence[dict[str, Any]]) -> int:
    """The snapshot with which the stream began."""
    snapshot: int = ends[0]["since"]["at"]
    return snapshot


def batch_sizes(ends: Sequence[dict[str, Any]], wanted: Events, slots: int) -> list[int]:
    """How many changes lie between the offsets."""
    order = np.sort(wanted.commits * slots + slots_of([pa.array(wanted.keys)], slots))
    stops = [(end["at"] if "at" in end else end["commit"] + 1) * slots + end["slot"] for end in ends]
    assert stops == sorted(stops), "offsets go back"
    reached = np.searchsorted(order, [begun(ends) * slots, *stops])
    return [int(size) for size in np.diff(reached)]
