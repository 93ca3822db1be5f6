"""A process that reads a store as another user, step by step: a line of JSON in, a line out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import ElasticScanError
from elasticscan.store import Store

NOBODY_UID = 65_534


class OtherUser:
    """Steps in a child process; as nobody where we are root and `user` says so."""

    def __init__(self, user: int | None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(user or 0)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def __call__(self, step: str, *given: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([step, *given]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def __enter__(self) -> OtherUser:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


class Steps:
    """What the child does. Ids are all that there is in the table t."""

    def __init__(self) -> None:
        self.store: Store
        self.pages: Any

    def open(self, uri: str, read_only: bool = False) -> str | None:
        self.store = Store.open(uri, read_only=read_only)
        return self.store.read_only

    def close(self) -> None:
        self.store.close()

    def ids(self, *wanted: Any) -> list[int]:
        rows = self.store.table("t").scan(None, *wanted).to_table()
        return sorted(rows["id"].to_pylist())

    def begin(self, page_rows: int) -> str:
        scan = self.store.table("t").scan(page_rows=page_rows)
        self.pages = iter(scan)
        kept_by: str = scan.explain()["kept_by"]
        return kept_by

    def page(self) -> tuple[list[int], str | None]:
        page = next(self.pages)
        return page.rows["id"].to_pylist(), page.key

    def resume(self, key: str) -> list[int]:
        found: list[int] = self.store.resume(key).to_table()["id"].to_pylist()
        return found

    def look(self) -> list[Any]:
        status = self.store.status()
        rows = [table["rows"] for table in status["tables"]]
        return [status["snapshot"], rows, len(self.store.topology_history()), status["read_only"] is not None]

    def write(self, how: str) -> None:
        table = pa.table({"id": [-1]})
        calls: dict[str, Callable[[], object]] = {
            "write": lambda: self.store.table("t").upsert(table),
            "overwrite": lambda: self.store.table("t").overwrite(table),
            "delete": lambda: self.store.table("t").delete(table),
            "create_table": lambda: self.store.create_table("u", table.schema, ["id"]),
            "drop_table": lambda: self.store.table("t").drop(),
            "add_columns": lambda: self.store.table("t").add_columns([pa.field("v", pa.int64())]),
            "drop_columns": lambda: self.store.table("t").drop_columns(["v"]),
            "rename_column": lambda: self.store.table("t").rename_column("v", "w"),
            "set_retention": lambda: self.store.table("t").set_retention("5s"),
            "create_index": lambda: self.store.table("t").create_index("by_id", ["id"]),
            "expand": lambda: self.store.expand(["z"]),
            "contract": lambda: self.store.contract("a"),
            "move": lambda: self.store.move(1, "b"),
            "split": lambda: self.store.split(1),
            "join": lambda: self.store.join(1, 2),
            "compact": self.store.compact,
            "collect_garbage": lambda: self.store.collect_garbage(grace_seconds=0),
            "rotate_secret": self.store.rotate_secret,
        }
        calls[how]()


WRITES = (
    *("write", "overwrite", "delete", "create_table", "drop_table", "add_columns", "set_retention"),
    *("drop_columns", "rename_column"),
    *("create_index", "expand", "contract", "move", "split", "join", "compact", "collect_garbage"),
    "rotate_secret",
)


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:  # imports whatever is imported late, while it may
        with Store.create(Path(scratch) / "s", ["a"]) as store:
            store.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
            store.table("t").upsert(pa.table({"id": [1]}))
        with Store.open(Path(scratch) / "s", read_only=True) as store:
            store.table("t").scan().to_table()
    if user := int(sys.argv[1]):
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    steps = Steps()
    for line in sys.stdin:
        step, *given = json.loads(line)
        try:
            answer = getattr(steps, step)(*given)
        except ElasticScanError as error:
            answer = {"error": error.code, "text": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
