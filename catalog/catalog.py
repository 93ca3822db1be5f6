"""The catalog: transactions over the store's metadata."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import delete, insert, select, text, update

from elasticscan.base.clock import Clock
from elasticscan.base.errors import AlreadyExists, MoveInProgress, StoreCopied, StoreDamaged
from elasticscan.catalog.commits import CommitTx
from elasticscan.catalog.engine import Watch, check_format, make_engine, reading, told_plainly, writing
from elasticscan.catalog.home import Home, home_of
from elasticscan.catalog.placement import decoding
from elasticscan.catalog.tables import (
    FORMAT_VERSION,
    metadata,
    moves,
    seal_keys,
    store_state,
)
from elasticscan.topology import Phase, Placement


@dataclass(frozen=True, slots=True)
class MoveRow:
    """A move under way, as every process sees it."""

    tablet: int
    source: int
    target: int
    phase: Phase
    owner: str
    started_at: float
    heartbeat_at: float


class Tx(CommitTx):
    """One catalog transaction: everything done through it becomes visible at once, or nothing."""

    def plan_move(self, tablet: int, source: int, target: int, owner: str) -> None:
        """Enter a planned move; nobody else may move the tablet until it ended."""
        busy = self.move(tablet)
        if busy is not None:
            raise MoveInProgress(
                f"tablet {tablet} is already being moved by {busy.owner}; wait for it, or run "
                "`elasticscan move --resume` if that process is gone",
                tablet=tablet,
                owner=busy.owner,
            )
        row = {"tablet_id": tablet, "source": source, "target": target, "phase": Phase.PLANNED.value}
        self._sql.execute(
            insert(moves).values(**row, owner=owner, started_at=self.now, heartbeat_at=self.now)
        )

    def move(self, tablet: int) -> MoveRow | None:
        row = self._sql.execute(select(moves).where(moves.c.tablet_id == tablet)).one_or_none()
        return None if row is None else _move_row(row)

    def moves(self) -> tuple[MoveRow, ...]:
        return tuple(_move_row(row) for row in self._sql.execute(select(moves).order_by(moves.c.started_at)))

    def set_move_phase(self, tablet: int, owner: str, phase: Phase) -> bool:
        """Note a move's progress. False when the move is no longer this owner's."""
        query = update(moves).where(moves.c.tablet_id == tablet, moves.c.owner == owner)
        return bool(self._sql.execute(query.values(phase=phase.value, heartbeat_at=self.now)).rowcount)

    def check_whole(self) -> None:
        """Raises `StoreDamaged` unless the catalog is as it was written."""
        if self._sql.dialect.name != "sqlite":
            return
        found = self._sql.exec_driver_sql("PRAGMA integrity_check").scalars().all()
        if found != ["ok"]:
            raise StoreDamaged(
                f"the catalog is damaged: {'; '.join(map(str, found[:3]))}; restore it from a backup",
                detail=list(found),
            )

    def end_move(self, tablet: int, owner: str) -> bool:
        query = delete(moves).where(moves.c.tablet_id == tablet, moves.c.owner == owner)
        return bool(self._sql.execute(query).rowcount)


def _move_row(row: Any) -> MoveRow:
    with decoding(f"the move of tablet {row.tablet_id}"):
        phase = Phase(row.phase)
    return MoveRow(row.tablet_id, row.source, row.target, phase, row.owner, row.started_at, row.heartbeat_at)


@dataclass(frozen=True, slots=True)
class NewStore:
    """What a store starts with."""

    shards: tuple[tuple[str, str], ...]  # (name, root); they get the ids 1, 2, …
    placement: Placement
    hash: str
    retention_seconds: float


class Catalog:
    """Opens transactions. Safe to use from several threads and after a fork."""

    def __init__(self, url: str | Path, clock: Clock, where: str) -> None:
        self._engine = make_engine(url)
        self._clock = clock
        check_format(self._engine, where)
        self._watch = Watch(self._engine, select(store_state.c.layout, store_state.c.last_commit))
        self._settled: Home | None = None
        self.when_copied: Callable[[], None] = self._refuse_copy

    @staticmethod
    def create(
        url: str | Path,
        clock: Clock,
        where: str,
        new: NewStore,
        prepare: Callable[[Tx], None] = lambda _: None,
    ) -> None:
        """Make the tables and the first rows, or nothing; refuses a catalog that is there already.

        `prepare` is called before the commit; when it raises, there is no store.
        """
        engine = make_engine(url)
        try:
            with (
                told_plainly(engine),
                engine.connect().execution_options(writing=True) as sql,
                sql.begin(),
            ):
                metadata.create_all(sql)
                if engine.dialect.name == "postgresql":
                    sql.execute(text("LOCK TABLE store_state IN EXCLUSIVE MODE"))
                if sql.execute(select(store_state.c.id)).first():
                    raise AlreadyExists(
                        f"{where} already holds a store; open it, or choose another place", uri=where
                    )
                now, home = clock.now(), home_of(engine)
                sql.execute(
                    insert(store_state).values(
                        id=1,
                        format_version=FORMAT_VERSION,
                        store_id=secrets.token_hex(16),
                        slots=new.placement.slot_count,
                        hash=new.hash,
                        retention_seconds=new.retention_seconds,
                        created_at=now,
                        layout=1,
                        last_commit=0,
                        next_tablet=max(t.id for t in new.placement.tablets) + 1,
                        incarnation=secrets.token_hex(16),
                        home=None if home is None else home.pack(),
                    )
                )
                sql.execute(insert(seal_keys).values(id=1, secret=secrets.token_bytes(32), created_at=now))
                tx = Tx(sql, now)
                for name, root in new.shards:
                    tx.add_shard(name, root)
                tx.replace_placement(Placement(()), new.placement)
                tx.append_topology("created")
                prepare(tx)
        finally:
            engine.dispose()

    def close(self) -> None:
        self._watch.close()
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Tx]:
        """A transaction that sees one state of the catalog and changes nothing."""
        with reading(self._engine) as connection:
            yield Tx(connection, self._clock.now())

    @contextmanager
    def writing(self) -> Iterator[Tx]:
        """A transaction that may change things; one at a time over all processes.

        Ends in a commit, or in nothing at all when the block raises. A copy of a store becomes a store of
        its own before the first one.
        """
        self.settle()
        with self.leasing() as tx:
            yield tx

    @contextmanager
    def leasing(self) -> Iterator[Tx]:
        """As `writing`, for what leaves a copy of a store equal to the original: leases."""
        with writing(self._engine) as connection:
            yield Tx(connection, self._clock.now())

    @property
    def home(self) -> Home | None:
        """Where the catalog's file lies now."""
        return home_of(self._engine)

    def settle(self) -> None:
        """Find out whether this catalog is a copy that was not written to yet; then `when_copied` is called.

        Raises:
            StoreCopied: nobody said what is to be done then.
        """
        here = self.home
        if here is None or here == self._settled:
            return
        with self.reading() as tx:
            known = tx.identity().home
        if known is not None and not here.is_place_of(known):
            self.when_copied()
        self._settled = here

    def _refuse_copy(self) -> None:
        raise StoreCopied("the catalog is a copy, and not a store of its own yet; open it as a store")

    def versions(self) -> tuple[int, int]:
        """(layout, last commit), the cheapest look at whether anything changed."""
        row = self._watch.row()
        if row is not None:
            return row[0], row[1]
        with self.reading() as tx:
            return tx.versions()
