"""Roots and catalogs that are not what they seem; garbage collection that needs proof."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elasticscan.base.errors import ShardUnavailable, WrongRoot
from elasticscan.storage import Disk
from elasticscan.store import Store, adoption
from elasticscan.store.roots.location import MARKER
from elasticscan.store.roots.markers import Marker
from elasticscan.store.upkeep.garbage import Action
from tests.store.test_root_scenarios import count, made, root, rows, staged

ROWS_IN_FILES = True


@pytest.mark.parametrize("content", [b"", b"{}", b"\0" * 40, b'{"version": 1} 00000000\n'])
def test_a_damaged_marker_proves_nothing(tmp_path: Path, content: bytes) -> None:
    with made(tmp_path / "store") as store:
        (root(store, "a") / MARKER).write_bytes(content)
        with pytest.raises((WrongRoot, ShardUnavailable)):
            store.table("t").upsert(rows())
        (root(store, "a") / MARKER).unlink()
        with pytest.raises(ShardUnavailable):
            store.table("t").upsert(rows())
        store.adopt()
        assert store.table("t").upsert(rows()) >= 3


def test_adopting_needs_the_files_where_there_is_no_marker(tmp_path: Path) -> None:
    with made(tmp_path / "store") as store:
        root(store, "a").rename(tmp_path / "away")
        root(store, "a").mkdir()
        with pytest.raises(ShardUnavailable, match="lacks"):
            store.adopt()
        assert list(root(store, "a").iterdir()) == []


@pytest.mark.parametrize("marked", [1, 2])
def test_an_adoption_that_was_cut_off_is_done_again(
    tmp_path: Path, marked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its roots are of an incarnation that no catalog knows."""
    write, left = adoption.write_marker, [marked]

    def cut(disk: Disk, marker: Marker) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        write(disk, marker)

    def cut_before_the_commit(*_: object) -> None:
        raise KeyboardInterrupt

    with made(tmp_path / "store") as store:
        before = count(store)
        monkeypatch.setattr(adoption, "write_marker", cut)
        monkeypatch.setattr(adoption, "take_incarnation", cut_before_the_commit)
        with pytest.raises(KeyboardInterrupt):
            store.adopt()
        monkeypatch.undo()
        with pytest.raises(WrongRoot, match="another copy of the store"):
            store.table("t").upsert(rows())
        assert count(store) == before
        assert store.adopt().missing == ()
        store.table("t").upsert(rows())
        assert store.verify() == []


def test_adopting_does_not_take_what_is_another_shards(tmp_path: Path) -> None:
    with made(tmp_path / "store") as store:
        (root(store, "a") / MARKER).write_bytes((root(store, "b") / MARKER).read_bytes())
        with pytest.raises(WrongRoot):
            store.adopt()


def test_a_dry_run_writes_nothing_at_all(tmp_path: Path) -> None:
    """Neither at a root nor in the catalog."""

    def everything() -> dict[str, tuple[int, bytes]]:
        found = {str(path): path for path in (tmp_path / "store").rglob("*")}
        return {
            name: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for name, path in found.items()
        }

    with made(tmp_path / "store") as store:
        prepared = staged(store)
        store.compact()
    for path in (tmp_path / "store").rglob("*"):
        os.utime(path, (1e9, 1e9) if path.is_file() else None)
    before = everything()
    with Store.open(tmp_path / "store") as store:
        found = store.collect_garbage(grace_seconds=3_600, dry_run=True, share=1.0)
    assert {fragment.path for fragment in prepared} <= {
        decision.path for decision in found.decisions if decision.action is Action.TRASH
    }
    assert everything() == before
