"""Processes of their own sessions, which are killed with all that they started, by their ids."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
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


class Program:
    """`python -m MODULE ARGUMENTS`, which says JSON lines. Its errors go to a file of its own.

    It leads a session: Spark's Python daemon leaves the driver's process group, but not that.
    """

    def __init__(
        self, module: str, *arguments: str, log: Path, more: Mapping[str, str] | None = None
    ) -> None:
        self.log, self.said = log, list[dict[str, Any]]()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                env=dict(os.environ) | dict(more or {}),
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

    @property
    def id(self) -> int:
        return self._process.pid

    def code(self) -> int | None:
        """How it ended, if it has. Its id stays its own until `kill`: what it started bears that, too."""
        if self._process.returncode is not None:
            return int(self._process.returncode)
        ended = os.waitid(os.P_PID, self.id, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def answers(self, word: str) -> list[Any]:
        return [said[word] for said in list(self.said) if word in said]

    def send(self, **what: Any) -> None:
        """Write a JSON line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        self._process.stdin.flush()

    def finish(self, seconds: float) -> int:
        """Let it end by itself; how it did."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        end = time.monotonic() + seconds
        while (code := self.code()) is None:
            if time.monotonic() >= end:
                raise TimeoutError(f"it does not end: {self.why()}")
            time.sleep(0.01)
        self._listening.join(seconds)
        return code

    def kill(self) -> None:
        """kill -9 of it and all that it started. May be called again."""
        if self._process.returncode is not None:
            return
        end_session(self.id)
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._process.wait()  # only now can its id be given to another
        self._listening.join()

    def workers(self) -> list[int]:
        """Spark's Python processes, except the driver itself."""
        return [
            member for member in members(self.id) if member != self.id and b"\0pyspark." in command(member)
        ]

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


def end_session(session: int, but: int | None = None) -> None:
    """Kill every process of a session, but for one, and those that they start meanwhile."""
    while found := [member for member in members(session) if member != but]:
        for member in found:
            kill(member)
        time.sleep(0.01)


def kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def members(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # id (name) state parent group session ...; the name may hold anything
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] not in "ZX":
                    found.append(int(entry.name))
    return found


def command(process: int) -> bytes:
    """The command line of a process; nothing of one that has ended."""
    try:
        return (PROC / str(process) / "cmdline").read_bytes()
    except OSError:
        return b""
