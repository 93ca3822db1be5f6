"""Tables uncompressed, in LZ4 and in zstd: bytes, loads, scans, look-ups, and what Spark feels of it.

python benchmarks/compressed.py [--only python,spark] [--rows 2000000] [--rounds 5] [--markdown FILE]

Three tables: the flights of `make demo` (again and again, under keys of their own), random rows (`data.py`),
and strings of few values. Everything goes by turns. Processor time is of all threads and, for Spark, of all
its processes; it is what to compare where others use the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from data import SCHEMA, random_batches
from run import start_spark

from elasticscan.store import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

FORMS = (None, "lz4", "zstd")
KEYS_AT_ONCE = 1_000


@dataclass(frozen=True)
class Rows:
    """A table to measure: its rows, its key, a column to scan alone, one to look up by, with some value."""

    rows: pa.Table
    key: list[str]
    column: str
    indexed: str
    value: str


def flights(rows: int) -> Rows:
    import demo  # noqa: PLC0415 - the tour of the project, an example and no module

    once = demo.flights()
    times = max(1, rows // once.num_rows)
    copies = pa.array(np.repeat(np.arange(times), once.num_rows))
    table = pa.concat_tables([once] * times).append_column("copy", copies)
    return Rows(table, [*demo.KEY, "copy"], "dep_delay", "dep_delay", "300")


def random_rows(rows: int) -> Rows:
    return Rows(pa.Table.from_batches(list(random_batches(rows)), SCHEMA), ["id"], "v", "k", "549755813888")


def few_values(rows: int) -> Rows:
    chance = np.random.default_rng(1)
    columns: dict[str, Any] = {"id": np.arange(rows)}
    for number, values in enumerate((2, 5, 20, 100, 1_000)):
        words = pa.array([f"{'value of some kind'[: 4 + 3 * number]} {value}" for value in range(values)])
        columns[f"s{values}"] = words.take(pa.array(chance.integers(0, values, rows)))
    columns["n"] = chance.integers(0, 1 << 30, rows)
    return Rows(pa.table(columns), ["id"], "s20", "n", "536870912")


TABLES: dict[str, Callable[[int], Rows]] = {
    "flights": flights,
    "random": random_rows,
    "few values": few_values,
}


@dataclass
class Figures:
    """Seconds of the processor and on the wall, by table, work and form; the median of all turns."""

    taken: dict[tuple[str, str, str | None], list[tuple[float, float]]] = field(default_factory=dict)
    bytes: dict[tuple[str, str | None], int] = field(default_factory=dict)

    def time(
        self, table: str, work: str, form: str | None, do: Callable[[], object], clock: Callable[[], float]
    ) -> None:
        before, began = clock(), time.perf_counter()
        do()
        wall, processor = time.perf_counter() - began, clock() - before
        self.taken.setdefault((table, work, form), []).append((processor, wall))

    def lines(self) -> Iterator[str]:
        yield "| table | | " + " | ".join(form or "uncompressed" for form in FORMS) + " |"
        yield "|---|---|" + "---|" * len(FORMS)
        for table in dict.fromkeys(name for name, *_ in [*self.taken, *self.bytes]):
            sizes = [self.bytes.get((table, form)) for form in FORMS]
            if all(sizes):
                yield f"| {table} | MB | " + " | ".join(f"{(size or 0) / 1e6:.1f}" for size in sizes) + " |"
            for work in dict.fromkeys(work for name, work, _ in self.taken if name == table):
                cells = [self._cell(table, work, form) for form in FORMS]
                yield f"| {table} | {work} | " + " | ".join(cells) + " |"

    def _cell(self, table: str, work: str, form: str | None) -> str:
        processor, wall = (statistics.median(one) for one in zip(*self.taken[table, work, form], strict=True))
        base = statistics.median(one for one, _ in self.taken[table, work, None])
        return f"{_shown(processor)} ({_shown(wall)}) ×{processor / base:.2f}"


def _shown(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def read_all(store: Store, columns: list[str] | None = None) -> None:
    for page in store.table("t").scan(columns):
        pc.count(page.rows.column(0))


def of_new(place: Path, work: Callable[[Store], object]) -> None:
    """Work with a store that was just opened, which has read nothing yet."""
    with Store.open(place, upkeep="off") as store:
        work(store)


def bench_python(
    figures: Figures, name: str, made: Rows, places: dict[str | None, Path], rounds: int
) -> None:
    chance = np.random.default_rng(7)
    numbers = chance.integers(0, made.rows.num_rows, (rounds + 1, KEYS_AT_ONCE))
    keys = [made.rows.select(made.key).take(pa.array(some)) for some in numbers]
    where = f"{made.indexed} = {made.value}"
    opened = {form: Store.open(place, upkeep="off") for form, place in places.items()}
    for turn in range(rounds + 1):
        for form, place in places.items():
            one, table = keys[turn].slice(0, 1), opened[form].table("t")
            cold = partial(of_new, place)
            works: dict[str, Callable[[], object]] = {
                "first scan": lambda cold=cold: cold(read_all),
                "first scan of a column": lambda cold=cold: cold(lambda s: read_all(s, [made.column])),
                "later scan": lambda form=form: read_all(opened[form]),
                "first key": lambda cold=cold, one=one: cold(lambda s: s.table("t").get(one)),
                "first 1,000 keys": lambda cold=cold, t=turn: cold(lambda s: s.table("t").get(keys[t])),
                "later key": lambda table=table, one=one: table.get(one),
                "first lookup by index": lambda cold=cold: cold(
                    lambda s: s.table("t").scan(filter=where, index="i").count()
                ),
            }
            for work, do in works.items():
                if turn:
                    figures.time(name, work, form, do, time.process_time)
                else:
                    do()
    for store in opened.values():
        store.close()


def tree_seconds() -> float:
    """Processor time of this process and of all below it: the JVM, and Spark's Python workers."""
    parents, times = dict[int, int](), dict[int, int]()
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                fields = (place / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            parents[int(place.name)] = int(fields[1])
            times[int(place.name)] = sum(map(int, fields[11:15]))
    own = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(times[process] for process in own if process in times) / os.sysconf("SC_CLK_TCK")


def bench_spark(
    figures: Figures, spark: Any, name: str, made: Rows, places: dict[str | None, Path], rounds: int
) -> None:
    def scan(place: Path, **options: str) -> None:
        reader = spark.read.format("elasticscan").options(store=str(place), table="t", **options)
        reader.load().write.format("noop").mode("overwrite").save()

    for turn in range(rounds + 2):
        for form, place in places.items():
            works = {
                "Spark": partial(scan, place),
                "Spark, a column": partial(scan, place, columns=made.column),
            }
            for work, do in works.items():
                if turn > 1:
                    figures.time(name, work, form, do, tree_seconds)
                else:
                    do()


def load(place: Path, made: Rows, form: str | None) -> None:
    with Store.create(place, ["s1", "s2"]) as store:
        store.create_table("t", made.rows.schema, made.key, compression=form)
        store.table("t").upsert(made.rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="python,spark")
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    figures, only = Figures(), options.only.split(",")
    with tempfile.TemporaryDirectory(prefix="elasticscan-bench-") as temporary:
        spark = start_spark(Path(temporary)) if "spark" in only else None
        for name in options.tables.split(","):
            made = TABLES[name](options.rows)
            places = {form: Path(temporary) / f"{name} {form}" for form in FORMS}
            for form, place in places.items():
                figures.time(name, "load", form, partial(load, place, made, form), time.process_time)
                figures.bytes[name, form] = sum(f.stat().st_size for f in place.rglob("*.arrow"))
                if "python" in only:
                    with Store.open(place) as store:
                        store.table("t").create_index("i", [made.indexed])
            if "python" in only:
                bench_python(figures, name, made, places, options.rounds)
            if spark is not None:
                bench_spark(figures, spark, name, made, places, options.rounds)
            print(*figures.lines(), sep="\n", flush=True)
        if spark is not None:
            spark.stop()
    if options.markdown:
        options.markdown.write_text("\n".join(figures.lines()) + "\n")


if __name__ == "__main__":
    main()
