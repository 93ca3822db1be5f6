"""How a store grows that is written in small pieces: figures at 10, 100, 1,000, 10,000 commits, and a plot.

python benchmarks/growth.py [--commits 10000] [--work DIR] [--figures FILE] [--plot docs/growth.svg]

Maintenance is automatic, and 256 open files are allowed. Each figure is a ratio to a store that was
loaded at once with the same number of rows, measured by turns, in processor time of all threads: wall time
would show who else uses the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from measure import processor_seconds
from plots import Points, plotted
from small_commits import (
    COMMIT_ROWS,
    LOADED,
    OPEN_FILES,
    POINT,
    bytes_of,
    loaded,
    open_files_limited,
    scanned,
    write_small,
)

from elasticscan.store import Store

POWERS = (10, 100, 1_000, 10_000)
SCANS = 30  # by turns
FIRST = 100  # commits that later ones are compared with


@dataclass(frozen=True, slots=True)
class Growth:
    """What a store costs after so many commits; times in milliseconds.

    Attributes:
        scan, point: a full scan and a lookup by an index, as ratios to a store that was loaded at once.
        commit_ms, commit_wall_ms: the mean of the last commits, with the upkeep after them.
        space: bytes on the disk, with what retention keeps, as a ratio to the store that was loaded at once.
        writes: bytes written for each byte committed.
    """

    commits: int
    scan_ms: float
    scan: float
    point_ms: float
    point: float
    commit_ms: float
    commit_wall_ms: float
    commit: float
    space: float
    writes: float
    slot_fragments: int
    fragments: int
    status_ms: float
    catalog_mb: float


def grown(work: Path, commits: int) -> Iterator[Growth]:
    """Write so many small commits, and measure at each power of ten."""
    if not commits:
        return
    with open_files_limited(OPEN_FILES), loaded(work / "small", LOADED) as store:
        cpu: list[float] = []
        wall: list[float] = []
        for number in range(commits):
            started = time.perf_counter()
            cpu.append(processor_seconds(lambda number=number: write_small(store, number)))  # type: ignore[misc]
            wall.append(time.perf_counter() - started)
            if number + 1 in POWERS or number + 1 == commits:
                yield _measured(work, store, cpu, wall)


def _measured(work: Path, store: Store, cpu: list[float], wall: list[float]) -> Growth:
    commits, last = len(cpu), max(10, len(cpu) // 10)
    place = work / f"at-once-{commits}"
    with loaded(place, store.table("t").scan().count()) as fresh:
        scans, points = (_by_turns(store, fresh, text) for text in (None, POINT))
        space = bytes_of(work / "small") / bytes_of(place)
    status_ms = min(processor_seconds(store.status) for _ in range(3)) * 1e3
    upkeep = store.status()["tables"][0]["upkeep"]
    commit = statistics.mean(cpu[-last:])
    return Growth(
        commits=commits,
        scan_ms=scans[0] * 1e3,
        scan=scans[0] / scans[1],
        point_ms=points[0] * 1e3,
        point=points[0] / points[1],
        commit_ms=commit * 1e3,
        commit_wall_ms=statistics.mean(wall[-last:]) * 1e3,
        commit=commit / statistics.mean(cpu[:FIRST]),
        space=space,
        writes=upkeep["amplification"]["writes"],
        slot_fragments=upkeep["slot_fragments"],
        fragments=store.status()["tables"][0]["fragments"],
        status_ms=status_ms,
        catalog_mb=sum(path.stat().st_size for path in (work / "small").glob("catalog.db*")) / 1e6,
    )


def _by_turns(small: Store, fresh: Store, text: str | None) -> tuple[float, float]:
    """Seconds of a scan of each, from its beginning: the median of the later ones of many."""
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(SCANS):
        for store, times in zip((small, fresh), took, strict=True):
            times.append(processor_seconds(lambda store=store: scanned(store, filter=text)))  # type: ignore[misc]
    first, second = (statistics.median(times[SCANS // 3 :]) for times in took)
    return first, second


LINES = {
    "scan": "full scan",
    "point": f"{POINT} by an index",
    "commit": "commit",
    "space": "space, with an hour's garbage",
    "writes": "bytes written / committed",
    "slot_fragments": "fragments of the worst slot",
}


def drawn(points: Points) -> str:
    caption = f"ratios after so many commits of {COMMIT_ROWS} rows, alongside {LOADED:,} rows"
    return plotted(points, "commits", LINES, caption, 10**-0.5, (0.5, 1, 2, 5, 10, 20, 50))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--commits", type=int, default=POWERS[-1])
    parser.add_argument("--work", type=Path, help="where stores are made; by default a temporary directory")
    parser.add_argument("--figures", type=Path, help="a file for the figures, a JSON a line")
    parser.add_argument("--plot", type=Path, help="an SVG of the figures; of such a file with --commits 0")
    options = parser.parse_args()
    figures: list[dict[str, float]] = []
    if not options.commits:
        figures = [json.loads(line) for line in options.figures.read_text(encoding="utf-8").splitlines()]
    with tempfile.TemporaryDirectory(prefix="elasticscan-growth-") as temporary:
        for point in grown(options.work or Path(temporary), options.commits):
            figures.append({name: round(value, 3) for name, value in asdict(point).items()})
            print(json.dumps(figures[-1]), flush=True)
            if options.figures:
                with options.figures.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(figures[-1]) + "\n")
    if options.plot:
        options.plot.write_text(drawn(figures), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
