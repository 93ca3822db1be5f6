"""`elasticscan demo`: a Spark scan while tablets move, beside a plain scan under the same moves.

All flights that left New York in 2013 go into a store with two shards in a temporary directory.
Then three things happen at once:

- Spark scans the table through `spark.read.format("elasticscan")`, in a job that takes its time
  for every page, as jobs do;
- a plain scan keeps step with it, reading the same pages from the same shards, but without looking
  where tablets are by now;
- an operator adds a shard, moves tablets back and forth, and empties a shard.

At the end every row that came is compared with the source. The demo fails (exit code 1) if the
elastic scan lost or repeated a row, or if fewer than 20 moves finished while it read. Moves count
only from the first page that reached the job to the last moment at which Spark surely had pages
left to read; what its pipes may hold is subtracted.
"""

from __future__ import annotations

import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer
from rich.console import Console

from elasticscan.base.errors import AlreadyExists
from elasticscan.cli.demo_accounts import (
    Account,
    Arrival,
    account,
    count_within,
    failures,
    pause_seconds,
    usual_pause,
    window,
)
from elasticscan.cli.demo_flights import KEY, TABLE, airlines, flights
from elasticscan.cli.demo_mover import Operator
from elasticscan.cli.demo_needs import check_needs
from elasticscan.cli.demo_plain import PlainScan
from elasticscan.cli.demo_spark import (
    TASKS,
    Desk,
    flights_by_airline,
    scan_frame,
    start_session,
    stop_session,
)
from elasticscan.cli.demo_view import Lines, Moment, Silent, View, bar_chart, picture, result_table
from elasticscan.cli.options import Json
from elasticscan.cli.output import console, print_json
from elasticscan.store import Store
from elasticscan.topology import Placement

SHARDS, TABLETS = ("s1", "s2"), 64
PAGE_ROWS = 2_000
LEAST_ROWS = 40_000
STORE = "flights.store"
_TICK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the demo found.

    Attributes:
        elastic, plain: the accounts of the two scans.
        moves: moves that finished while Spark surely was reading.
        plain_moves: moves that finished while the plain scan was reading.
        all_moves: all that finished.
        away: rows of the elastic scan that were read elsewhere than planned, by virtual scans.
        followed: tablets that these rows belong to.
        pages: pages that reached the Spark job.
        seconds: from the first to the last of them.
        by_airline: flights by airline, counted by Spark.
    """

    elastic: Account
    plain: Account
    moves: int
    plain_moves: int
    all_moves: int
    away: int
    followed: int
    pages: int
    seconds: float
    by_airline: dict[str, int]


def demo(
    rows: Annotated[int | None, typer.Option(min=LEAST_ROWS, help="Take fewer flights.")] = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="About how long the scans take.")] = 20.0,
    seed: Annotated[int | None, typer.Option(help="Repeat the operator's choices.")] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Leave the store there, to play with.")
    ] = None,
    json: Json = False,
) -> None:
    """Scan 336,776 flights with Spark while their tablets move, and count what comes."""
    check_needs()
    out = console()
    with tempfile.TemporaryDirectory(prefix="elasticscan-demo-", ignore_cleanup_errors=True) as scratch:
        uri = _uri(keep or Path(scratch))
        outcome = _run(Path(scratch), uri, rows, seconds, random.Random(seed), None if json else out)
    wrong = failures(outcome.elastic, outcome.plain, outcome.moves)
    if json:
        print_json(asdict(outcome) | {"failures": wrong})
    else:
        _tell(out, outcome, wrong)
        if keep is not None:
            out.print(f"\nThe store stays at {uri}; look at it with: elasticscan status {uri}", markup=False)
    if wrong:
        raise typer.Exit(1)


def _uri(directory: Path) -> str:
    path = directory.absolute() / STORE
    if path.exists():
        raise AlreadyExists(f"{path} exists already; remove it or name another directory", uri=str(path))
    return str(path)


def _run(
    scratch: Path, uri: str, rows: int | None, seconds: float, dice: random.Random, out: Console | None
) -> Outcome:
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(4, thread_name_prefix="demo"))
        view: View = Lines(out) if out else Silent()
        view.say("Starting Spark and loading the flights ...")
        with _interrupts_wait():
            starting = pool.submit(start_session, scratch, PAGE_ROWS)
            try:
                source = flights(rows)
                store = stack.enter_context(_loaded(uri, source))
            finally:
                # Also when loading failed: a Spark that is starting has to be stopped.
                session = starting.result()
                stack.callback(stop_session, session)
        base = store.context.placement()
        desk = Desk(scratch / "desk")
        desk.open()
        # Spark is only ever asked from the pool: Ctrl-C then finds this thread waiting, not amid a call.
        frame = pool.submit(scan_frame, session, uri, TABLE, PAGE_ROWS, desk).result()
        view.say(f"{source.num_rows:,} flights in {TABLETS} tablets at {' and '.join(SHARDS)}. Scanning ...")
        race = _Race(store, desk, source.num_rows, seconds, dice)
        with picture(out, store) if out else nullcontext(view) as watching:
            seen, arrivals = race.run(pool, frame.toArrow, watching)
        counted = pool.submit(flights_by_airline, frame).result()
        away, followed = _away(seen, base, {name: shard for shard, name in race.names.items()})
        span = window(arrivals)
        return Outcome(
            elastic=account(source, seen, KEY),
            plain=account(source, race.plain.to_table(), KEY),
            moves=count_within(race.operator.moved_at, span),
            plain_moves=count_within(race.operator.moved_at, race.plain.span),
            all_moves=len(race.operator.moved_at),
            away=away,
            followed=followed,
            pages=sum(map(len, arrivals)),
            seconds=round(span[1] - span[0], 1),
            by_airline=counted,
        )


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Ctrl-C takes effect at the end: two threads import packages here, and an interrupt amid an
    import can leave its lock taken for ever."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: noted.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if noted.is_set():
        raise KeyboardInterrupt


def _loaded(uri: str, source: pa.Table) -> Store:
    store = Store.create(uri, SHARDS, TABLETS)
    store.create_table(TABLE, source.schema, KEY)
    store.write(TABLE, source)
    return store


class _Race:
    """The three things that happen at once, and the loop that watches them."""

    def __init__(self, store: Store, desk: Desk, expected: int, seconds: float, dice: random.Random) -> None:
        self._desk, self._expected = desk, expected
        self._pause = usual_pause(expected, PAGE_ROWS, TASKS, seconds)
        self._arrivals: list[list[Arrival]] = []
        self._spark_done = False
        self.names = store.context.shard_names()
        self.plain = PlainScan(store, TABLE, KEY, PAGE_ROWS)
        self.operator = Operator(store, self._fraction, dice)

    def run(
        self, pool: ThreadPoolExecutor, scan: Callable[[], Any], view: View
    ) -> tuple[pa.Table, list[list[Arrival]]]:
        """What Spark gave, and when its pages arrived."""
        begun = time.monotonic()
        spark = pool.submit(scan)
        others: list[Future[None]] = []
        try:
            while not spark.done():
                self._arrivals = self._desk.arrivals()
                if not others and any(self._arrivals):
                    begun = time.monotonic()
                    others = [pool.submit(self.operator.run), pool.submit(self.plain.run, self._in_step)]
                for other in others:
                    if other.done():
                        other.result()
                self._desk.set_pause(self._next_pause())
                view.show(self._moment(time.monotonic() - begun))
                time.sleep(_TICK_SECONDS)
            self._arrivals = self._desk.arrivals()
            seen = spark.result()
        finally:
            self._spark_done = True
            self.operator.stop()
            self._desk.set_pause(0.0)
        for other in others:
            other.result()
        view.show(self._moment(time.monotonic() - begun))
        return seen, self._arrivals

    def _fraction(self) -> float:
        """How much of the scan has reached the Spark job."""
        return sum(page.rows for task in self._arrivals for page in task) / self._expected

    def _next_pause(self) -> float:
        operator = self.operator
        return pause_seconds(
            self._fraction(), len(operator.moved_at), operator.acts_done.is_set(), self._pause
        )

    def _in_step(self, plain: PlainScan) -> bool:
        """Holds the plain scan back until Spark is as far; when Spark is done it may finish."""
        while not self._spark_done and plain.rows > self._fraction() * self._expected:
            time.sleep(_TICK_SECONDS / 2)
        return True

    def _moment(self, seconds: float) -> Moment:
        return Moment(
            seconds=seconds,
            expected=self._expected,
            spark_rows=sum(page.rows for task in self._arrivals for page in task),
            spark_pages=sum(map(len, self._arrivals)),
            plain_rows=self.plain.rows,
            plain_pages=self.plain.pages,
            moves=len(self.operator.moved_at),
            act=self.operator.act or "Spark plans its scan",
        )


def _away(seen: pa.Table, base: Placement, shards: dict[str, int]) -> tuple[int, int]:
    """Rows that were read elsewhere than at their base shard, and the tablets that they belong to."""
    starts = np.array([tablet.start for tablet in base.tablets])
    homes = np.array([tablet.shard for tablet in base.tablets])
    at = np.searchsorted(starts, seen.column("_slot").to_numpy(), "right") - 1
    places = seen.column("_shard").combine_chunks().dictionary_encode()
    ids = np.array([shards.get(name, -1) for name in places.dictionary.to_pylist()], dtype=np.int64)
    away = ids[places.indices.to_numpy(zero_copy_only=False)] != homes[at]
    return int(away.sum()), len(np.unique(at[away]))


def _tell(out: Console, outcome: Outcome, wrong: list[str]) -> None:
    names = airlines()
    by_name = {names.get(code, code): count for code, count in outcome.by_airline.items()}
    out.print("\n[bold]Flights from New York, 2013[/bold] [dim]counted by Spark from that scan[/dim]\n")
    out.print(bar_chart(by_name))
    out.print()
    out.print(
        result_table(
            outcome.elastic,
            outcome.plain,
            (
                ("moves finished while it read", f"{outcome.moves:,}", f"{outcome.plain_moves:,}"),
                ("tablets followed to another shard", f"{outcome.followed:,}", "none"),
                ("rows read there, by virtual scans", f"{outcome.away:,}", "none"),
            ),
        )
    )
    if wrong:
        for text in wrong:
            out.print(f"The demo failed: {text}.", style="bold red", markup=False)
        return
    out.print(
        f"[bold green]Every flight exactly once[/], while tablets moved {outcome.moves} times in "
        f"{outcome.seconds:.0f} seconds. The plain scan lost {outcome.plain.missing:,} and gave "
        f"{outcome.plain.repeated:,} twice."
    )
