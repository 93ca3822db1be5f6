"""Questions under way: whoever asks may do something else before it takes the answer."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from select import select
from typing import Any

import pytest
import sqlalchemy

pytest.importorskip("psycopg", reason="pip install 'elasticscan[postgres]'")

from elasticscan.catalog import Catalog
from elasticscan.catalog.connections import ASKERS, Watch
from elasticscan.catalog.tables import store_state
from tests.base.manual_clock import ManualClock
from tests.base.postgres import Server
from tests.base.severed_line import SeveredLine
from tests.catalog.test_transactions import add_table, make


@pytest.fixture
def catalog(line: SeveredLine, postgres: Server) -> Iterator[Catalog]:
    with postgres.database() as database:
        with closing(make(line.url(database), ManualClock(1_000.0))) as catalog:
            yield catalog
        line.cut_at()


@pytest.fixture
def watch(catalog: Catalog) -> Iterator[Watch]:
    watch = Watch(catalog._engine, sqlalchemy.select(store_state.c.last_commit))
    yield watch
    watch.close_idle()


def newest(catalog: Catalog) -> int:
    with catalog.reading() as tx:
        return tx.versions()[1]


def test_other_questions_are_answered_while_some_are_under_way(catalog: Catalog, watch: Watch) -> None:
    catalog.look_afresh()  # nothing is open from before
    opened = list[Any]()
    sqlalchemy.event.listen(catalog._engine, "connect", lambda connection, _: opened.append(connection))
    with ExitStack() as under_way:
        rows = [under_way.enter_context(watch.asked()) for _ in range(ASKERS + 2)]
        assert len(opened) == ASKERS
        for connection in opened:
            select([connection], [], [])  # the answer is there
        before = newest(catalog)
        add_table(catalog)
        assert watch.row() == (newest(catalog),)
        found = [row() for row in rows]
    # Those for which there was a connection were asked before the change, the others when it was wanted.
    assert found == [(before,)] * ASKERS + [(newest(catalog),)] * 2
    assert watch.row() == (newest(catalog),)


def test_an_answer_that_nobody_took_is_never_that_of_another_question(catalog: Catalog, watch: Watch) -> None:
    for number in range(2 * ASKERS):
        with watch.asked():
            pass
        add_table(catalog, f"t{number}")
        assert watch.row() == (newest(catalog),)


@pytest.mark.parametrize("answered", [False, True])
def test_a_question_whose_connection_broke_is_asked_anew(
    catalog: Catalog, line: SeveredLine, answered: bool
) -> None:
    catalog.versions()
    for _ in range(3):
        line.cut_at(1, answered=answered)
        with catalog.versions_asked() as versions:
            assert versions is not None
            assert versions() == catalog.versions()
        assert line.cuts == 1


def test_who_changes_things_meanwhile_is_reported_what_was_asked_and_then_what_is_new(
    catalog: Catalog,
) -> None:
    before = catalog.versions()
    with catalog.versions_asked() as versions:
        add_table(catalog)
        assert versions is not None
        assert versions() >= before
    assert catalog.versions() > before


def test_as_many_threads_as_come_ask_and_take_their_answers(catalog: Catalog, watch: Watch) -> None:
    barrier, found = threading.Barrier(12, timeout=60), list[object]()

    def work() -> None:
        with watch.asked() as row:
            barrier.wait()
            watch.row()
            found.append(row())

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(newest(catalog),)] * 12


def ask_in_child(watch: Watch, row: object, result: object) -> None:
    result.put((row(), watch.row()))  # type: ignore[attr-defined, operator]


def test_a_child_that_was_forked_meanwhile_asks_for_itself(catalog: Catalog, watch: Watch) -> None:
    fork = multiprocessing.get_context("fork")
    watch.row()
    with watch.asked() as row:
        result = fork.SimpleQueue()
        child = fork.Process(target=ask_in_child, args=(watch, row, result))
        child.start()
        assert result.get() == ((newest(catalog),), (newest(catalog),))
        child.join()
        assert row() == (newest(catalog),)
    assert child.exitcode == 0
