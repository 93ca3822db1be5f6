"""What the handler of a signal raises during a step, simulated at every step, shuts and keeps nothing."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from pathlib import Path
from time import sleep
from types import FrameType

import pytest
from sqlalchemy import select
from sqlalchemy.engine.default import DefaultExecutionContext

import elasticscan.catalog.connections as connections
from elasticscan.base import interrupted
from elasticscan.base.errors import FilterError, StoreDamaged
from elasticscan.base.forks import ChildSafeLock, ForkGate
from elasticscan.base.side_by_side import side_by_side
from elasticscan.catalog import Catalog
from elasticscan.catalog.failures import decoding
from elasticscan.catalog.tables import store_state
from elasticscan.storage.sealed_file import SealedFile
from elasticscan.store import Store, Table
from tests.base.manual_clock import ManualClock
from tests.catalog.test_transactions import add_table, make

# A connection that was lost between two steps is closed when it is collected, which Python 3.13 tells of.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Alarm(Exception):
    """What a handler raises."""


def interrupted_everywhere(
    work: Callable[[], object], files: Collection[str], kind: type[BaseException] = Alarm
) -> Iterator[BaseException]:
    """Do some work again and again, each time with an error at a later step of the given files.

    Steps are where Python runs handlers of signals: at the beginning of a function, and behind a call of one
    that is not written in Python. The errors are handed out with their tracebacks, as notebooks keep them.
    Ends when the work came to its end.
    """
    for at in range(100_000):
        left = at

        def step(frame: FrameType, event: str, _: object) -> None:
            nonlocal left
            if event in ("call", "c_return") and Path(frame.f_code.co_filename).name in files:
                left -= 1
                if left < 0:
                    sys.setprofile(None)
                    raise kind

        sys.setprofile(step)
        try:
            work()
            return
        except (kind, AssertionError) as error:  # SQLAlchemy asserts that what it did is done
            sys.setprofile(None)
            yield error if isinstance(error, kind) else error.__context__
        finally:
            sys.setprofile(None)


def elsewhere(work: Callable[[], object]) -> None:
    """Do some work in another thread, which is not the one that may enter again."""
    failed: list[BaseException] = []

    def do() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive() and not failed, failed


def test_a_lock_is_open_after_an_interruption_at_any_step() -> None:
    lock = ChildSafeLock()

    def use() -> None:
        with lock:
            pass

    steps = 0
    for error in interrupted_everywhere(use, {"forks.py"}):
        assert not lock._lock.locked(), error
        steps += 1
    assert steps


def check_empty(gate: ForkGate) -> None:
    assert gate.shut(0.0)
    gate.open()


@pytest.mark.parametrize("at_once", [False, True])
def test_nobody_stays_inside_of_a_gate_after_an_interruption_at_any_step(at_once: bool) -> None:
    gate, steps = ForkGate(), 0

    def use() -> None:
        with gate.inside_at_once() if at_once else gate.inside():
            pass

    for _ in interrupted_everywhere(use, {"forks.py", "threading.py"}):
        elsewhere(lambda: check_empty(gate))
        steps += 1
    assert steps > 10


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with closing(make(tmp_path / "catalog.db", ManualClock(1_000.0))) as made:
        yield made
    gc.collect()  # what errors have held is let go with them
    assert not connections.GATE._inside and not interrupted._BEGUN


@pytest.mark.parametrize(
    ("writes", "kind"),
    [(False, Alarm), (True, Alarm), pytest.param(True, KeyboardInterrupt, marks=pytest.mark.long)],
)
def test_others_write_on_after_an_interruption_at_any_step_of_a_transaction(
    catalog: Catalog, writes: bool, kind: type[BaseException]
) -> None:
    add_table(catalog)

    def use() -> None:
        before = interrupted.begun()
        try:
            with catalog.writing() if writes else catalog.reading() as tx:
                assert tx.table("t").name == "t"
        except BaseException:
            interrupted.end_left(before)
            raise

    def write() -> None:
        with catalog.leasing(at_once=True) as tx:
            tx.table("t")

    kept, steps = None, 0
    files = {"connections.py", "contextlib.py", "base.py", "default.py"}  # the last two are SQLAlchemy's
    for error in interrupted_everywhere(use, files, kind):
        kept = error  # the newest, as notebooks do; each may hold a connection
        elsewhere(write)
        steps += 1
    assert kept is not None
    assert steps > 100
    assert not interrupted._BEGUN


def test_connections_are_given_to_others_after_an_interruption_at_any_step(catalog: Catalog) -> None:
    pool = catalog._engine.pool
    assert isinstance(pool, connections.ConnectionPool)

    def use() -> None:
        pool._pool.put(pool._pool.get(False), False)

    with closing(pool.connect()):
        pass
    steps = 0
    for _ in interrupted_everywhere(use, {"queue.py", "threading.py", "connections.py"}):
        elsewhere(pool._pool.qsize)
        steps += 1
        if not pool._pool.qsize():  # it was lost between two steps, and closed
            with closing(pool.connect()):
                pass
    assert steps > 5


def test_questions_of_a_watch_are_answered_after_an_interruption_at_any_step(catalog: Catalog) -> None:
    watch = connections.Watch(catalog._engine, select(store_state.c.layout))
    kept = list[BaseException]()
    for error in interrupted_everywhere(watch.row, {"connections.py", "forks.py"}):
        kept.append(error)
        assert not any(slot.lock.locked() for slot in watch._slots)
        elsewhere(watch.row)
    watch.close()
    assert len(kept) > 10


def test_an_error_of_a_handler_amid_a_statement_is_reported_as_it_is(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_table(catalog)

    def interrupt(*_: object) -> None:
        raise Alarm

    def use() -> None:
        with catalog.writing() as tx:
            monkeypatch.setattr(DefaultExecutionContext, "create_cursor", interrupt)
            tx.table("t")

    with pytest.raises(Alarm):
        use()


def alarm_at(
    kind: type[BaseException], file: str, function: str, event: str = "call", under: str = ""
) -> Callable[[], None]:
    """Have a handler of a signal raise at the first step of a function, below some other; returns its end."""

    def handler(*_: object) -> None:
        raise kind("of a handler")

    before = signal.signal(signal.SIGUSR1, handler)

    def step(frame: FrameType, at: str, _: object) -> None:
        code = frame.f_code
        if at != event or code.co_name != function or Path(code.co_filename).name != file:
            return
        above: FrameType | None = frame
        while above is not None and above.f_code.co_name != (under or function):
            above = above.f_back
        if above is not None:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGUSR1)

    def end() -> None:
        sys.setprofile(None)
        signal.signal(signal.SIGUSR1, before)

    sys.setprofile(step)
    return end


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    with Store.create(tmp_path / "store", ["a", "b"], tablets=4, slots=16, upkeep="off") as store:
        made = store.create_table("t", {"k": [1, 2, 3]}, primary_key="k")
        yield made
        elsewhere(lambda: made.upsert({"k": [9]}))
        assert made.scan().count() == 4


def shows_nothing_old(catalog: Catalog, other: Catalog, use: Callable[[], object], file: str) -> int:
    """Interrupt a use at each step of a file; what others do then is seen. Returns how many there were."""
    kept = list[BaseException]()  # with their tracebacks
    for error in interrupted_everywhere(use, {file}):
        kept.append(error)
        with other.writing() as tx:
            tx.bump_layout()
            newest = tx.versions()[0]
        with catalog.reading() as tx:
            assert tx.versions()[0] == newest
            assert [table.name for table in tx.tables()] == ["t"]
    return len(kept)


def test_a_transaction_left_amid_an_answer_shows_nothing_old_later(catalog: Catalog) -> None:
    add_table(catalog)

    def use() -> None:
        with catalog.reading() as tx:
            tx.tables()

    file = Path(str(catalog._engine.url.database))
    with closing(Catalog(file, ManualClock(1_000.0), str(file))) as other:
        assert shows_nothing_old(catalog, other, use, "pipeline.py")


def test_an_interruption_that_was_handled_before_a_call_is_not_raised_again(table: Table) -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(FilterError):
            table.scan(filter="k >")


def test_no_thread_goes_on_after_the_start_of_another_was_interrupted() -> None:
    done = list[int]()

    def work(item: int) -> None:
        sleep(0.05)
        done.append(item)

    end = alarm_at(Alarm, "threading.py", "wait")
    try:
        with pytest.raises(Alarm), side_by_side(work, range(100), 4):
            pass
    finally:
        end()
    after = len(done)
    sleep(0.2)
    assert len(done) == after < 100


def test_a_timeout_of_a_handler_is_no_damage() -> None:
    with pytest.raises(TimeoutError), decoding("something"):
        raise TimeoutError
    with pytest.raises(TimeoutError):
        SealedFile.damaged(None, TimeoutError())
    with pytest.raises(StoreDamaged), decoding("something"):
        raise OSError("Invalid flatbuffers message.")
