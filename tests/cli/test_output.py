"""Tables for people, as wide as their screen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from elasticscan.cli.output import listing
from elasticscan.store import Store


@pytest.mark.parametrize(("width", "lines"), [(40, 3), (24, 7)])
def test_a_table_that_is_wider_than_the_screen_is_a_block_for_each_row(width: int, lines: int) -> None:
    shown = listing("commit", "operation", "said of it", right=("commit",))
    for number in (1, 2):
        shown.add_row(str(number), "write", "by=nightly")
    screen = Console(width=width, force_terminal=True, color_system=None)
    with screen.capture() as captured:
        screen.print(shown)
    message = captured.get().rstrip().split("\n")
    assert all(len(line.rstrip()) <= width for line in message)
    assert len(message) == lines
    assert (message[0].split() == ["commit", "1"]) == (width == 24)


def _run(words: list[str], stdout: int, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "elasticscan", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | environment,
    )
    return done.returncode, done.stderr


@pytest.fixture
def uri(tmp_path: Path) -> str:
    with Store.create(tmp_path / "s", shards=["a"]) as store:
        store.create_table("t", {"id": [1]}, "id")
        return store.uri


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("words", [["status"], ["status", "--json"], ["scan", "t", "--format", "csv"]])
def test_a_stdout_that_is_full_is_reported_as_that(uri: str, words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        code, message = _run([words[0], uri, *words[1:]], full.fileno())
    assert (code, message.count("\n")) == (2, 1)
    assert "ES_INVALID_OPTION" in message
    assert "stdout cannot be written: No space left" in message


def test_a_stdout_that_takes_no_letters_is_reported_as_that(uri: str) -> None:
    code, message = _run(["status", uri], subprocess.DEVNULL, PYTHONIOENCODING="ascii")
    assert code == 2
    assert "PYTHONIOENCODING=utf-8" in message


@pytest.mark.parametrize("words", [["scan", "t", "--json"], ["scan", "t", "--format", "csv"]])
def test_a_reader_of_stdout_that_has_enough_is_no_error(uri: str, words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert _run([words[0], uri, *words[1:]], writer) == (1, "")
    finally:
        os.close(writer)
