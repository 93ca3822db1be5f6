"""The check of the whole catalog, which must hold before anything is deleted for its sake."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any, TypeAlias

from sqlalchemy import Table, create_engine, text
from sqlalchemy.exc import DBAPIError

from elasticscan.base.errors import StoreDamaged
from elasticscan.catalog.commits import CommitTx
from elasticscan.catalog.failures import damaged, decoding
from elasticscan.catalog.near import AnyTransaction
from elasticscan.catalog.remembered import Counted, Group, Sums, compare, to_signed
from elasticscan.catalog.sealed import SEALED
from elasticscan.catalog.tables import (
    FLOORS,
    commits,
    fragments,
    histograms,
    index_runs,
    indexes,
    kinds_of,
    leases,
    metadata,
    shards,
    statistics,
    store_state,
    tables,
    tags,
    topologies,
)
from elasticscan.topology import SlotSet

# By table, rows of it that are what was written.
Sound: TypeAlias = Mapping[str, list[Any]]

_ROWS_AT_ONCE = 2_000

# Whose ids are counted where, and which is the first that was never used.
_NUMBERED = {"tables": "next_table", "fragments": "next_fragment", "indexes": "next_index"}
_NUMBERED |= {"index_runs": "next_run", "tablets": "next_tablet"}

# (table, column, table whose keys it holds)
_REFERENCES: tuple[tuple[Table, str, Table], ...] = (
    (commits, "table_id", tables),
    (fragments, "table_id", tables),
    (fragments, "shard_id", shards),
    (statistics, "fragment_id", fragments),
    (indexes, "table_id", tables),
    (index_runs, "table_id", tables),
    (index_runs, "index_id", indexes),
    (index_runs, "fragment_id", fragments),
    (histograms, "run_id", index_runs),
    (leases, "table_id", tables),
    (tags, "table_id", tables),
)


# What SQLite understands of the texts that define its tables; no digest covers these.
_OF_TABLES = "FROM sqlite_master m JOIN pragma_{0}(m.name) p"
_OF_INDEXES = f"{_OF_TABLES.format('index_list')} JOIN pragma_index_xinfo(p.name) x"
_DEFINITIONS = (
    f"SELECT m.name, p.name, p.type, p.'notnull', p.dflt_value, p.pk {_OF_TABLES.format('table_info')}",
    f"SELECT m.name, p.'from', p.'table', p.'to' {_OF_TABLES.format('foreign_key_list')}",
    f"SELECT m.name, p.name, p.'unique', p.partial, x.name, x.'desc' {_OF_INDEXES}",
)


def _definitions(sql: AnyTransaction) -> set[tuple[Any, ...]]:
    return {
        (row[0], number, *row[1:])
        for number, question in enumerate(_DEFINITIONS)
        for row in sql.execute(text(f"{question} WHERE m.type = 'table'"))
    }


@cache
def _expected_definitions() -> set[tuple[Any, ...]]:
    """Return the definitions that a catalog must have; it may have more."""
    engine = create_engine("sqlite://")
    try:
        with engine.begin() as sql:
            metadata.create_all(sql)
            return {definition for definition in _definitions(sql) if FLOORS.name not in definition}
    finally:
        engine.dispose()


def kinds_in(names: Iterable[str]) -> frozenset[str]:
    """Return the kinds of the groups that the rows of some tables are in."""
    groupings = (grouping for name in names for grouping in metadata.tables[name].info["groups"])
    return frozenset(kind for grouping in groupings for kind in kinds_of(grouping))


def without_kinds(sums: Sums, kinds: Collection[str]) -> dict[Group, Counted]:
    return {group: counted for group, counted in sums.items() if group[0] not in kinds}


class CheckTx(CommitTx):
    """A check of the whole catalog."""

    def check_whole(self) -> None:
        """Raise `StoreDamaged`, naming what, unless the catalog is what was written, all of it.

        The database's own check (SQLite's `integrity_check`), every row's digest, the number and sum of
        every group, and what rows say of each other. Takes about 10 µs a row.
        """
        self._check_with({})

    def check_needed(self) -> Sound:
        """As `check_whole`, of all that rows depend on.

        Returns the sound rows of the tables that only save work, if some of these are damaged, else nothing.
        """
        try:
            self.check_whole()
        except (StoreDamaged, DBAPIError) as error:
            if isinstance(error, DBAPIError) and not self._can_pass(error):
                raise
        else:
            return {}
        sound = {table.name: self._rows.sound(table)[0] for table in SEALED if table.info["saves_work"]}
        self._check_with(sound)
        return sound

    def _check_with(self, instead: Sound) -> None:
        """Check the catalog with some rows in place of all those of a table, which may be damaged."""
        self._check_database()
        sums: dict[Group, Counted] = {}
        keys: dict[str, set[Any]] = {}
        referred: dict[tuple[str, str], set[Any]] = {}
        for table in SEALED:
            keys[table.name] = set()
            for rows in [instead[table.name]] if table.name in instead else self._in_parts(table):
                for group, (count, total) in self._rows.sums(table, rows).items():
                    before = sums.get(group, (0, 0))
                    sums[group] = before[0] + count, to_signed(before[1] + total)
                key = next(iter(table.primary_key.columns)).name
                keys[table.name].update(getattr(row, key) for row in rows)
                for source, column, _ in _REFERENCES:
                    if source is table:
                        some = referred.setdefault((table.name, column), set())
                        some.update(getattr(row, column) for row in rows)
                self._check_rows(table, rows)
        self._check_groups(sums, kinds_in(instead))
        for source, column, target in _REFERENCES:
            missing = referred.get((source.name, column), set()) - keys[target.name]
            if missing:
                raise damaged(f"{source.name}.{column} names {min(missing)!r}, which {target.name} has not")
        self._check_numbers(keys)
        self._check_values()

    def _check_database(self) -> None:
        if self._sql.dialect.name != "sqlite":
            return
        with decoding("the catalog's database"):
            for _ in range(2):  # a page that the disk did not give is one more fault to it, which may pass
                said = [str(row[0]) for row in self._sql.execute(text("PRAGMA integrity_check(5)"))]
                if said == ["ok"]:
                    break
            else:
                raise damaged(f"its database says: {'; '.join(said)}")
        with decoding("the definitions of its tables"):
            found = _definitions(self._sql)
        for table, *_ in sorted(_expected_definitions() - found, key=repr):
            raise damaged(f"its database defines {table} in another way than it was made")

    def _in_parts(self, table: Table) -> Iterable[list[Any]]:
        (key,) = table.primary_key.columns
        after: list[Any] = []
        while True:
            rows = self._rows.select(table, *after, order_by=key, limit=_ROWS_AT_ONCE)
            if rows:
                yield rows
            if len(rows) < _ROWS_AT_ONCE:
                return
            newest = getattr(rows[-1], key.name)
            if after and newest <= getattr(rows[0], key.name):
                raise damaged(f"the rows of {table.name} have no order")
            after = [key > newest]

    def _check_groups(self, sums: dict[Group, Counted], except_for: Collection[str]) -> None:
        compare(without_kinds(sums, except_for), without_kinds(self._rows.all_groups(), except_for))
        self.check_sums()

    def _check_rows(self, table: Table, rows: list[Any]) -> None:
        if table is not fragments:
            return
        slots, newest = self.info().slots, self.versions()[1]
        for row in rows:
            with decoding(f"fragment {row.id}"):
                spoken = SlotSet.parse(row.slots)
                inside = not spoken - SlotSet.span(0, slots)
                if not (inside and len(spoken) <= row.slots_written <= slots):
                    raise ValueError(f"its slots are {row.slots!r} of {slots}")
                if not 0 <= row.min_commit <= row.max_commit <= newest:
                    raise ValueError(f"its commits are {row.min_commit} to {row.max_commit} of {newest}")

    def _check_numbers(self, keys: dict[str, set[Any]]) -> None:
        for name, counter in _NUMBERED.items():
            if max(keys[name], default=0) >= self._state(counter):
                raise damaged(f"{name} has ids that were never given")
        lost = {number for first, last in self.lost_commits() for number in range(first, last + 1)}
        for table, first, newest in (
            (commits, 1, "last_commit"),
            (topologies, self.oldest_topology(), "newest_topology"),
        ):
            missing = lost if table is commits else set()
            if keys[table.name] != set(range(first, self._state(newest) + 1)) - missing:
                raise damaged(f"{table.name} has not each number from {first} to {self._state(newest)} once")
        if len(keys[store_state.name]) != 1:
            raise damaged("the store's state is not one row")

    def _check_values(self) -> None:
        """Check that all stored values can be decoded."""
        self.info()
        placement = self.placement()
        self.newest_topology()
        if not set(placement.shards) <= {shard.id for shard in self.shards()}:
            raise damaged("a tablet lies at a shard that is not there")
        self.indexes()
        tags = self.tags_by_table()
        for table in self.tables():
            for tag in tags.get(table.id, ()):
                if not table.oldest_snapshot <= tag.snapshot <= self.versions()[1]:
                    raise damaged(
                        f"snapshot {tag.snapshot} of table {table.name!r} is not kept, as its tag says"
                    )
