"""A log that was written once: its records must still fold to the same state.

If the fold changes, the same records give another state, so older checkpoints must not be used any more:
raise `FOLD_VERSION`. If the form of a record changes, raise the format of its kind, and keep the old form
readable. Before the first release, run `python -m tests.catalog.test_golden` instead, which writes the log
again.
"""

from __future__ import annotations

import json
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from elasticscan.catalog.entries import GENESIS, LogEntry, LogRow, check_chain, record_of
from elasticscan.catalog.fold import FOLD_VERSION, apply
from elasticscan.catalog.state import StoreState
from elasticscan.metadata import FORMATS
from tests.catalog.programs import World, picture

GOLDEN = Path(__file__).parent / "golden" / "log.json"
SEED, RECORDS = 5, 90


def digest_of(state: StoreState) -> str:
    """A digest of a complete state."""
    return sha256(picture(state)).hexdigest()


def plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def read() -> tuple[dict[str, Any], list[tuple[LogEntry, bytes]]]:
    golden: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    entries = []
    for number, time, columns, digest, value in golden["log"]:
        row = LogRow(bytes.fromhex(columns[0]), *columns[1:-1], bytes.fromhex(columns[-1]))
        entries.append((LogEntry(number, time, row, bytes.fromhex(digest)), bytes.fromhex(value)))
    return golden, entries


def test_the_records_of_a_log_give_the_state_that_they_gave_when_it_was_written() -> None:
    golden, entries = read()
    check_chain(GENESIS, [entry for entry, _ in entries])
    state = None
    for entry, value in entries:
        state = apply(state, entry, record_of(entry, value))
    assert state is not None
    assert golden["fold"] == FOLD_VERSION, "write the log's state down again, with the new version"
    assert digest_of(state) == golden["state"], "the fold has changed: it needs another FOLD_VERSION"


def test_the_log_that_was_written_once_has_records_of_each_kind() -> None:
    assert {entry.row.kind for entry, _ in read()[1]} == FORMATS.keys()


def main() -> None:
    """Write a log and the digest of its state to the golden file."""
    with tempfile.TemporaryDirectory() as directory:
        program = World(Path(directory) / "log.db", SEED)
        while len(program.history) < RECORDS or {e.row.kind for e, _ in program.history} != FORMATS.keys():
            program.live(program.newest + 1)
        program.close()
    rows = [
        [
            e.number,
            e.time,
            [plain(each) for each in e.row],
            plain(e.digest),
            plain(value),
        ]
        for (e, _), value in zip(program.history, program.values, strict=True)
    ]
    golden = {"fold": FOLD_VERSION, "state": digest_of(program.fold()), "log": rows}
    GOLDEN.parent.mkdir(exist_ok=True)
    text = (
        json.dumps(golden, indent=None, separators=(",", ":")).replace("[[", "[\n[").replace("],[", "],\n[")
    )
    GOLDEN.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
