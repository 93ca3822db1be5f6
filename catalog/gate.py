"""The gate through which SQLite is used, so that no fork meets it during its work: see `connections`."""

from __future__ import annotations

from typing import Final

from elasticscan.base.forks import ForkGate

GATE: Final = ForkGate()
