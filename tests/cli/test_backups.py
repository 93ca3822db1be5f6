"""backup and restore, for people and for scripts."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Shell


def test_a_store_is_backed_up_and_made_again(shell: Shell, uri: str, tmp_path: Path) -> None:
    place = tmp_path / "b"
    first = shell.json("backup", uri, place)
    assert first["copied"] == first["files"] > 0
    assert f"0 of {first['files']} files copied (0 bytes)." in shell.ok("backup", uri, place, "--keep", 2)
    message = shell.json("restore", place, tmp_path / "new.store", "--root", f"s1={tmp_path / 'n1'}")
    assert message["tables"] == {"t": 5_000}
    assert shell.json("verify", tmp_path / "new.store") == {"damaged": []}
    said = shell.ok("restore", place, tmp_path / "old.store", "--name", first["name"])
    assert said.endswith(f"holds snapshot {first['snapshot']} with 1 table.\n")


def test_what_is_no_backup_is_refused(shell: Shell, uri: str, tmp_path: Path) -> None:
    code, message = shell.fails("restore", tmp_path, tmp_path / "new.store")
    assert code == 2
    assert "[ES_STORE_NOT_FOUND]" in message
    shell.ok("backup", uri, tmp_path / "b")
    code, message = shell.fails("restore", tmp_path / "b", uri)
    assert code == 2
    assert "[ES_ALREADY_EXISTS]" in message
    code, message = shell.fails("backup", uri, tmp_path / "b", "--keep", 0)
    assert "[ES_INVALID_OPTION]" in message
