"""Processes of their own sessions, which are killed with all that they started, by their ids."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, Self

from tests.base.quick_java import QUICK_JAVA

ROOT = Path(__file__).resolve().parents[2]
PROC = Path("/proc")


def tell(**what: Any) -> None:
    """Say a line of JSON on the standard output."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def until(look: Callable[[], Any], what: str, seconds: float = 240) -> Any:
    """Wait until there is something to see; it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if seen := look():
            return seen
        time.sleep(0.05)
    raise TimeoutError(what)


def ending_with_parent(command: Sequence[Any], how: str = "KILL") -> list[Any]:
    """A command whose process ends with this one, however that ends."""
    setpriv = shutil.which("setpriv")
    return [*([setpriv, "--pdeathsig", how] if setpriv else []), *command]


class Program:
    """`python -m MODULE ARGUMENTS`, which says JSON lines. Its errors go to a file of its own.

    It leads a session: Spark's Python daemon leaves the driver's process group, but not that.
    """

    def __init__(self, module: str, *arguments: str, log: Path, more: Mapping[str, str]) -> None:
        self.log, self.said = log, list[dict[str, Any]]()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                ending_with_parent([sys.executable, "-m", module, *arguments]),
                cwd=ROOT,
                env=os.environ | more,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._listening = Thread(target=self._listen, daemon=True)
        self._listening.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with suppress(ValueError):  # cut off by a kill
                    self.said.append(json.loads(line))

    def code(self) -> int | None:
        """How it ended, if it has."""
        return self._process.poll()

    def answers(self, word: str) -> list[Any]:
        return [said[word] for said in list(self.said) if word in said]

    def send(self, **what: Any) -> None:
        """Write a JSON line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """kill -9 of it and all that it started. May be called again."""
        end_session(self._process.pid)
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._process.wait()
        self._listening.join()

    def workers(self) -> list[int]:
        """Spark's Python processes, except the driver itself."""
        own = self._process.pid
        return [member for member in members(own) if member != own and b"\0pyspark." in command(member)]

    def why(self) -> str:
        """What it said last, for people."""
        errors = self.log.read_text(encoding="utf-8", errors="replace")
        return f"exit code {self.code()}, said {self.said[-1:]}; {self.log}:\n{errors[-6_000:]}"


def outcome(command: list[str], where: Path, **more: str) -> str:
    """Run a program of Spark's; what it and all that it started printed. All of it is ended then."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    process = subprocess.Popen(
        command,
        cwd=where,
        env=environment | {"SPARK_LOCAL_IP": "127.0.0.1", "JAVA_TOOL_OPTIONS": QUICK_JAVA} | more,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=400)
    finally:
        end_session(process.pid)
        process.wait()
    assert process.returncode == 0, printed
    return printed


def end_session(session: int) -> None:
    """Kill every process of a session, and those that they start meanwhile."""
    while found := members(session):
        for member in found:
            kill(member)
        time.sleep(0.01)


def kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def members(*sessions: int) -> list[int]:
    """The processes of sessions that have not ended."""
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # id (name) state parent group session ...; the name may hold anything
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(fields[3]) in sessions and fields[0] not in "ZX":
                    found.append(int(entry.name))
    return found


def command(process: int) -> bytes:
    """The command line of a process; nothing of one that has ended."""
    try:
        return (PROC / str(process) / "cmdline").read_bytes()
    except OSError:
        return b""
