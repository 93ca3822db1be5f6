"""The worked example of the Oracle NoSQL design for queries during elasticity, played by our rule.

The same entries, moves and limits as there; `docs/worked-example.md` walks through it and says what
was corrected. `worked_example.txt` alongside this file is the transcript, compared line by line. To
write it again on purpose, and then read the difference before it is committed:

    ELASTICSCAN_REWRITE_GOLDEN=1 python -m pytest tests/reader/test_worked_example.py
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from elasticscan.protocol import Cursor, Cursors, PageRequest, slots_of
from elasticscan.reader import accept_page, plan_read
from elasticscan.topology import SlotSet, initial_placement
from tests.reader.memory import INDEX, MemoryCluster
from tests.reader.simulation import COLUMNS, SimulatedScan

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


# Title, limit, moves before it, and moves within it by how many entries it has read until then.
Batch = tuple[str, int, Sequence[Move], dict[int, Move]]


def play(*batches: Batch) -> list[str]:
    """A scan for index keys above 15, in batches: what a driver gets for one continuation key.

    A batch is filled by as many pages, at as many shards, as its limit allows. The shards walk their index
    entry by entry, and moves come in between. A partition is one slot and one tablet: P1 is slot 0.
    """
    cluster = MemoryCluster(initial_placement(12, 12, [1, 2]), INDEX, slot_of=lambda key: PARTITION[key] - 1)
    cluster.write({primary: index for index, primary, _ in ENTRIES})
    base, got, lines = cluster.current(), Counter[Entry](), list[str]()
    scan = SimulatedScan.of(cluster, {primary: index for index, primary, _ in WANTED}, page_rows=1)
    scan.cursors = (Cursor(scan.plan.slots, BEYOND_BOUND),)

    def move(partition: int, target: int) -> None:
        source = cluster.current().tablet_of(partition - 1).shard
        lines.append(f"    move  P{partition} from S{source} to S{target}")
        cluster.move(partition, target)

    def tell(what: str, entries: Sequence[Entry]) -> None:
        """Entries on one line with those before them, if nothing came in between."""
        start = f"    {what:<5}"
        if entries and not lines[-1].startswith(start):
            lines.append(start)
        lines[-1] += "".join(f" {entry}" for entry in entries)

    for title, limit, before, within in batches:
        lines += ["", "Between the batches"] if before else []
        for each in before:
            move(*each)
        lines += ["", f"{title}: at most {rows(limit)}"]
        lines += [] if got else key_lines("start", scan.cursors)
        scan, returned, number = scan.resumed(scan.key, 0), 0, 0  # nothing is kept but the sealed key
        while scan.cursors and returned < limit:
            read = plan_read(scan.cursors, cluster.current())
            assert read is not None
            home, after, found = base.at(read.shard), read.cursors, list[Entry]()
            lines.append(f"  ask S{read.shard} for {rows(limit - returned)}")
            lines += [f"    base-shard scan of {text}" for text in positions(read.cursors, home)]
            lines += [f"    virtual scan of {text}" for text in positions(read.cursors, read.slots - home)]
            while after and returned + len(found) < limit:  # each entry is what the shard has at that moment
                if number in within:
                    move(*within.pop(number))
                request = PageRequest(1, read.shard, after, cluster.last_commit, COLUMNS, 1, 1 << 20)
                page = cluster.read_page(request)
                entries = [(row["value"], row["key"], PARTITION[row["key"]]) for row in page.rows.to_pylist()]
                tell("read", entries)
                found, after, number = found + entries, page.after, number + len(entries)
            accepted = accept_page(scan.cursors, read, after, cluster.current())
            left = [entry for entry in found if entry[2] - 1 not in accepted.moved]
            if accepted.moved:
                moved = partitions(accepted.moved)
                lines.append(f"    look  {moved} left while it was read and keeps its position")
                tell("drop", [entry for entry in found if entry not in left])
                tell("keep", left)
            scan.cursors, returned = accepted.cursors, returned + len(left)
            got.update(left)
        assert not within, "a move was planned for an entry that the batch did not reach"
        lines += [f"  return {rows(returned)}", *key_lines("key", scan.cursors)]
    assert not scan.cursors
    assert got == WANTED
    return [
        *(f"S{shard} has {partitions(base.at(shard))}" for shard in base.shards),
        "S3 has nothing yet",
        *lines,
    ]


def partitions(slots: SlotSet) -> str:
    """Slots as the partitions of the original: slot 0 is P1."""
    runs = ((start + 1, end) for start, end in slots)
    return ", ".join(f"P{first}..P{last}" if first < last else f"P{first}" for first, last in runs)


def positions(cursors: Cursors, slots: SlotSet) -> list[str]:
    """Cursors with their order keys as (index key, primary key)."""
    texts = []
    for here, order in ((cursor.slots & slots, cursor.position or b"") for cursor in cursors):
        value, key = (int.from_bytes(part, "big") - (1 << 63) for part in (order[1:9], order[10:]))
        texts += [f"{partitions(here)} > ({value}, {'+inf' if key == LARGEST else key})"] if here else []
    return texts


def key_lines(word: str, cursors: Cursors) -> list[str]:
    texts = positions(cursors, slots_of(cursors)) or ["none: the scan is complete"]
    return [f"  {'' if number else word:<5} {text}" for number, text in enumerate(texts)]


def rows(count: int) -> str:
    return f"{count} row" if count == 1 else f"{count} rows"


def transcript() -> str:
    the_example = play(  # where the original repeats its first batch, ours goes on instead
        ("Batch 1 (the original's batches 1 and 2)", 4, [], {2: (2, 3)}),
        ("Batch 2 (the original's batch 3)", 5, [(3, 3)], {}),
        ("Batch 3 (the original's batch 4)", 7, [(7, 3)], {4: (8, 3)}),
        ("Batch 4 (the original's batches 5 and 6)", 5, [], {}),
    )
    returns_and_swaps = (
        play(  # which the original ends with an error: P8 is out and back, P2 and P9 change places
            ("Batch 1", 5, [], {}),
            ("Batch 2", 5, [(8, 3), (2, 2), (9, 1)], {}),
            ("Batch 3", 5, [], {2: (8, 2)}),
            ("Batch 4", 6, [], {}),
        )
    )
    head = [
        "Index entries are written (index key, primary key, partition).",
        "The query asks for index keys > 15: every partition starts beyond (15, +inf).",
    ]
    parts = [*head, "", "", "=== The worked example", "", *the_example, "", ""]
    parts += ["=== A partition that returns, and two base shards that swap", "", *returns_and_swaps]
    return "\n".join(parts) + "\n"


def test_the_transcript_is_the_golden_one() -> None:
    now = transcript()
    if os.environ.get(REWRITE):
        GOLDEN.write_text(now, encoding="utf-8")
        pytest.skip(f"{GOLDEN.name} was written again; read what changed")
    assert now == GOLDEN.read_text(encoding="utf-8"), f"if this is meant: {REWRITE}=1, and read what changed"
