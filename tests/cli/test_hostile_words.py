"""Whatever is typed: an exit code with a code of ours, or typer's own word about the arguments."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from elasticscan.catalog import engine
from tests.cli.conftest import Shell

NINES = "9" * 5_000
_WORDS = """
t s1 1 -1 0 1e999 nan é ../.. ~ file:// sqlite:// postgresql://u:p@127.0.0.1:1/x a=b = 7 7d id,,id
--json --filter --columns --snapshot --index --tablets --retention --grace
"""
WORDS = ["", " ", "\0", "\udcff", NINES, f"-{NINES}", f"id = {NINES}", "id = 1", *_WORDS.split()]
_COMMANDS = """
create status tables load scan count changes add-column drop-column rename-column widen-column
index indexes expand contract move split join compact
gc verify topologies history tag restore-table explain drop streams
"""
COMMANDS = _COMMANDS.split()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a server that is not there."""
    monkeypatch.setattr(engine, "FIRST_CONNECT_SECONDS", 0.0)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_hostile_words_are_refused(shell: Shell, uri: str, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(60):
        words = [dice.choice(COMMANDS), uri if dice.random() < 0.9 else str(tmp_path / "none"), "t"]
        words = words[: dice.randint(1, 3)] + [dice.choice(WORDS) for _ in range(dice.randint(0, 4))]
        code, _, message = shell.run(*words)
        assert code in (0, 1, 2, 3, 4, 5), words
        assert "Traceback" not in message


@pytest.mark.parametrize("text", ["7", "90", "0007", NINES])
@pytest.mark.parametrize("command", ["create", "gc"])
def test_a_time_without_a_unit_is_refused(
    shell: Shell, uri: str, tmp_path: Path, command: str, text: str
) -> None:
    words = {
        "create": ["create", tmp_path / "new.store", "--shard", "a", "--retention", text],
        "gc": ["gc", uri, "--grace", text],
    }[command]
    code, message = shell.fails(*words)
    assert code == 2
    assert "[ES_INVALID_OPTION]" in message
    assert "30s, 90m, 12h or 7d, or 0" in message
    assert len(message) < 500
    assert not (tmp_path / "new.store").exists()


def test_tablets_are_listed_with_the_ids_that_commands_take(shell: Shell, uri: str) -> None:
    listed = shell.ok("status", uri, "--tablets").splitlines()
    assert listed[0].split() == ["tablet", "slots", "shard", "moving", "to"]
    assert len(listed) == 9
    assert shell.json("status", uri, "--tablets")[0]["id"] == int(listed[1].split()[0])
    code, message = shell.fails("move", uri, 999, "s1")
    assert code == 2
    assert "`elasticscan status --tablets` lists them" in message
    assert "status --tablets" in shell.ok("split", "--help")
    assert shell.fails("status", uri, "--tablets", "--streams")[0] == 2


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_option_without_its_value_is_refused(shell: Shell, tmp_path: Path, more: list[str]) -> None:
    for words in (["create", str(tmp_path / "s"), "--retention"], ["restore-table", "s", "t", "--to"]):
        code, _, message = shell.run(words[0], *more, *words[1:])
        assert code == 2, message
        assert f"Option '{words[-1]}' requires an argument" in message
