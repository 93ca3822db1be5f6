"""Catalog transactions: secondary indexes, their runs, and the one writer of what state an index is in.

An index is entered in the first phase of `elasticscan.metadata.indexes` and goes from phase to phase by that
table. A test proves that no other code writes its row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from elasticscan.base.errors import AlreadyExists, NotFound
from elasticscan.base.suggestions import suggest
from elasticscan.catalog.failures import damaged, decoding
from elasticscan.catalog.tables import histograms, index_runs, indexes
from elasticscan.catalog.topology_history import TopologyTx
from elasticscan.metadata import (
    IndexEvent,
    IndexInfo,
    IndexPhase,
    IndexRun,
    StagedRun,
)


class IndexTx(TopologyTx):
    """Reads and changes of indexes."""

    def create_index(self, info: IndexInfo) -> IndexInfo:
        """Enter an index that has no runs yet; commits made from now on bring theirs."""
        assert info.phase is IndexPhase.ENTERED, f"an index begins without runs: {info}"
        if any(index.name == info.name for index in self.indexes(info.table)):
            raise AlreadyExists(f"the table already has an index {info.name!r}", index=info.name)
        row = {"id": self._next("next_index"), "table_id": info.table, "name": info.name, "kind": info.kind}
        lists = {"columns": json.dumps(info.columns), "include": json.dumps(info.include)}
        self._rows.insert(indexes, row | lists | {"phase": info.phase.value, "created_at": self.now})
        self.bump_layout()
        return self.index(info.table, info.name)

    def indexes(self, table: int | None = None) -> tuple[IndexInfo, ...]:
        """Return the indexes of a table, or of all, that were not dropped."""
        part = {} if table is None else {"table_id": table}
        rows = self._rows.group(indexes, part, order_by=indexes.c.id)
        return tuple(index for index in map(_index, rows) if not index.is_over)

    def index(self, table: int, name: str) -> IndexInfo:
        live = self.indexes(table)
        for index in live:
            if index.name == name:
                return index
        hint = suggest(name, [index.name for index in live]) or "; Table.indexes() lists them"
        raise NotFound(f"the table has no index {name!r}{hint}", index=name, kind="index")

    def transition_index(self, index: IndexInfo, event: IndexEvent) -> IndexInfo:
        """Let something happen to an index, by the table of its phases; its runs are dropped with it.

        Returns it in the phase that it is in now: one that was dropped meanwhile stays so, whatever happens.
        """
        row = self._rows.one(indexes, id=index.id)
        if row is None:
            raise damaged(f"index {index.id} is not there")
        before = _index(row)
        if before.is_over:
            return before
        after = before.after(event)
        if after == before:
            return after
        new: dict[str, Any] = {"phase": after.phase.value}
        if after.is_over:
            at = {"dropped_at": self.times.stamp}
            runs = self._rows.group(index_runs, {"table_id": index.table})
            self._rows.update(index_runs, [(run, at) for run in runs if run.index_id == index.id])
            new |= at
        self._rows.update(indexes, [(row, new)])
        self.bump_layout()
        return after

    def runs(self, table: int | None = None) -> tuple[IndexRun, ...]:
        """Return the runs of a table's fragments that serve slots now, or of all."""
        part = {} if table is None else {"table_id": table}
        rows = self._rows.group(index_runs, part, order_by=index_runs.c.id)
        return tuple(map(_run, rows))

    def _insert_runs(self, table: int, runs: Iterable[tuple[int, int, StagedRun]]) -> bool:
        """Enter runs, each with its fragment and shard; false if some are left out: their index is gone."""
        live = {index.id for index in self.indexes(table)}
        all_runs = list(runs)
        staged = [of for of in all_runs if of[2].index in live]
        first = self._next("next_run", len(staged))
        entered, bodies = [], []
        for number, (fragment, shard, run) in enumerate(staged, first):
            own = {"id": number, "table_id": table, "index_id": run.index, "fragment_id": fragment}
            file = {"shard_id": shard, "path": run.path, "rows": run.rows, "bytes": run.bytes}
            entered.append(own | file | {"tail": run.tail, "digest": run.digest})
            bodies.append({"run_id": number, "body": run.histogram})
        self._rows.insert(index_runs, *entered)
        self._rows.insert(histograms, *bodies)
        return len(staged) == len(all_runs)


@lru_cache(maxsize=1024)
def _run(row: Any) -> IndexRun:
    names = ("id", "index_id", "fragment_id", "path", "rows", "bytes", "tail", "digest")
    return IndexRun(*(getattr(row, name) for name in names))


def _index(row: Any) -> IndexInfo:
    with decoding(f"index {row.name!r}"):
        columns, include = tuple(json.loads(row.columns)), tuple(json.loads(row.include))
        phase = IndexPhase(row.phase)
    return IndexInfo(row.id, row.table_id, row.name, row.kind, columns, include, phase)
