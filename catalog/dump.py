"""Catalog transactions: all of the catalog as plain values, and a catalog filled from them.

Rows go out and in as they are, their digests and the sums of groups with them, so a catalog that was filled
proves itself as the one that was dumped does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from sqlalchemy import select

from elasticscan.catalog.checks import CheckTx, Sound, kinds_in, without_kinds
from elasticscan.catalog.failures import decoding
from elasticscan.catalog.remembered import to_signed
from elasticscan.catalog.sealed import SEALED
from elasticscan.catalog.tables import group_digests, metadata, shards, store_state

Dump: TypeAlias = dict[str, tuple[list[str], list[list[Any]]]]  # by table: columns, rows


class DumpTx(CheckTx):
    """The catalog out and in."""

    def dump(self) -> Dump:
        """All rows of all tables, without statistics that are damaged: no row depends on these.

        Raises `StoreDamaged` unless the catalog is whole but for them.
        """
        sound = self.check_needed()
        rows = dict(sound) | {
            table.name: self._rows.select(table) for table in SEALED if table.name not in sound
        }
        rows[group_digests.name] = list(self._sql.execute(select(group_digests)))
        if sound:
            self._balance(rows, sound)
        return {
            table.name: ([column.name for column in table.c], [list(row) for row in rows[table.name]])
            for table in metadata.sorted_tables
        }

    def _balance(self, rows: dict[str, list[Any]], sound: Sound) -> None:
        """Let the sums in a dump be those of its rows, where some of these were left out."""
        sums = without_kinds(self._rows.all_groups(), kinds_in(sound))
        for name, left in sound.items():
            sums |= self._rows.sums(metadata.tables[name], left)
        total = to_signed(sum(self._rows.digest_of_group(*entry) for entry in sums.items()))
        (state,) = rows[store_state.name]
        rows[group_digests.name] = [(*group, *counted) for group, counted in sums.items()]
        rows[store_state.name] = [self._rows.changed_row(store_state, state, {"groups_total": total})]

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
