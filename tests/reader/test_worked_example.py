"""The worked example of the Oracle NoSQL design for queries during elasticity, played by our rule.

The same entries, moves and limits as there; `docs/worked-example.md` walks through it and says what
was corrected. `worked_example.txt` alongside this file is the transcript, compared line by line. To
write it again on purpose, and then read the difference before it is committed:

    ELASTICSCAN_REWRITE_GOLDEN=1 python -m pytest tests/reader/test_worked_example.py
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.protocol import Cursor, Cursors, PageRequest, PageRows, slots_of
from elasticscan.reader import Accepted, ShardRead, accept_page, scan
from elasticscan.topology import Placement, SlotSet, initial_placement
from tests.reader.memory import INDEX, MemoryCluster
from tests.reader.simulation import SimulatedScan

GOLDEN = Path(__file__).with_name("worked_example.txt")
REWRITE = "ELASTICSCAN_REWRITE_GOLDEN"

Entry = tuple[int, int, int]  # (index key, primary key, partition), as the original writes it
Move = tuple[int, int]  # (partition, target shard)

ENTRIES: tuple[Entry, ...] = (
    # At S1, which has the partitions 1 to 6.
    *((23, 11, 1), (47, 12, 2), (55, 13, 2), (58, 14, 3), (60, 15, 6), (60, 16, 3)),
    *((62, 18, 2), (75, 19, 1), (75, 20, 5), (75, 21, 2), (80, 22, 4)),
    # At S2, which has the partitions 7 to 12.
    *((12, 40, 8), (15, 41, 7), (23, 42, 12), (23, 43, 8), (34, 44, 7), (47, 45, 10)),
    *((48, 46, 7), (66, 47, 9), (70, 48, 7), (70, 49, 8), (70, 50, 7), (80, 51, 11)),
)
PARTITION = {primary: partition for _, primary, partition in ENTRIES}
LOWER_BOUND = 15
WANTED = Counter(entry for entry in ENTRIES if entry[0] > LOWER_BOUND)
LARGEST = (1 << 63) - 1  # beyond every primary key
BEYOND_BOUND = INDEX.key(0, LARGEST, LOWER_BOUND)


class WatchedCluster(MemoryCluster):
    """The example's shards: they walk their index entry by entry, and moves come in between.

    A partition of the example is one slot and one tablet: P1 is slot 0 and tablet 1.

    Attributes:
        base: the placement at the start.
        happens: moves to come, by how many entries the current batch has read until then.
        lines: the transcript so far.
        requests: every request, in order.
        read: the entries of the last page, before anything was dropped.
    """

    def __init__(self) -> None:
        super().__init__(initial_placement(12, 12, [1, 2]), INDEX, slot_of=lambda key: PARTITION[key] - 1)
        self.write({primary: index for index, primary, _ in ENTRIES})
        self.base = self.current()
        self.happens: dict[int, Move] = {}
        self.lines: list[str] = []
        self.requests: list[PageRequest] = []
        self.read: list[Entry] = []
        self._read_in_batch = 0

    def begin_batch(self, happens: Mapping[int, Move]) -> None:
        self.happens, self._read_in_batch = dict(happens), 0

    def move(self, tablet_id: int, target: int) -> None:
        tablet = self.current().tablet(tablet_id)
        assert tablet is not None
        self.lines.append(f"    move  P{tablet_id} from S{tablet.shard} to S{target}")
        super().move(tablet_id, target)

    def read_page(self, request: PageRequest) -> PageRows:
        """Pages of one row, put together: each entry is what the shard has at that moment."""
        self.requests.append(request)
        self.lines.append(f"  ask S{request.shard} for {_rows(request.page_rows)}")
        self.lines += [f"    {line}" for line in _asked(request, self.base)]
        self.read, after = [], request.cursors
        pages: list[PageRows] = []
        while after and len(self.read) < request.page_rows:
            if self._read_in_batch in self.happens:
                self.move(*self.happens.pop(self._read_in_batch))
            page = super().read_page(replace(request, cursors=after, page_rows=1))
            pages.append(page)
            found, after = entries_of(page.rows), page.after
            self._tell("read", found)
            self.read += found
            self._read_in_batch += len(found)
        rows = pa.concat_batches([page.rows for page in pages])
        return PageRows(rows, pa.concat_arrays([page.slots for page in pages]), after)

    def _tell(self, what: str, entries: Iterable[Entry]) -> None:
        """Entries on one line with those before them, if nothing came in between."""
        start = f"    {what:<5} "
        for entry in entries:
            if self.lines[-1].startswith(start):
                self.lines[-1] += f" {entry}"
            else:
                self.lines.append(f"{start}{entry}")

    def second_look(self, placement: Placement, left: list[Entry]) -> None:
        """What the scan did after the page, reported from outside: `placement` is what it asked by."""
        moved = self.current().changed_since(placement, slots_of(self.requests[-1].cursors))
        if moved:
            self.lines.append(f"    look  {partitions(moved)} left while it was read and keeps its position")
            self._tell("drop", [entry for entry in self.read if entry not in left])
            self._tell("keep", left)


class Example:
    """A scan for index keys above 15, in batches: what a driver gets for one continuation key.

    A batch is filled by as many pages, at as many shards, as its limit allows. Between batches
    nothing is kept but the sealed key.
    """

    def __init__(self) -> None:
        self.cluster = WatchedCluster()
        wanted = {primary: index for index, primary, _ in WANTED}
        self._scan = SimulatedScan.of(self.cluster, wanted, page_rows=1)
        self._scan.cursors = (Cursor(self._scan.plan.slots, BEYOND_BOUND),)
        self._key = self._scan.key
        self.batches: list[list[Entry]] = []
        self.dropped: list[Entry] = []

    @property
    def got(self) -> list[Entry]:
        return [entry for batch in self.batches for entry in batch]

    def batch(self, limit: int, title: str, happens: Mapping[int, Move] | None = None) -> None:
        """One batch; `happens` says which move comes after how many entries of it."""
        cluster, batch = self.cluster, list[Entry]()
        cluster.lines += ["", f"{title}: at most {_rows(limit)}"]
        cluster.begin_batch(happens or {})
        resumed = self._scan.resumed(self._key, len(self.got))
        assert resumed.cursors == self._scan.cursors, "a sealed key opens as what it was"
        if not self.batches:
            cluster.lines += _key_lines("start", resumed.cursors)
        while resumed.cursors and len(batch) < limit:
            before, returned = cluster.current(), len(resumed.got)
            resumed.plan, resumed.pages = replace(resumed.plan, page_rows=limit - len(batch)), None
            resumed.step()
            left = [(index, primary, PARTITION[primary]) for primary, index in resumed.got[returned:]]
            cluster.second_look(before, left)
            self.dropped += [entry for entry in cluster.read if entry not in left]
            batch += left
        assert not cluster.happens, "a move was planned for an entry that the batch did not reach"
        cluster.lines.append(f"  return {_rows(len(batch))}")
        cluster.lines += _key_lines("key", resumed.cursors)
        self._scan, self._key = resumed, resumed.key
        self.batches.append(batch)

    def between(self, *moves: Move) -> None:
        self.cluster.lines += ["", "Between the batches"]
        for move in moves:
            self.cluster.move(*move)

    @property
    def done(self) -> bool:
        return not self._scan.cursors

    def check(self) -> None:
        assert self.done
        got = Counter(self.got)
        assert got == WANTED, f"lost {WANTED - got}, too many {got - WANTED}"

    def transcript(self) -> list[str]:
        return [*_tables(self.cluster.base), *self.cluster.lines]


# ------------------------------------------------------------------------------- how it is written


def entries_of(rows: pa.RecordBatch) -> list[Entry]:
    return [(row["value"], row["key"], PARTITION[row["key"]]) for row in rows.to_pylist()]


def partitions(slots: SlotSet) -> str:
    """Slots as the partitions of the original: slot 0 is P1."""
    runs = (range(start + 1, end + 1) for start, end in slots)
    return ", ".join(f"P{run[0]}..P{run[-1]}" if len(run) > 1 else f"P{run[0]}" for run in runs)


def position(order: bytes | None) -> str:
    """An order key of the index as (index key, primary key)."""
    assert order is not None
    value, key = (int.from_bytes(part, "big") - (1 << 63) for part in (order[1:9], order[10:]))
    return f"({value}, {'+inf' if key == LARGEST else key})"


def _cursors(cursors: Cursors, slots: SlotSet) -> list[str]:
    return [
        f"{partitions(cursor.slots & slots)} > {position(cursor.position)}"
        for cursor in cursors
        if cursor.slots & slots
    ]


def _asked(request: PageRequest, base: Placement) -> list[str]:
    """One pass over a shard: what it reads as a base shard, and what has come to it since."""
    home = base.at(request.shard)
    lines = [f"base-shard scan of {text}" for text in _cursors(request.cursors, home)]
    return lines + [
        f"virtual scan of {text}" for text in _cursors(request.cursors, slots_of(request.cursors) - home)
    ]


def _key_lines(word: str, cursors: Cursors) -> list[str]:
    texts = _cursors(cursors, SlotSet.span(0, 12)) or ["none: the scan is complete"]
    words = [word] + [""] * (len(texts) - 1)
    return [f"  {word:<5} {text}" for word, text in zip(words, texts, strict=True)]


def _rows(count: int) -> str:
    return f"{count} row" if count == 1 else f"{count} rows"


def _tables(base: Placement) -> list[str]:
    return [f"S{shard} has {partitions(base.at(shard))}" for shard in base.shards] + ["S3 has nothing yet"]


# -------------------------------------------------------------------------------------- the batches


def the_example() -> Example:
    """The original's batches; where it repeats its first one, ours goes on instead."""
    play = Example()
    play.batch(4, "Batch 1 (the original's batches 1 and 2)", {2: (2, 3)})
    play.between((3, 3))
    play.batch(5, "Batch 2 (the original's batch 3)")
    play.between((7, 3))
    play.batch(7, "Batch 3 (the original's batch 4)", {4: (8, 3)})
    play.batch(5, "Batch 4 (the original's batches 5 and 6)")
    return play


def returns_and_swaps() -> Example:
    """What the original ends with an error: P8 is out and back, P2 and P9 change places."""
    play = Example()
    play.batch(5, "Batch 1")
    play.between((8, 3), (2, 2), (9, 1))
    play.batch(5, "Batch 2")
    play.batch(5, "Batch 3", {2: (8, 2)})
    play.batch(6, "Batch 4")
    return play


def transcript() -> str:
    parts = [
        "Index entries are written (index key, primary key, partition).",
        "The query asks for index keys > 15: every partition starts beyond (15, +inf).",
        "",
        "",
        "=== The worked example",
        "",
        *the_example().transcript(),
        "",
        "",
        "=== A partition that returns, and two base shards that swap",
        "",
        *returns_and_swaps().transcript(),
    ]
    return "\n".join(parts) + "\n"


def test_the_transcript_is_the_golden_one() -> None:
    now = transcript()
    if os.environ.get(REWRITE):
        GOLDEN.write_text(now, encoding="utf-8")
        pytest.skip(f"{GOLDEN.name} was written again; read what changed")
    assert now == GOLDEN.read_text(encoding="utf-8"), f"if this is meant: {REWRITE}=1, and read what changed"


def test_the_example_returns_each_entry_above_the_bound_once() -> None:
    play = the_example()
    play.check()
    assert len(play.got) == 21
    assert min(index for index, _, _ in play.got) == 23, "12 and 15 are not above 15"


def test_each_batch_has_as_many_rows_as_the_original_says_once_it_counts_right() -> None:
    """4, 5, 6 + 1 and 3 + 2; its last batch, of two rows, is what its 12 and 15 had pushed back."""
    assert [len(batch) for batch in the_example().batches] == [4, 5, 7, 5]


def test_only_the_row_of_the_partition_that_left_is_dropped() -> None:
    """The original throws its first batch away."""
    play = the_example()
    assert play.dropped == [(47, 12, 2)]
    assert play.batches[0] == [(23, 11, 1), (58, 14, 3), (60, 15, 6), (60, 16, 3)]


def test_without_the_second_look_the_row_that_the_original_fears_for_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P2's position would be (60, 15), beyond an entry of P2 that no page has read."""

    def trusting(cursors: Cursors, read: ShardRead, after: Cursors, _: Placement) -> Accepted:
        return accept_page(cursors, read, after, read.placement)

    monkeypatch.setattr(scan, "accept_page", trusting)
    assert WANTED - Counter(the_example().got) == Counter([(55, 13, 2)])


def test_the_new_shard_is_read_in_one_pass_over_three_partitions() -> None:
    """The original makes three virtual scans, one after another."""
    requests = the_example().cluster.requests
    assert [request.shard for request in requests] == [1, 1, 1, 2, 2, 3, 3]
    first = next(request for request in requests if request.shard == 3)
    assert [(partitions(c.slots), position(c.position)) for c in first.cursors] == [
        ("P2", "(15, +inf)"),
        ("P7", "(23, 43)"),
        ("P3", "(60, 16)"),
    ]


def test_a_partition_that_returns_and_shards_that_swap_are_no_error() -> None:
    play = returns_and_swaps()
    play.check()
    assert play.dropped == []
    assert [len(batch) for batch in play.batches] == [5, 5, 5, 6]


@pytest.mark.parametrize("moment", range(5))
@pytest.mark.parametrize("partition", [1, 2, 3, 6])
def test_whenever_a_partition_leaves_the_first_batch_the_answer_is_the_same(
    partition: int, moment: int
) -> None:
    play = Example()
    play.batch(5, "with a move", {moment: (partition, 3)})
    play.batch(100, "the rest")
    play.check()
