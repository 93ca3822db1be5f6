"""Rows that prove themselves, and groups that prove to be whole.

A flipped bit in a database can change a value, hide rows, repeat them or bring back old ones, and the
database will not say so. Therefore each row ends in a digest of its own values, and each group of rows (the
fragments of a table at a shard, the commits of a table, all tablets, …; `tables.py` lists them) has in
`group_digests` the number of its rows and the sum of their digests modulo 2^64:

    row_digest    xxh3-64 of the msgpack array [table's name, values of the other columns in their order],
                  as a signed integer
    total         sum of row_digest over the group, as a signed integer
    groups_total  in store_state: the sum of the digests of the rows of group_digests, so that a group that
                  is gone together with its row is missed, too (`checks.py` looks)

Sums are additive: a change takes the old digest out and puts the new one in, so a small commit reads no
whole group. They are written once, at the end of the transaction that changed the rows.

This is the only module that changes rows of sealed tables, and every row that it returns was checked, as the
database has it: what SQLite would turn into something harmless is seen as what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import msgpack
import xxhash
from sqlalchemy import (
    ColumnElement,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    text,
    true,
    type_coerce,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import NULLTYPE

from elasticscan.base.errors import StoreDamaged
from elasticscan.catalog.failures import decoding, is_damage, not_whole
from elasticscan.catalog.near import AnyTransaction
from elasticscan.catalog.pipeline import Question, kept
from elasticscan.catalog.remembered import (
    Counted,
    Group,
    RememberedGroup,
    RememberedGroups,
    Sums,
    compare,
    complete,
    plus,
    stored_sum,
    to_signed,
)
from elasticscan.catalog.server import ServerTransaction
from elasticscan.catalog.tables import Grouping, dropped_kind, group_digests, kinds_of, metadata, store_state

Part = tuple[str, int]  # kind of a group, and the value of the first of its columns
Values = tuple[Any, ...]

_HALF, _WHOLE = 1 << 63, 1 << 64
# As one group is looked up in SQLite: what its index lacks is taken for a group without rows.
_INDEX = "sqlite_autoindex_group_digests_1"
_GROUPS_BY_INDEX = text(f"SELECT * FROM group_digests INDEXED BY {_INDEX} WHERE kind >= ''")
_GROUPS_AT_ONCE = 200  # groups in one condition; SQLite allows conditions nested 1,000 deep


class _Form:
    """The packing and grouping of one table's rows."""

    def __init__(self, table: Table) -> None:
        self.table, self.name = table, table.name
        *columns, last = table.c
        assert last.name == "row_digest"
        (self.key,) = table.primary_key.columns
        self.columns = [column.name for column in columns]
        self.names = (*self.columns, last.name)
        self.types = [column.type.python_type for column in columns]
        place = {name: number for number, name in enumerate(self.columns)}
        self.key_at = place[self.key.name]
        self.groupings: tuple[Grouping, ...] = table.info["groups"]
        only = (grouping.only for grouping in self.groupings if grouping.only)
        self.only: dict[str, Any] = {name: literal_column(str(value)) for name, value in only}
        self._groups = [_group_of(grouping, place) for grouping in self.groupings]
        # Untouched values, without SQLAlchemy's idea of what they should be.
        self.raw = [type_coerce(column, NULLTYPE).label(column.name) for column in table.c]
        self.insert = insert(table)
        self.delete = delete(table).where(self.key == bindparam("this"))

    def complete(self, row: Mapping[str, Any]) -> Values:
        """All values in their order, each of its column's type; what is not given is null."""
        assert not row.keys() - set(self.columns), f"{self.name} has no such columns"
        values = (row.get(name) for name in self.columns)
        return tuple(
            None if value is None else kind(value) for value, kind in zip(values, self.types, strict=True)
        )

    def groups(self, values: Sequence[Any]) -> list[Group]:
        return [group for of in self._groups if (group := of(values)) is not None]


def _group_of(grouping: Grouping, place: Mapping[str, int]) -> Callable[[Sequence[Any]], Group | None]:
    first, second = [*(place[name] for name in grouping.by), None, None][:2]
    dropped = place["dropped_at"] if grouping.live else None
    only = None if grouping.only is None else (place[grouping.only[0]], grouping.only[1])
    live, gone = grouping.kind, dropped_kind(grouping.kind)

    def of(values: Sequence[Any]) -> Group | None:
        if only is not None and values[only[0]] != only[1]:
            return None
        kind = live if dropped is None or values[dropped] is None else gone
        part = 0 if first is None else values[first]
        return kind, part, 0 if second is None else values[second]

    return of


_FORMS = {table.name: _Form(table) for table in metadata.sorted_tables if "groups" in table.info}
SEALED = tuple(form.table for form in _FORMS.values())


class RowQuery:
    """A question for rows of a table, built once: to build one takes longer than to answer it.

    Args:
        table: the table.
        where: conditions, with `bindparam` for what differs from time to time.
        order_by: columns.
        limit: most rows.
        once: it is asked once alone.
    """

    def __init__(
        self,
        table: Table,
        *where: ColumnElement[bool],
        order_by: Any = None,
        limit: int | None = None,
        once: bool = False,
    ) -> None:
        self.form = _FORMS[table.name]
        self._statements: list[Select[Any]] = []
        for columns in (self.form.raw, list(table.c)):
            statement = select(*columns).where(*where)
            if order_by is not None:
                statement = statement.order_by(order_by)
            statement = statement if limit is None else statement.limit(limit)
            self._statements.append(statement if once else kept(statement))

    def statement(self, raw: bool) -> Select[Any]:
        return self._statements[0 if raw else 1]


@lru_cache(maxsize=256)
def _rows_with(
    table: Table,
    names: tuple[str, ...],
    nulls: tuple[str, ...] = (),
    order_by: str | None = None,
    is_beyond: bool = False,
) -> RowQuery:
    """Return the query for rows by values of some columns, nulls in others, and keys beyond one."""
    only = _FORMS[table.name].only  # no parameter, so that a database may take the index of these rows alone
    where = [table.c[name] == only.get(name, bindparam(name)) for name in names]
    where += [table.c[name].is_(None) for name in nulls]
    where += [_FORMS[table.name].key > bindparam("beyond")] if is_beyond else []
    return RowQuery(table, *where, order_by=None if order_by is None else table.c[order_by])


@lru_cache(maxsize=256)
def _new_values(table: Table, names: tuple[str, ...]) -> Any:
    """Return the update of some columns of the row with a key."""
    query = update(table).where(_FORMS[table.name].key == bindparam("this"))
    return query.values({name: bindparam(f"new_{name}") for name in names})


@lru_cache(maxsize=_GROUPS_AT_ONCE)
def _sums_of(count: int) -> Any:
    """Return the query for the sums of so many groups."""
    g, names = group_digests.c, ("kind", "part", "shard")
    these = (and_(*(g[name] == bindparam(f"{name}_{at}") for name in names)) for at in range(count))
    return kept(select(group_digests).where(or_(*these)))


@lru_cache(maxsize=8)
def _sums_with(names: tuple[str, ...]) -> Any:
    """Return the query for the sums of the groups with given values in some columns."""
    these = (group_digests.c[name] == bindparam(name) for name in names)
    return kept(select(group_digests).where(true(), *these))


@lru_cache(maxsize=8)
def _sums_of_kinds_of(count: int) -> Any:
    """Return the query for the sums of so many kinds of groups, of one part and of the whole store."""
    g = group_digests.c
    kinds: list[Any] = [bindparam(f"kind_{at}") for at in range(count)]
    return select(group_digests).where(
        g.kind.in_(kinds), g.part.in_([literal_column("0"), bindparam("part")])
    )


def ask_sums(kinds: Sequence[str], part: int) -> Question:
    """Return the question that `SealedRows.note_sums` asks."""
    values = {f"kind_{at}": kind for at, kind in enumerate(kinds)}
    return _sums_of_kinds_of(len(kinds)), values | {"part": part}


def ask_group(table: Table, part: Mapping[str, Any], order: str | None, *nulls: str) -> Question:
    """Return the query of `SealedRows.group`, `all` or `one`; with nulls in columns."""
    return _rows_with(table, tuple(part), nulls, order, False).statement(raw=False), part


SUMS_OF_KINDS = select(group_digests).where(group_digests.c.kind.in_(bindparam("kinds", expanding=True)))
_THIS_GROUP = and_(*(group_digests.c[name] == bindparam(f"of_{name}") for name in ("kind", "part", "shard")))
_ENTER_SUMS = insert(group_digests)
_CHANGE_SUMS = update(group_digests).where(_THIS_GROUP).values(rows=bindparam("n"), total=bindparam("sum"))
_DELETE_SUMS = delete(group_digests).where(_THIS_GROUP)


class SealedRows:
    """The rows of one transaction. Changes of sums wait for `finish`.

    Args:
        connection: in the transaction.
        remembered: what others have read; only for a transaction that changes nothing.
    """

    def __init__(self, connection: AnyTransaction, remembered: RememberedGroups | None = None) -> None:
        self._sql, self._remembered = connection, remembered
        self._raw = connection.dialect.name == "sqlite"
        self._pack = msgpack.Packer(buf_size=1 << 12).pack
        self._pending: dict[Group, Counted] = {}
        self._groups: dict[str, dict[Hashable, list[Any]]] = {}  # as they were read, by table
        self._noted: dict[Part, dict[Group, Counted]] = {}  # sums as they are stored
        self.changed = set[str]()  # names of tables

    # Reading

    def select(
        self, table: Table, *where: ColumnElement[bool], order_by: Any = None, limit: int | None = None
    ) -> list[Any]:
        """Rows that meet some conditions, each checked; some may be hidden by damage."""
        return self.ask(RowQuery(table, *where, order_by=order_by, limit=limit, once=True))

    def ask(self, query: RowQuery, **values: Any) -> list[Any]:
        """Return the rows that a query asks for, as `select`."""
        with decoding(f"table {query.form.name!r}"):
            rows = list(self._sql.execute(query.statement(self._raw), values))
        return self._checked(query.form, rows)

    def _with(
        self,
        table: Table,
        equal: Mapping[str, Any],
        order_by: str | None = None,
        beyond: int | None = None,
    ) -> list[Any]:
        """Rows that have some values, and keys beyond one; None stands for null."""
        nulls = tuple(name for name, value in equal.items() if value is None)
        values = {name: value for name, value in equal.items() if value is not None}
        query = _rows_with(table, tuple(values), nulls, order_by, beyond is not None)
        return self.ask(query, **values, **({} if beyond is None else {"beyond": beyond}))

    def _checked(self, form: _Form, rows: list[Any]) -> list[Any]:
        digest = self._digest
        for row in rows:
            if digest(form.name, row[:-1]) != row[-1]:
                raise _alteration(form, row)
        return rows

    def state(self) -> list[Any]:
        """Return the rows of `store_state`: a server gave one with its first answer."""
        first = self._sql.take_state() if isinstance(self._sql, ServerTransaction) else None
        return (
            self._with(store_state, {}) if first is None else self._checked(_FORMS[store_state.name], [first])
        )

    def one(self, table: Table, missing_is_checked: bool = True, **equal: Any) -> Any | None:
        """Return the row with these values, or None; that there is none is looked up once more in all rows.

        It is read once in a transaction, and again once it has changed the table.
        """
        key, read = ("one", *equal.items()), self._groups.setdefault(table.name, {})
        if (rows := read.get(key)) is None:
            rows = read[key] = self._with(table, equal)
        # An index may point to another row, which is sound but not the one that was asked for.
        if len(rows) > 1 or not all(_is(row, equal) for row in rows):
            raise not_whole(f"the look-up of {equal} in table {table.name!r} finds other rows")
        if rows or not missing_is_checked:
            return rows[0] if rows else None
        if any(_is(row, equal) for row in self.all(table)):
            raise not_whole(f"the look-up of {equal} in table {table.name!r} misses a row")
        return None

    def all(self, table: Table, order_by: Any = None) -> list[Any]:
        """All rows of a table, dropped ones too, proved to be all."""
        form = _FORMS[table.name]
        key = ("all", str(order_by))
        if key in (read := self._groups.setdefault(form.name, {})):
            return list(read[key])
        rows = self._with(table, {}, None if order_by is None else order_by.name)
        kinds = {kind for grouping in form.groupings for kind in kinds_of(grouping)}
        stored = self._sums_now(SUMS_OF_KINDS, {"kinds": sorted(kinds)}, lambda of: of[0] in kinds)
        compare(self.sums(table, rows, lambda of: of[0] in kinds), stored)
        read[key] = rows
        return list(rows)

    def group(
        self,
        table: Table,
        part: Mapping[str, int] = MappingProxyType({}),
        grouping: Grouping | None = None,
        order_by: Any = None,
    ) -> list[Any]:
        """Return the rows of a group (of its live ones, where dropped ones are apart), proved to be all.

        They are read once in a transaction, and again once it has changed the table.

        Args:
            table: the table.
            part: values of the grouping's columns; all their values where they are left out.
            grouping: which of its groupings; the first.
            order_by: a column.
        """
        form = _FORMS[table.name]
        grouping = grouping or form.groupings[0]
        key = (grouping.kind, *sorted(part.items()), str(order_by))
        if key in (read := self._groups.setdefault(form.name, {})):
            return list(read[key])
        equal = dict(part) | ({"dropped_at": None} if grouping.live else {})
        equal |= dict([grouping.only] if grouping.only else [])
        order = None if order_by is None else order_by.name
        group_key = (grouping.kind, *(part.get(name) for name in grouping.by))
        named = zip(("kind", "part", "shard"), group_key, strict=False)
        stored = {name: key for name, key in named if key is not None}

        def mine(group: Group) -> bool:
            return all(key in (None, has) for key, has in zip(group_key, group, strict=False))

        part_of = (grouping.kind, part.get(grouping.by[0], -1) if grouping.by else 0)
        sums = self._sums_now(_sums_with(tuple(stored)), stored, mine, part_of)
        grows = grouping.live and order == form.key.name
        rows = self._completed(form, key, equal, sums) if grows else None
        if rows is None:
            rows = self._with(table, equal, order)
            compare(self.sums(table, rows, mine), sums)
        if self._remembered is not None and grows:
            self._remembered.keep(key, RememberedGroup(rows, sums))
        read[key] = rows
        return list(rows)

    def _completed(
        self, form: _Form, key: Hashable, equal: Mapping[str, Any], stored: Mapping[Group, Counted]
    ) -> list[Any] | None:
        """Return the rows that are remembered and those beyond them; None where these are not the group."""
        before = self._remembered.get(key) if self._remembered is not None else None
        if before is None or not before.rows:
            return None
        newer = self._with(form.table, equal, form.key.name, beyond=before.rows[-1][form.key_at])
        kinds = {group[0] for group in stored}
        sums = self.sums(form.table, newer, lambda group: group[0] in kinds)
        return [*before.rows, *newer] if newer and complete(before, sums, stored) else None

    def count(self, grouping: Grouping, part: int) -> int:
        """Return the number of rows of a group, by its stored sums."""
        return sum(self.counts(grouping, part).values())

    def counts(self, grouping: Grouping, part: int) -> dict[int, int]:
        """Return the numbers of rows of the groups of a part, by the second column of their grouping."""
        which, mine = {"kind": grouping.kind, "part": part}, (grouping.kind, part)
        counted = self._sums_now(_sums_with(tuple(which)), which, lambda group: group[:2] == mine, mine)
        return {group[2]: rows for group, (rows, _) in counted.items()}

    def totals(self, table: Table, column: str, by: str, *where: ColumnElement[bool]) -> dict[int, int]:
        """Return the sums of a column by another, for people alone: the rows are not checked."""
        query = select(table.c[by], func.sum(table.c[column])).where(*where).group_by(table.c[by])
        with decoding(f"table {table.name!r}"):
            return {int(of): int(total) for of, total in self._sql.execute(query)}

    # Changing

    def insert(self, table: Table, *rows: Mapping[str, Any]) -> None:
        if not rows:
            return
        form = _FORMS[table.name]
        entered = []
        for row in rows:
            values = form.complete(row)
            digest = self._digest(form.name, values)
            self._add(form.groups(values), 1, digest)
            entered.append(dict(zip(form.names, (*values, digest), strict=True)))
        self._groups.pop(form.name, None)
        self.changed.add(form.name)
        self._write(form.insert, entered)

    def update(self, table: Table, changes: Sequence[tuple[Any, Mapping[str, Any]]]) -> None:
        """Change rows that were read in this transaction; all of them in the same columns."""
        if not changes:
            return
        form, entered = _FORMS[table.name], []
        for row, new in changes:
            *values, digest = self.changed_row(table, row, new)
            self._add(form.groups(row[:-1]), -1, -row[-1])
            self._add(form.groups(values), 1, digest)
            named = dict(zip(form.columns, values, strict=True))
            entered.append({f"new_{name}": named[name] for name in new} | {"this": row[form.key_at]})
            entered[-1]["new_row_digest"] = digest
        self._change(form, _new_values(table, (*changes[0][1], "row_digest")), entered)

    def changed_row(self, table: Table, row: Any, new: Mapping[str, Any]) -> Values:
        """Return the values of a row after a change, its digest the last of them."""
        form = _FORMS[table.name]
        values = form.complete(dict(zip(form.columns, row[:-1], strict=True)) | dict(new))
        return *values, self._digest(form.name, values)

    def delete(self, table: Table, rows: Iterable[Any]) -> int:
        """Remove rows that were read in this transaction; returns how many."""
        form, gone = _FORMS[table.name], []
        for row in rows:
            self._add(form.groups(row[:-1]), -1, -row[-1])
            gone.append({"this": row[form.key_at]})
        if gone:
            self._change(form, form.delete, gone)
        return len(gone)

    def sound(self, table: Table) -> tuple[list[Any], list[Any]]:
        """Return the rows of a table that are what was written, and the keys of the others."""
        key, sound, others = _FORMS[table.name].key, list[Any](), list[Any]()
        for (this,) in list(self._sql.execute(select(key))):
            try:
                sound += self._with(table, {key.name: this})
            except (StoreDamaged, DBAPIError) as error:  # the database may not even decode it
                if isinstance(error, DBAPIError) and not is_damage(error, self._sql.engine):
                    raise
                others.append(this)
        return sound, others

    def keep_sound(self, table: Table) -> bool:
        """Remove the rows of a table that are not what was written; false where all of them are.

        Only for what saves work, as statistics do: its groups are from then on what is left.
        """
        form, (sound, others) = _FORMS[table.name], self.sound(table)
        kinds = sorted(kind for grouping in form.groupings for kind in kinds_of(grouping))
        stored = self._sums_now(SUMS_OF_KINDS, {"kinds": kinds}, lambda group: group[0] in kinds)
        sums = self.sums(table, sound)
        if not others and sums == stored:
            return False
        for group in {*sums, *stored}:
            has, had = sums.get(group, (0, 0)), stored.get(group, (0, 0))
            self._add([group], has[0] - had[0], has[1] - had[1])
        self._change(form, form.delete, [{"this": key} for key in others])
        return True

    def put_back(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Enter rows of a dump as they are, digests included; those of `group_digests`, too."""
        if rows:
            self._groups.pop(table.name, None)
            self._write(_FORMS[table.name].insert if table.name in _FORMS else _ENTER_SUMS, rows)

    def finish(self) -> int:
        """Write the sums down; returns by how much `groups_total` changes."""
        changed = {group: counted for group, counted in self._pending.items() if counted != (0, 0)}
        self._pending = {}
        if not changed:
            return 0
        groups = [group for group in changed if group[:2] not in self._noted]
        stored = {group: counted for sums in self._noted.values() for group, counted in sums.items()}
        self._noted = {}
        for at in range(0, len(groups), _GROUPS_AT_ONCE):
            some = groups[at : at + _GROUPS_AT_ONCE]
            named = (zip(("kind", "part", "shard"), group, strict=True) for group in some)
            values = {f"{name}_{n}": value for n, pairs in enumerate(named) for name, value in pairs}
            stored |= self._stored_sums(_sums_of(len(some)), values)
        new, updated, gone, total = [], [], [], 0
        for group, counted in changed.items():
            before = stored.get(group)
            after = plus(before or (0, 0), counted)
            if before is not None:
                total -= self.digest_of_group(group, before)
            if after[0]:
                total += self.digest_of_group(group, after)
            this = dict(zip(("of_kind", "of_part", "of_shard"), group, strict=True))
            if before is None:
                new.append(
                    dict(zip(("kind", "part", "shard", "rows", "total"), (*group, *after), strict=True))
                )
            elif after[0]:
                updated.append(this | {"n": after[0], "sum": after[1]})
            else:
                gone.append(this)
        for statement, groups_of_it in ((_ENTER_SUMS, new), (_CHANGE_SUMS, updated), (_DELETE_SUMS, gone)):
            if groups_of_it:
                self._write(statement, groups_of_it)
        return total

    # Digests

    def digest_of_group(self, group: Group, counted: Counted) -> int:
        return self._digest(group_digests.name, (*group, *counted))

    def note_sums(self, kinds: Sequence[str], part: int) -> None:
        """Read the sums of some kinds of groups, of one part and of the whole store, with one question.

        To be done before this transaction changes them: `finish` asks for the others one by one.
        """
        query, values = ask_sums(kinds, part)
        self._noted |= {(kind, of): {} for kind in kinds for of in (0, part)}
        for group, counted in self._stored_sums(query, values).items():
            self._noted[group[:2]][group] = counted

    def all_groups(self) -> dict[Group, Counted]:
        """Return the sums of all groups as they are now."""
        return self._sums_now(_sums_with(()), {})

    def written_groups(self) -> dict[Group, Counted]:
        """Return the sums of all groups as they were last written down: `finish`."""
        return self._stored_sums(_GROUPS_BY_INDEX if self._raw else _sums_with(()), {})

    def sums(self, table: Table, rows: Iterable[Any], mine: Callable[[Group], bool] = bool) -> Sums:
        """Rows and sums of digests of the groups of some rows."""
        counts, totals, groups = dict[Group, int](), dict[Group, int](), _FORMS[table.name].groups
        for row in rows:
            for group in groups(row):
                counts[group] = counts.get(group, 0) + 1
                totals[group] = totals.get(group, 0) + row[-1]
        return {group: (counts[group], to_signed(totals[group])) for group in counts if mine(group)}

    def _digest(self, name: str, values: Sequence[Any]) -> int:
        digest = xxhash.xxh3_64_intdigest(self._pack((name, *values)))
        return digest - _WHOLE if digest >= _HALF else digest

    def _add(self, groups: Iterable[Group], rows: int, digest: int) -> None:
        for group in groups:
            self._pending[group] = plus(self._pending.get(group, (0, 0)), (rows, digest))

    def _change(self, form: _Form, query: Any, entered: list[dict[str, Any]]) -> None:
        def check(changed: int) -> None:
            if changed not in (len(entered), -1):
                raise not_whole(f"{len(entered)} rows of table {form.name!r} were to change, {changed} did")

        self._groups.pop(form.name, None)
        self.changed.add(form.name)
        if entered:
            self._write(query, entered, check)

    def _write(
        self, statement: Any, rows: Sequence[Mapping[str, Any]], check: Callable[[int], None] = lambda _: None
    ) -> None:
        """Change rows; a server is sent changes later and together, and then `check` gets how many did."""
        if isinstance(self._sql, ServerTransaction):
            self._sql.change(statement, rows, check)
        else:
            check(self._sql.execute(statement, list(rows)).rowcount)

    def _stored_sums(self, query: Any, values: Mapping[str, Any]) -> dict[Group, Counted]:
        with decoding(f"table {group_digests.name!r}"):
            return dict(map(stored_sum, self._sql.execute(query, values)))

    def _sums_now(
        self,
        query: Any,
        values: Mapping[str, Any],
        mine: Callable[[Group], bool] = lambda _: True,
        part: Part | None = None,
    ) -> dict[Group, Counted]:
        """Return the sums of some groups, with this transaction's changes that are not written down yet.

        `part` is given where all of them are of one: it may be noted.
        """
        if part in self._noted:
            sums = {group: counted for group, counted in self._noted[part].items() if mine(group)}
        else:
            sums = self._stored_sums(query, values)
        for group, counted in self._pending.items():
            if mine(group):
                sums[group] = plus(sums.get(group, (0, 0)), counted)
        return sums


def _is(row: Any, equal: Mapping[str, Any]) -> bool:
    return all(getattr(row, name) == value for name, value in equal.items())


def _alteration(form: _Form, row: Any) -> StoreDamaged:
    problem = f"row {row[form.key_at]!r} of table {form.name!r} is not what was written"
    if form.table.info["saves_work"]:
        problem += "; it only saves work, and `elasticscan gc` leaves it out"
    return not_whole(problem, table=form.name)
