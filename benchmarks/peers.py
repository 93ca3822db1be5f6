"""elasticscan compared with stores that its users know: the same rows and tasks, in turns, on one machine.

    make peers                                         a million rows, all engines
    make peers ARGUMENTS='--rows 10000000 --engines elasticscan DuckDB Lance'

Each answer is compared with the expected one; the cell of an engine that fails or is wrong says so.
Times are medians of rounds; in a round each engine in turn does the same task. Prints a table; `--into` names
a directory for the figures (`peers.json`) and the bars of the README (`peers-bars.svg`).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import peer_bars
import pyarrow as pa
import pyarrow.compute as pc
from measure import seconds
from peer_engines import ENGINES, FEW, SCHEMA, rows
from peer_resharding import RESHARDED
from peer_spark import SparkElasticScan, SparkParquet

GETS, PAGE = 20, 50_000
COMMITS, COMMIT_ROWS, COMMITS_SECONDS = 1_000, 10, 20.0
SMALL = f"{COMMITS:,} small commits, each"
NO_CALL = "no such call"
MAKERS = (*ENGINES, SparkElasticScan, SparkParquet)
Figures = dict[str, dict[str, Any]]
Answer = tuple[int, int]  # how many rows, and the sum of their keys


class WrongAnswerError(Exception):
    """An engine's answer differs from the expected one."""


class Expected:
    """The expected answers, computed from the generated rows."""

    def __init__(self, count: int) -> None:
        self.count = count
        few, tenth, least = (
            [],
            [],
            pa.table({"k": [], "id": []}, schema=pa.schema([SCHEMA.field("k"), SCHEMA.field("id")])),
        )
        for batch in rows(0, count):
            few.append(summed(batch.filter(pc.less(batch["k"], FEW))))
            tenth.append(summed(batch.filter(pc.less(batch["v"], 0.1))))
            least = (
                pa.concat_tables([least, pa.table(batch.select(["k", "id"])).cast(least.schema)])
                .sort_by("k")
                .slice(0, 10)
            )
        self.all = (count, count * (count - 1) // 2)
        self.few, self.tenth = (tuple(map(sum, zip(*of, strict=True))) for of in (few, tenth))
        self.top = summed(least)


def summed(answer: pa.Table | pa.RecordBatch) -> Answer:
    return answer.num_rows, pc.sum(answer["id"]).as_py() or 0


def changed_rows(count: int, round_number: int) -> pa.Table:
    """Return every hundredth row, with new values."""
    ids = np.arange(round_number % 100, count, 100)
    chance = np.random.default_rng(round_number)
    values = {
        "id": ids, "k": chance.integers(0, 1 << 40, len(ids)), "v": chance.random(len(ids)),
        "s": ["changed"] * len(ids), "ts": pa.array(ids).cast(SCHEMA.field("ts").type), "g": ids % 100,
    }  # fmt: skip
    return pa.table(values, schema=SCHEMA)


def small_commit(count: int, number: int) -> pa.Table:
    ids = np.random.default_rng(number).choice(count, COMMIT_ROWS, replace=False)
    return (
        changed_rows(count, number)
        .slice(0, COMMIT_ROWS)
        .set_column(0, SCHEMA.field("id"), pa.array(np.sort(ids)))
    )


class Works:
    """The tasks of each engine, by name; each raises `WrongAnswerError`."""

    def __init__(self, count: int) -> None:
        self.expected, self.count = Expected(count), count

    def reads(self) -> dict[str, Callable[[Any], None]]:
        expected = self.expected
        return {
            "full scan": lambda e: check(summed(e.scan()), expected.all),
            "one column": lambda e: check(e.column().num_rows, self.count),
            "full scan in Spark, no sink": lambda e: e.scan_nowhere(),
            "one column in Spark, no sink": lambda e: e.column_nowhere(),
            "all rows as a stream, no sink": lambda e: e.streamed_nowhere(),
            "filter, 0.1 %": lambda e: check(summed(e.few()), expected.few),
            "filter, 10 %": lambda e: check(summed(e.tenth()), expected.tenth),
            "group by 100": lambda e: check(sorted(e.groups()["n"].to_pylist()), [self.count // 100] * 100),
            "top 10": lambda e: check(summed(e.top()), expected.top),
            f"{GETS} reads by key": self.get,
            "pages, each resumed": lambda e: check(added(map(summed, e.pages(PAGE))), expected.all),
        }

    def get(self, engine: Any) -> None:
        keys = random.Random(self.count).sample(range(self.count), GETS)
        check([summed(engine.get(key)) for key in keys], [(1, key) for key in keys])

    def upsert(self, engine: Any, round_number: int) -> None:
        engine.upsert(changed_rows(self.count, round_number))

    def commit(self, engine: Any, number: int) -> None:
        engine.upsert(small_commit(self.count, number))

    def scan_after(self, engine: Any) -> None:
        check(summed(engine.scan()), self.expected.all)

    def changes(self, engine: Any) -> None:
        if engine.changes().num_rows < self.count // 100:
            raise WrongAnswerError("changes are missing")


def added(answers: Iterable[Answer]) -> Answer:
    total = (0, 0)
    for answer in answers:
        total = (total[0] + answer[0], total[1] + answer[1])
    return total


def check(answer: Any, expected: Any) -> None:
    if answer != expected:
        raise WrongAnswerError(f"{str(answer)[:60]} instead of {str(expected)[:60]}")


class Table:
    """The figures by task and engine: seconds, bytes or texts."""

    def __init__(self) -> None:
        self.figures: Figures = {}

    def time(self, work: str, name: str, do: Callable[[], object], times: list[float] | None = None) -> None:
        """Time a task; return the median of this time and the `times` of earlier runs."""
        counted = [] if times is None else times

        def timed() -> float:
            counted.append(seconds(do))
            return statistics.median(counted)

        self.enter(work, name, timed)

    def enter(self, work: str, name: str, measured: Callable[[], float]) -> None:
        """Add a figure. If the task fails, add the reason, and do not try it again."""
        cells = self.figures.setdefault(work, {})
        if isinstance(cells.get(name), str):
            return
        try:
            cells[name] = measured()
        except AttributeError as error:
            cells[name] = NO_CALL if "has no attribute" in str(error) else f"failed: {error}"[:60]
        except Exception as error:
            cells[name] = f"failed: {type(error).__name__}: {error}"[:100]

    def tell(self, work: str) -> None:
        cells = self.figures.get(work, {})
        print(
            f"{work:<30}" + "   ".join(f"{name}: {shown(cell)}" for name, cell in cells.items()), flush=True
        )


def shown(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell * 1e3:,.1f} ms" if cell < 1 else f"{cell:,.2f} s"
    return f"{cell / 1e6:,.0f} MB" if isinstance(cell, int) else str(cell)


def by_turns(table: Table, engines: list[Any], rounds: int, work: str, do: Callable[[Any], object]) -> None:
    times: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for round_number in range(rounds + 1):
        for engine in engines:
            counted = times[engine.name] if round_number else None
            table.time(work, engine.name, lambda e=engine: do(e), counted)  # type: ignore[misc]
    table.tell(work)


def small_commits(table: Table, works: Works, engines: list[Any]) -> None:
    """Measure up to a thousand commits of each engine in turns; the mean includes maintenance."""
    took: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for number in range(COMMITS):
        for engine in engines:
            times = took[engine.name]
            if sum(times) < COMMITS_SECONDS:
                table.enter(SMALL, engine.name, partial(one_commit, works, engine, number, times))


def one_commit(works: Works, engine: Any, number: int, times: list[float]) -> float:
    times.append(seconds(lambda: works.commit(engine, number)))
    return statistics.mean(times)


def compare(place: Path, count: int, rounds: int, chosen: list[Any]) -> Table:
    table, works = Table(), Works(count)
    engines: list[Any] = []
    try:
        for number, make in enumerate(chosen):
            try:
                engine = make(place / f"engine-{number}")
            except Exception as error:
                print(f"{make.name} is left out: {type(error).__name__}: {error}", file=sys.stderr)
                continue
            engines.append(engine)
            table.time("bulk load", engine.name, lambda e=engine: e.load(rows(0, count)))  # type: ignore[misc]
        table.tell("bulk load")
        for engine in engines:
            table.enter("bytes on disk", engine.name, engine.size)
        table.tell("bytes on disk")
        for work, do in works.reads().items():
            by_turns(table, engines, rounds, work, do)
        written = iter(range(10**9))
        by_turns(table, engines, rounds, "upsert of 1 %", lambda e: works.upsert(e, next(written)))
        by_turns(table, engines, 1, "scan after the upserts", works.scan_after)
        by_turns(table, engines, 1, "changes since the load", works.changes)
        small_commits(table, works, engines)
        table.tell(SMALL)
        by_turns(table, engines, 1, "scan after the commits", works.scan_after)
    finally:
        for engine in engines:
            engine.close()
    for name, scanned in RESHARDED.items():
        if any(name == make.name for make in chosen):
            lost, repeated, moves, seconds_each = scanned(place / f"resharded-{name[:4]}")
            cell = f"{lost:,} lost, {repeated:,} twice ({moves} moves), {shown(seconds_each)} a scan"
            table.figures.setdefault("scan while resharded", {})[name] = cell
    table.tell("scan while resharded")
    return table


def markdown(figures: Figures) -> Iterator[str]:
    names = list(dict.fromkeys(name for cells in figures.values() for name in cells))
    yield "| | " + " | ".join(names) + " |"
    yield "|---" * (len(names) + 1) + "|"
    for work, cells in figures.items():
        texts = [shown(cells.get(name, NO_CALL)) for name in names]
        yield f"| {work} | " + " | ".join("–" if text == NO_CALL else text for text in texts) + " |"


def write(place: Path, count: int, figures: Figures) -> None:
    """Write the figures as JSON, and the bars of some of them."""
    place.mkdir(parents=True, exist_ok=True)
    message = json.dumps({"rows": count, "figures": figures}, indent=1)
    (place / "peers.json").write_text(message + "\n", encoding="utf-8")
    (place / "peers-bars.svg").write_text(peer_bars.drawn(figures), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000, help="a multiple of 100")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", nargs="*", choices=[make.name for make in MAKERS])
    parser.add_argument("--work", type=Path, help="where stores are made; by default a temporary directory")
    parser.add_argument("--into", type=Path, help="a directory for the figures and the bars")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of the other libraries
    chosen = [make for make in MAKERS if not options.engines or make.name in options.engines]
    with tempfile.TemporaryDirectory(prefix="elasticscan-peers-", dir=options.work) as place:
        table = compare(Path(place), options.rows, options.rounds, chosen)
    print("\n" + "\n".join(markdown(table.figures)))
    if options.into:
        write(options.into, options.rows, table.figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
