"""Catalog transactions: all of the catalog as plain values, and a catalog filled from them.

Rows go out and in as they are, their digests and the sums of groups with them, so a catalog that was filled
proves itself as the one that was dumped does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from sqlalchemy import select

from elasticscan.catalog.checks import CheckTx
from elasticscan.catalog.failures import decoding
from elasticscan.catalog.sealed import SEALED
from elasticscan.catalog.tables import group_digests, metadata, shards

Dump: TypeAlias = dict[str, tuple[list[str], list[list[Any]]]]  # by table: columns, rows


class DumpTx(CheckTx):
    """The catalog out and in."""

    def dump(self) -> Dump:
        """All rows of all tables. Raises `StoreDamaged` unless the catalog is whole."""
        self.check_whole()
        rows = {table.name: self._rows.select(table) for table in SEALED}
        rows[group_digests.name] = list(self._sql.execute(select(group_digests)))
        return {
            table.name: ([column.name for column in table.c], [list(row) for row in rows[table.name]])
            for table in metadata.sorted_tables
        }

    def fill(self, dump: Dump, roots: Mapping[int, str]) -> None:
        """Enter what was dumped into tables that are empty, then the roots that shards have from now on.

        Raises:
            StoreDamaged: it is not what was dumped.
        """
        with decoding("the dump of a catalog"):
            for table in metadata.sorted_tables:
                names, rows = dump[table.name]
                self._rows.put_back(table, [dict(zip(names, row, strict=True)) for row in rows])
        self.check_whole()
        self._rows.update(shards, [(row, {"root": roots[row.id]}) for row in self._rows.all(shards)])
