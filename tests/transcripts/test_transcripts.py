"""Transcripts: stories of a store that can be read without any code.

Below each line `> command` stands its answer. A command `x` is `do_x` of `Story`, else a method of `Store`
(`split 1`), else one of `Table` (`upsert t 7=a if_unchanged_since=3`), with the options of the Python API. A
row is written `7=a`: its key, and its other columns with commas between them. `other COMMAND` is done by
another process, which has caches of its own. `at POINT: COMMAND` is done in the middle of a later command,
when that comes to this point; what happens there is indented. `repeat N COMMAND` answers as the last one did.
Time stands still but for `advance 10m`.

After a change that is meant, `TRANSCRIPTS=write pytest tests/transcripts` writes the answers again.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base import limits
from elasticscan.base.clock import seconds_of
from elasticscan.base.errors import ElasticScanError
from elasticscan.base.hashing import slots_of
from elasticscan.catalog import Commit, Tag
from elasticscan.metadata import IndexInfo, StagedFragment
from elasticscan.store import Scan, Store, Table
from elasticscan.store.moves.balancing import Balance
from elasticscan.store.moves.mover import Mover
from elasticscan.store.moves.owners import enter_moves, machine, new_owner
from elasticscan.store.upkeep.collector import collect_dropped
from elasticscan.store.upkeep.compaction import flush
from elasticscan.store.upkeep.executor import keep
from elasticscan.store.upkeep.planning import Policy
from elasticscan.store.writing.publishing import CommitNumber, publish, stage
from elasticscan.topology import Move, Topology
from tests.base.manual_clock import ManualClock
from tests.simulation.elasticity import MoverStoppedError
from tests.simulation.world import DEAD_OWNER, START

PLACE = Path(__file__).parent
STORIES = sorted(path.stem for path in PLACE.glob("*.txt"))
TAKE_ROWS_OR_KEYS = ("upsert", "insert", "overwrite", "delete", "merge", "update", "get")
KEPT = Policy(balance=Balance(bytes=1))  # as by default, but a few rows make shards uneven
_VARIES = re.compile(r"[\d,]+ s old")  # by the clock of the disk


class Story:
    """A store as two processes have it, and all that got a name: scans, keys, staged rows."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.place, self.patch, self.clock, self.upkeep = place, patch, ManualClock(START), "off"
        self.stores: list[Store] = []
        self.who = 0  # does the command at hand
        self.hooks: list[tuple[str, str]] = []
        self.said: list[str] = []
        self.scans = dict[str, tuple[Scan, list[str]]]()  # each with the rows that it has given
        self.keys = dict[str, tuple[str, list[str]]]()
        self.tasks = dict[str, tuple[Table, list[StagedFragment]]]()

    @property
    def store(self) -> Store:
        return self.stores[self.who]

    def answer(self, line: str) -> str:
        """Carry out a command; return what it answers, after what happened in its middle."""
        self.said = []
        answer = self.do(line)
        return "\n".join(filter(None, [*self.said, answer]))

    def do(self, line: str) -> str:
        if line.startswith("at "):
            point, _, command = line[3:].partition(": ")
            self.hooks.append((point, command))
            return ""
        if line.startswith("repeat "):
            _, times, line = line.split(" ", 2)
            return [self.do(line) for _ in range(int(times))][-1]
        words, before = shlex.split(line), self.who
        self.who = before or int(words[0] == "other")
        name, *words = words[words[0] == "other" :]
        pairs = (word.partition("=") for word in words)
        options = {key: _value(key, value) for key, _, value in pairs if key.isidentifier() and value}
        words = [word for word in words if word.partition("=")[0] not in options]
        try:
            return self.shown(self.call(name, words, options))
        except ElasticScanError as error:
            fields = [f"{key}={value}" for key, value in error.fields.items() if key in _FIELDS]
            return " ".join([type(error).__name__, *fields])
        except MoverStoppedError:
            return "stopped"
        finally:
            self.who = before

    def call(self, name: str, words: list[str], options: dict[str, Any]) -> Any:
        if hasattr(self, f"do_{name}"):
            return getattr(self, f"do_{name}")(*words, **options)
        if hasattr(Store, name):
            return getattr(self.store, name)(*map(_number, words), **options)
        table = self.store.table(words.pop(0))
        if name not in TAKE_ROWS_OR_KEYS:
            return getattr(table, name)(*map(_number, words), **options)
        if name == "update" or (name == "delete" and not words):
            return getattr(table, name)(**options)
        given = [int(word) for word in words] if name in ("get", "delete") else rows_of(table.schema, words)
        return getattr(table, name)(given, **options)

    def point(self, name: str) -> None:
        """Do what was to be done at a point of the command that is under way."""
        commands = [command for point, command in self.hooks if point == name]
        self.hooks = [hook for hook in self.hooks if hook[0] != name]
        for command in commands:
            self.said.append(f"  at {name}: {command}")
            if command in ("fail", "die", "die elsewhere"):
                raise MoverStoppedError
            self.said += [f"    {line}" for line in self.do(command).splitlines()]

    def shown(self, value: Any) -> str:
        match value:
            case CommitNumber():
                return f"commit {value}, {value.rows} rows"
            case Topology():
                return self.do_placement()
            case Tag():
                return f"{value.name}: snapshot {value.snapshot}"
            case Commit():
                return f"{value.number} {value.kind}, {value.rows} rows"
            case IndexInfo():
                return f"{value.name} on {', '.join(value.columns)}"
            case pa.Schema():
                return " ".join(f"{field.name}:{field.type}" for field in value)
            case pa.Table():
                return " ".join(_texts(value)) or "no rows"
            case tuple() | list():
                return "\n".join(map(self.shown, value)) or "none"
        return "" if value is None else str(value)

    # Stores, tables and time

    def do_create(
        self, *in_files: str, tablets: int = 4, slots: int = 16, retention: str = "0s", upkeep: str = "off"
    ) -> str:
        """Make a store; of `create in files` small commits do not lie in the log."""
        self.upkeep = upkeep
        if in_files:
            self.patch.setattr(limits, "INLINE_BYTES", 0)
        place, kept = self.place / "a.store", seconds_of("retention", retention)
        Store.create(place, ["s1", "s2"], tablets, slots, retention_seconds=kept, clock=self.clock).close()
        return self.do_open(place)

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def do_open(self, place: Path | None = None) -> str:
        """Let other processes go on with the store."""
        self.close()
        place = place or self.place / "a.store"
        self.stores = [Store.open(place, self.clock, upkeep=self.upkeep) for _ in range(2)]
        for store in self.stores:
            store.context.sync_point = self.point
        return self.do_placement()

    def do_from_backup(self, name: str) -> str:
        Store.from_backup(self.place / name, self.place / f"of {name}", clock=self.clock).close()
        return self.do_open(self.place / f"of {name}")

    def do_backup(self, name: str) -> str:
        return f"snapshot {self.store.backup(self.place / name).snapshot}"

    def do_adopt(self) -> str:
        known, lost = self.store.adopt().commits
        return f"commits {known} to {lost}"

    def do_table(self, name: str, *columns: str) -> None:
        fields = (column.split(":") for column in columns or ["v:string"])
        schema = [("id", pa.int64()), *((field, pa.type_for_alias(kind)) for field, kind in fields)]
        self.store.create_table(name, pa.schema(schema), ["id"])

    def do_add_columns(self, table: str, *columns: str) -> pa.Schema:
        return self.store.table(table).add_columns(dict(column.split(":") for column in columns))

    def do_advance(self, period: str) -> None:
        self.clock.advance(seconds_of("period", period))

    # Rows

    def do_stage(self, name: str, table: str, *rows: str) -> None:
        """Stage rows as a task of Spark does, for `publish`; or for no one, if its driver dies."""
        given = self.store.table(table)
        self.tasks[name] = (
            given,
            stage(self.store.context, given.definition, rows_of(given.schema, rows).to_batches()),
        )

    def do_publish(self, name: str) -> CommitNumber:
        table, staged = self.tasks.pop(name)
        return publish(self.store.context, table.definition, staged)

    def do_scan(self, table: str, *name: str, **options: Any) -> str:
        """Read all rows, and show them sorted; or give a scan a name, to be read by `page` and `rest`."""
        scan = self.store.table(table).scan(**options)
        return self._begin(scan, *name) if name else _sorted(_texts(scan.to_table()))

    def do_changes(self, table: str, *name: str, **options: Any) -> str:
        scan = self.store.table(table).changes(**options)
        return self._begin(scan, *name) if name else "\n".join(_feed(scan.to_table())) or "no changes"

    def _begin(self, scan: Scan, name: str, read: Iterable[str] = ()) -> str:
        self.scans[name] = scan, [*read]
        return f"at snapshot {scan.snapshot}"

    def do_page(self, name: str) -> str:
        """Read a page, in the order in which scans read: slot by slot."""
        scan, read = self.scans[name]
        rows = _texts(pa.Table.from_batches([next(scan).rows]))
        read += rows
        return " ".join(rows or ["no rows"]) + " (the last page)" * (scan.key is None)

    def do_rest(self, name: str) -> str:
        """Read all other pages, and show all rows of the scan: one that came twice would be there twice."""
        scan, read = self.scans.pop(name)
        read += _texts(scan.to_table())
        stats = scan.stats
        pages = f"{stats.pages} pages, {stats.virtual_reads} from where slots had moved to"
        moved = f"; slots that moved below a page {stats.moved_slots}, rows dropped {stats.dropped_rows}"
        return f"in all {_sorted(read)}\n{pages}{moved * (stats.moved_slots > 0)}"

    def do_cursors(self, name: str) -> list[str]:
        """Show which tablets a scan through an index of integers has left, and behind which entry of each."""
        key, tablets = self.scans[name][0].key, self.store.context.placement().tablets
        found = []
        for cursor in () if key is None else self.store.context.sealer.open(key).cursors:
            here = " ".join(str(tablet.id) for tablet in tablets if tablet.slots <= cursor.slots)
            parts = cursor.position and (cursor.position[1:9], cursor.position[10:])
            value, row = (int.from_bytes(part, "big") - (1 << 63) for part in parts or (b"", b""))
            found.append(f"tablets {here}: {f'behind {row}={value}' if parts else 'from the start'}")
        return found

    def do_seal(self, name: str, key: str) -> None:
        """Keep the key of where a scan stands; the scan may go on."""
        scan, read = self.scans[name]
        assert scan.key is not None
        self.keys[key] = scan.key, [*read]

    def do_resume(self, key: str, name: str) -> str:
        return self._begin(self.store.resume(self.keys[key][0]), name, self.keys[key][1])

    # Tablets

    def do_placement(self) -> str:
        """Show the topology that scans begin with, and which tablets each shard has now."""
        status = self.store.status()
        at = {shard["name"]: [t for t in status["tablets"] if t["shard"] == shard["name"]]
              for shard in status["shards"]}  # fmt: skip
        shown = (f"{name} has {' '.join(str(t['id']) for t in own) or 'none'}" for name, own in at.items())
        return f"topology {status['topology']}: {', '.join(shown)}"

    def do_where(self, table: str) -> list[str]:
        """Show which rows are in which tablet."""
        rows, status = self.store.table(table).to_arrow().sort_by("id"), self.store.status()
        at = list(zip(_texts(rows), slots_of([rows["id"]], status["slots"]).tolist(), strict=True))
        own = [(t, [text for text, slot in at if slot in range(*t["slots"])]) for t in status["tablets"]]
        return [f"tablet {t['id']} at {t['shard']}: {' '.join(here) or 'no rows'}" for t, here in own]

    def do_expand(self, *shards: str) -> Topology:
        return self.store.expand(shards)

    def do_move(self, tablet: str, target: str) -> Topology | str:
        """Move a tablet. Where something is to happen `at` a point, the mover alone: nothing is published."""
        if not self.hooks:
            return self.store.move(int(tablet), target)
        context, fates = self.store.context, {command for _, command in self.hooks}
        owners = {"die": DEAD_OWNER, "die elsewhere": DEAD_OWNER.replace(machine(), "elsewhere")}
        owner = next((owners[fate] for fate in owners.keys() & fates), None)
        dies, owner = owner is not None, owner or new_owner()
        ids = {name: number for number, name in context.shard_names().items()}
        with context.catalog.writing() as tx:
            plan = Move(int(tablet), tx.state.tablet(int(tablet)).shard, ids[target])
            enter_moves(tx, [plan], owner)
        mover = Mover(context, owner, plan, self.point)
        if dies:
            mover._undo = lambda: False  # type: ignore[method-assign]
        mover.carry_out()
        return self.do_placement()

    def do_moves(self) -> list[str]:
        lines = []
        for move in self.store.status()["moves"]:
            lines.append(f"tablet {move['tablet']} to {move['to']}: {move['phase']}")
            if move["silent_since"] is not None:
                silent, due = (
                    int(move[name] - self.clock.now()) for name in ("silent_since", "taken_over_from")
                )
                lines[-1] += f", silent for {-silent} s, to be taken over in {due} s"
        return lines

    # Upkeep

    def do_away(self, shard: str) -> None:
        """Let a shard's disk be away, until it is `back`."""
        (self.place / "a.store/shards" / shard).rename(self.place / shard)

    def do_back(self, shard: str) -> None:
        (self.place / shard).rename(self.place / "a.store/shards" / shard)

    def do_removed(self) -> list[str]:
        """Show the removed shards of which files may still be needed."""
        return [f"{each['name']}: {each['files']} files" for each in self.store.status()["removed_shards"]]

    def do_tidy(self, table: str) -> None:
        """Remove dropped files as a writer does after its commit."""
        collect_dropped(self.store.context, self.store.table(table).definition.id, 512)

    def do_flush(self, table: str) -> None:
        flush(self.store.context, self.store.table(table).definition.id)

    def do_keep(self) -> str:
        kept = keep(self.store.context, KEPT)
        done = [f"{kept.flushes} flushes, {kept.merges} merges", *[f"{kept.moves} moves"] * bool(kept.moves)]
        problems = [problem.partition("]")[0].replace("[", "") for problem in kept.problems]
        return "\n".join([", ".join([*done, f"{kept.files_removed} files removed"]), *problems])

    def do_problem(self) -> str:
        """Show why the last upkeep after a commit failed, if it did."""
        return self.store.status()["upkeep"]["problem"] or "none"

    def do_files(self) -> list[str]:
        """Show what lies in the log, and in each shard's root."""
        tx = self.store.context.catalog.newest()
        logged = [commit for table in tx.state.infos() for commit in tx.state.memory(table.id)]
        lines = [f"log: commits {len(logged)}, rows {sum(commit.rows for commit in logged)}"]
        for shard in tx.state.shards.values():
            own = tx.state.fragments(shard=shard.id)
            there = [path for path, _ in self.store.context.disk_of(shard.id).list() if ".arrow" in path]
            rows = sum(each.rows for each in own)
            lines.append(f"{shard.name}: fragments {len(own)}, rows {rows}, files {len(there)}")
        return lines

    def do_bound(self, table: str) -> str:
        """Show how many rows a table has by its catalog alone."""
        (found,) = (each for each in self.store.status()["tables"] if each["name"] == table)
        return f"{'exactly' if found['rows_exact'] else 'at most'} {found['rows']} rows"

    def do_collect(self, *dry: str, grace_seconds: int = 0, **rules: Any) -> list[str]:
        """Collect garbage, or plan it (`collect dry`); show how many files have which fate, and why."""
        done = self.store.collect_garbage(grace_seconds=grace_seconds, dry_run=bool(dry), **rules)
        counts = Counter((each.shard, str(each.action), each.reason) for each in done.decisions)
        lines = [f"{shard}: {action} {n}: {why}" for (shard, action, why), n in sorted(counts.items())]
        return [*lines, *(f"{shard}: skipped" for shard, _ in done.skipped)]

    def do_leases(self) -> list[str]:
        leases = self.store.status()["leases"]
        return [f"{each['purpose']} of snapshot {each['snapshot']} of {each['table']}, for "
                f"{each['expires_at'] - self.clock.now():,.0f} s" for each in leases]  # fmt: skip


_FIELDS = ("keys", "newest", "since", "oldest", "snapshot", "tablet", "shard", "option", "index", "column")


def _number(word: str) -> int | str:
    return int(word) if word.isdigit() else word


def _value(option: str, text: str) -> Any:
    """Return the value of an option, such as `txn=app:1`, `set="v='b', n=n+1"` and `columns=a,b`."""
    if option == "txn":
        name, _, version = text.partition(":")
        return name, int(version)
    if option == "set":
        return dict(each.split("=", 1) for each in text.split(", "))
    return text.split(",") if option in ("columns", "names") else _number(text)


def rows_of(schema: pa.Schema, words: Iterable[str]) -> pa.Table:
    """Return the rows of words such as `7=a,5`; what is not there is null."""
    names, rows = schema.names, list[dict[str, Any]]()
    for word in words:
        key, _, values = word.partition("=")
        row = dict(zip(names, [key or None, *(value or None for value in values.split(","))], strict=False))
        rows.append(row)
    texts = pa.schema([(name, pa.string()) for name in names])
    return pa.Table.from_pylist(rows, texts).cast(schema)


def _texts(rows: pa.Table) -> list[str]:
    """Return the text of each row, in their order; of a change with what it is."""
    found = []
    for row in rows.to_pylist():
        kind, _, _ = (row.pop(name, "") for name in ("_change_type", "_commit_version", "_commit_timestamp"))
        key, *values = ("" if value is None else str(value) for value in row.values())
        found.append(f"{kind} {key}={','.join(values)}".lstrip())
    return found


def _sorted(rows: Iterable[str]) -> str:
    return " ".join(sorted(rows, key=lambda row: int(row.partition("=")[0].split()[-1]))) or "no rows"


def _feed(changes: pa.Table) -> Iterator[str]:
    """Yield a line for each commit of a change feed."""
    order = [("_commit_version", "ascending"), ("id", "ascending"), ("_change_type", "descending")]
    by_commit = dict[int, list[str]]()
    changes = changes.sort_by(order)
    for commit, text in zip(changes["_commit_version"].to_pylist(), _texts(changes), strict=True):
        by_commit.setdefault(commit, []).append(text)
    for commit, texts in by_commit.items():
        yield f"{commit}: {', '.join(texts)}"


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.usefixtures("unflushed")
def test_a_store_answers_as_the_transcript_says(
    story: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Story(tmp_path, monkeypatch)) as played:
        check(played, PLACE / f"{story}.txt")


def check(story: Story, path: Path) -> None:
    """Play a transcript, and compare what it says."""
    wanted, found = path.read_text(encoding="utf-8"), list[str]()
    for block in re.split(r"^(?=[>#] |$)", wanted, flags=re.MULTILINE):
        head = block.partition("\n")[0]
        found.append(head)
        if head.startswith("> ") and (answer := story.answer(head[2:])):
            found.append(_VARIES.sub(lambda varies: re.sub(r"[\d,]+", "N", varies[0]), answer))
    assert story.hooks == [], "the points were not reached"
    again = "\n".join(found).strip("\n") + "\n"
    if os.environ.get("TRANSCRIPTS") == "write":
        path.write_text(again, encoding="utf-8")
    assert again == wanted
