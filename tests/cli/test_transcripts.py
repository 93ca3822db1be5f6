"""Transcripts of the command line: what each command prints, and how it fails.

A line `$ command` is run in an empty directory, `% command` is one of a shell, and `@ file` makes a file of
the lines below it. A command that fails shows its exit code and the code of its error. Sizes, times, ids,
places, runs of spaces and line breaks of JSON are not compared. `KEY` is the continuation key printed last.
After a change that is meant, `TRANSCRIPTS=write pytest tests/cli/test_transcripts.py` writes them again.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elasticscan.base import limits
from elasticscan.cli.app import app

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
_VARIES = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.]+(Z|\+00:00)"), "TIME"),
    (re.compile(r'(_at|seconds)": \d[\d.]+'), r'\1": 0'),
    (re.compile(r"(pages?, )[\d.]+ s"), r"\g<1>0 s"),
    (re.compile(r"\d[\d.]* (bytes|kB|MB)"), "SIZE"),
    (re.compile(r'(bytes": )\d+'), r"\1…"),
    (re.compile(r"[0-9a-f]{32}"), "ID"),
    (re.compile(r"\d{8}T\d{12,}"), "NAME"),
    (re.compile(r"since \d+ s\b"), "since some s"),
    (re.compile(r"user \w+ at [\w.-]+"), "user USER at HOST"),
    (re.compile(r"--key \S+"), "--key KEY"),
    (re.compile(r'"continuation_key": "[^"]+"'), '"continuation_key": KEY'),
    (re.compile(r"[ ]{2,}"), "  "),
    (re.compile(r"[━─]+"), "─"),
    (re.compile(r" +$", re.MULTILINE), ""),
)


def _run(command: str, place: Path, keys: list[str]) -> str:
    words = [keys[-1] if word == "KEY" else word for word in shlex.split(command)]
    ended = CliRunner().invoke(app, words)
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    keys += re.findall(r'"continuation_key": "([^"]+)"', ended.stderr)
    shown, code = _in_a_line(ended.stdout), re.search(r"ES_\w+", ended.stderr)
    shown += f"[{ended.exit_code}] {code[0] if code else ''}" if ended.exit_code else ended.stderr
    shown = shown.replace(str(place), ".")
    for pattern, instead in _VARIES:
        shown = pattern.sub(instead, shown)
    return shown.strip("\n")


def _in_a_line(text: str) -> str:
    """Return a JSON document without its line breaks, and any other text as it is."""
    try:
        return f"{json.dumps(json.loads(text), ensure_ascii=False)}\n"
    except json.JSONDecodeError:
        return text


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda path: path.stem)
def test_commands_print_what_the_transcript_says(
    transcript: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if transcript.stem in ("damage", "maintenance"):  # their commands are about files
        monkeypatch.setattr(limits, "INLINE_BYTES", 0)
    wanted = transcript.read_text(encoding="utf-8")
    found, keys = [], list[str]()
    for block in re.split(r"^(?=[$%@#] )", wanted, flags=re.MULTILINE):
        head, _, body = block.partition("\n")
        if head.startswith("@ "):
            Path(head[2:]).write_text(body.rstrip("\n") + "\n")
        if head.startswith("$ "):
            body = f"{_run(head[2:], tmp_path, keys)}\n" + "\n" * f"\n{body}".endswith("\n\n")
        if head.startswith("% "):
            body = subprocess.check_output(["sh", "-c", head[2:]], text=True)
        found.append(f"{head}\n{body}" if head else "")
    again = "".join(found)
    if os.environ.get("TRANSCRIPTS") == "write":
        transcript.write_text(again, encoding="utf-8")
    assert again == wanted
