"""What two streams wrote, compared with what writers say of it: nothing is missing, repeated or altered."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq

Row = tuple[Any, ...]
_SHOWN = 12


def name_of(key: int, value: int) -> str:
    """A text that belongs to a key and a value, so that a row put together of two is noticed."""
    return f"{key}:{value}"


class Model:
    """The table and its change feed after a snapshot, by what writers said of their commits.

    Args:
        said: for each commit its number, kind, keys, and the value that it wrote.
        snapshot: the number whose rows the feed begins with, as inserts; not of the last commit.
    """

    def __init__(self, said: Iterable[Mapping[str, Any]], snapshot: int) -> None:
        self.state: dict[int, int] = {}
        self.feed: Counter[Row] = Counter()
        for change in sorted(said, key=lambda change: int(change["commit"])):
            before, (keys, value, commit) = self.state, (change[n] for n in ("keys", "value", "commit"))
            gone = {"upsert": (), "delete": keys, "overwrite": before.keys() - set(keys)}[change["kind"]]
            written = () if change["kind"] == "delete" else keys
            if commit > snapshot:
                if not self.feed:
                    self._tell(snapshot, "insert", before)
                self._tell(commit, "delete", {key: before[key] for key in gone if key in before})
                self._tell(commit, "update_preimage", {k: before[k] for k in written if k in before})
                self._tell(commit, "update_postimage", {k: value for k in written if k in before})
                self._tell(commit, "insert", {key: value for key in written if key not in before})
            for key in gone:
                before.pop(key, None)
            before.update(dict.fromkeys(written, value))

    def _tell(self, commit: int, kind: str, rows: Mapping[int, int]) -> None:
        self.feed.update((key, value, name_of(key, value), kind, commit) for key, value in rows.items())

    @property
    def rows(self) -> Counter[Row]:
        return Counter((key, value, name_of(key, value)) for key, value in self.state.items())


def rows_of(table: pa.Table, *more: str) -> Counter[Row]:
    columns = [table[name].to_pylist() for name in ("id", "v", "name", *more)]
    return Counter(zip(*columns, strict=True))


def differences(what: str, found: Counter[Row], wanted: Counter[Row]) -> Iterator[str]:
    """The rows that one of two has and the other lacks; none if they are equal."""
    for problem, rows in (("too many", found - wanted), ("missing", wanted - found)):
        if rows:
            yield f"{what}: {rows.total():,} rows are {problem}: {sorted(rows)[:_SHOWN]}"


def feed_written(place: Path) -> pa.Table:
    """The feed as it came out in Parquet: of the files that Spark's sink has committed.

    Others are of micro-batches that died.
    """
    log = place / "_spark_metadata"
    batches = {path.name: path for path in log.iterdir() if not path.name.startswith(".")}
    merged = max((int(name.split(".")[0]) for name in batches if name.endswith(".compact")), default=-1)
    read = [batches[f"{merged}.compact"]] if merged >= 0 else []
    read += [batches[name] for name in sorted(batches, key=len) if name.isdigit() and int(name) > merged]
    lines = [line for path in read for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    paths = [Path(unquote(urlparse(json.loads(line)["path"]).path)) for line in lines]
    return pa.concat_tables([pq.read_table(path) for path in paths])
