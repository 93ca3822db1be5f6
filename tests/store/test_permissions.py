"""Who may read a store: its owner, or whom its directory lets in; whatever the umask is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.store import Store
from elasticscan.store.copies.backup import BACKUP_FILE


@pytest.fixture(params=[0o000, 0o277], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(place: Path) -> tuple[set[str], set[str]]:
    """The modes of directories and of files below a place, itself included."""
    found: tuple[set[str], set[str]] = set(), set()
    for path in (place, *place.rglob("*")):
        found[path.is_file()].add(oct(stat.S_IMODE(path.stat().st_mode)))
    return found


# By the mode of a directory that an operator made, or None where there was none: those of what is in it.
# `mkdir` makes directories that all may read by itself, so that no one chose it.
MODES: dict[int | None, tuple[str, str]] = {
    None: ("0o700", "0o600"),
    0o755: ("0o755", "0o600"),
    0o750: ("0o750", "0o640"),
    0o770: ("0o770", "0o660"),
    0o2750: ("0o2750", "0o640"),
}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode and oct(mode))
def test_a_place_is_its_owner_s_alone_unless_an_operator_let_a_group_in(
    tmp_path: Path, umask: int, mode: int | None
) -> None:
    """A store, a shard elsewhere, a backup and what is made of it; the secrets in a backup never."""
    (tmp_path / "for all").mkdir()
    (tmp_path / "for all").chmod(0o755)
    places = {name: tmp_path / name for name in ("store", "for all/root", "backup", "new", "new root")}
    for place in places.values():
        if mode is not None:
            place.mkdir()
            place.chmod(mode)
    rows = pa.table({"id": range(100), "v": range(100)})
    with Store.create(
        places["store"], {"a": str(places["for all/root"]), "b": str(places["store"] / "b")}
    ) as store:
        table = store.create_table("t", rows, "id")
        table.create_index("by_v", ["v"])
        store.expand(["c"])
        table.upsert(rows)
        store.compact()
        assert (places["store"] / "catalog.db-wal").exists()
        store.backup(places["backup"])
        store.collect_garbage()
    with Store.from_backup(places["backup"], places["new"], {"a": str(places["new root"])}) as store:
        store.table("t").upsert(rows[:1])
    (places["backup"] / BACKUP_FILE).rename(tmp_path / BACKUP_FILE)
    assert oct(stat.S_IMODE((tmp_path / BACKUP_FILE).stat().st_mode)) == "0o600"
    directory, file = MODES[mode]
    for name, place in places.items():
        directories, files = modes(place)
        assert files == {file}, name
        # Of a directory that all may read others are made for the owner alone.
        assert directories == {directory} if mode != 0o755 else directories <= {directory, "0o700"}, name


def test_files_that_root_makes_are_their_roots_owners(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make files for others")
    with Store.create(tmp_path / "s", ["a"], tablets=1, slots=8) as store:
        table = store.create_table("t", {"id": range(10)}, "id")
        for path in (tmp_path / "s", *(tmp_path / "s").rglob("*")):
            os.chown(path, 65534, 65534)
        table.upsert({"id": range(100_000)})
        assert {path.stat().st_uid for path in (tmp_path / "s" / "shards").rglob("*")} == {65534}
