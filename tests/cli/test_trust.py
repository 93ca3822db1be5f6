"""Stores that can only be read, and passwords that are not shown."""

from __future__ import annotations

from typing import Any

import pytest

# As `Shell` of conftest.py, which tests get as a fixture and cannot import.
Shell = Any
SECRET = "hunter2"


@pytest.mark.parametrize("command", ["status", "tables", "verify", "topologies"])
def test_no_command_shows_a_password(shell: Shell, command: str) -> None:
    place = f"wat://ann:{SECRET}@db/x?password={SECRET}"
    for words in ((command, place), (command, place, "--json")):
        code, out, err = shell.run(*words)
        assert code == 2
        assert SECRET not in out + err


def test_a_status_says_that_a_store_can_only_be_read(
    shell: Shell, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "elasticscan.catalog.opening.why_not_writable", lambda _: "this user may not write it"
    )
    assert "for reading alone, scans take no leases: this user may not write it" in shell.ok("status", uri)
    assert shell.json("status", uri)["read_only"] == "this user may not write it"
    code, message = shell.fails("compact", uri)
    assert code == 2
    assert message.startswith("[ES_READ_ONLY]")
    assert "rows of snapshot" in shell.ok("scan", uri, "t", "--limit", 5)
