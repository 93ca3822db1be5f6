"""A catalog's server behind a line that breaks where a test says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.base.postgres import Server
from tests.base.severed_line import BLOCK, SeveredLine


@pytest.fixture(scope="module")
def _line(postgres: Server) -> Iterator[SeveredLine]:
    with SeveredLine(postgres.socket) as line:
        yield line


@pytest.fixture
def line(_line: SeveredLine) -> Iterator[SeveredLine]:
    """A line that is whole again for the next test."""
    yield _line
    _line.piece, _line.rest = BLOCK, None
