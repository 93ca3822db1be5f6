"""A catalog's server behind a line that breaks where a test says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.base.postgres import Server
from tests.base.severed_line import SeveredLine


@pytest.fixture(scope="module")
def line(postgres: Server) -> Iterator[SeveredLine]:
    with SeveredLine(postgres.socket) as line:
        yield line
