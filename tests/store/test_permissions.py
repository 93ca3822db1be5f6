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

# The most careless mask and the strictest say what those between say, too.
LONG_MASKS = [pytest.param(mask, marks=pytest.mark.long, id=oct(mask)) for mask in (0o022, 0o077)]


@pytest.fixture(params=[pytest.param(0o000, id="0o0"), *LONG_MASKS, pytest.param(0o277, id="0o277")])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(place: Path) -> dict[str, set[str]]:
    """The modes of directories and files below a place, itself included."""
    found: dict[str, set[str]] = {"directories": set(), "files": set()}
    for path in (place, *place.rglob("*")):
        kind = "directories" if path.is_dir() else "files"
        found[kind].add(oct(stat.S_IMODE(path.stat().st_mode)))
    return found


def fill(store: Store) -> None:
    store.create_table("t", pa.schema([("id", pa.int64()), ("v", pa.int64())]), ["id"])
    store.table("t").upsert(pa.table({"id": range(100), "v": range(100)}))
    store.table("t").create_index("by_v", ["v"])
    store.expand(["c"])
    store.table("t").upsert(pa.table({"id": range(100), "v": range(100)}))
    store.compact()


def test_a_new_store_is_its_owners_alone(tmp_path: Path, umask: int) -> None:
    with Store.create(tmp_path / "s", ["a", "b"]) as store:
        fill(store)
        assert (tmp_path / "s" / "catalog.db-wal").exists()
        assert modes(tmp_path / "s") == {"directories": {"0o700"}, "files": {"0o600"}}
    with Store.open(tmp_path / "s") as store:
        store.table("t").upsert(pa.table({"id": [1], "v": [1]}))
        assert modes(tmp_path / "s") == {"directories": {"0o700"}, "files": {"0o600"}}


@pytest.mark.parametrize(
    ("directory", "file"),
    [("0o750", "0o640"), pytest.param("0o770", "0o660", marks=pytest.mark.long), ("0o2750", "0o640")],
)
def test_files_follow_the_directory_that_an_operator_made(
    tmp_path: Path, umask: int, directory: str, file: str
) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s").chmod(int(directory, 8))
    with Store.create(tmp_path / "s", ["a", "b"]) as store:
        fill(store)
        assert modes(tmp_path / "s")["files"] == {file}
        below = {oct(int(mode, 8) & 0o777) for mode in modes(tmp_path / "s")["directories"]}
        assert below == {oct(int(directory, 8) & 0o777)}


def test_a_shards_root_elsewhere_is_as_private_as_its_store(tmp_path: Path, umask: int) -> None:
    roots = {"a": str(tmp_path / "disk1" / "a"), "b": str(tmp_path / "disk2" / "b")}
    (tmp_path / "disk1").mkdir()
    (tmp_path / "disk1").chmod(0o755)
    (tmp_path / "disk2").mkdir()
    (tmp_path / "disk2").chmod(0o755)
    (tmp_path / "disk2" / "b").mkdir()
    (tmp_path / "disk2" / "b").chmod(0o750)
    with Store.create(tmp_path / "s", roots) as store:
        fill(store)
    assert modes(Path(roots["a"])) == {"directories": {"0o700"}, "files": {"0o600"}}
    assert modes(Path(roots["b"])) == {"directories": {"0o750"}, "files": {"0o640"}}  # made so before


def test_directories_that_all_may_read_get_files_of_their_owner_alone(tmp_path: Path, umask: int) -> None:
    """`mkdir` makes such directories by itself, so that nobody chose it."""
    places = {name: tmp_path / name for name in ("store", "root", "backups", "restored", "copy")}
    for place in places.values():
        place.mkdir()
        place.chmod(0o755)
    with Store.create(places["store"], {"a": str(places["root"]), "b": str(places["store"] / "b")}) as store:
        fill(store)
        store.backup(places["backups"])
        store.collect_garbage()
        for place in (places["store"], places["root"], places["backups"]):
            assert modes(place)["files"] == {"0o600"}, place
    roots = {"a": str(places["copy"]), "b": str(tmp_path / "copy_of_b")}
    with Store.from_backup(places["backups"], places["restored"], roots=roots) as store:
        store.table("t").upsert(pa.table({"id": [1], "v": [1]}))
        for place in (places["restored"], places["copy"]):
            assert modes(place)["files"] == {"0o600"}, place


@pytest.mark.usefixtures("rows_in_files")
def test_a_backup_that_a_group_may_read_keeps_the_secrets_to_its_owner(tmp_path: Path, umask: int) -> None:
    (tmp_path / "backups").mkdir()
    (tmp_path / "backups").chmod(0o750)
    with Store.create(tmp_path / "s", ["a"]) as store:
        fill_one(store)
        store.backup(tmp_path / "backups")
    found = {
        path.suffix: oct(stat.S_IMODE(path.stat().st_mode)) for path in (tmp_path / "backups").rglob("*")
    }
    assert oct(stat.S_IMODE((tmp_path / "backups" / BACKUP_FILE).stat().st_mode)) == "0o600"
    assert found[".arrow"] == "0o640"


def fill_one(store: Store) -> None:
    store.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
    store.table("t").upsert(pa.table({"id": range(100)}))
