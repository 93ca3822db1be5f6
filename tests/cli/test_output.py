"""Tables for people, as wide as their screen."""

from __future__ import annotations

import pytest
from rich.console import Console

from elasticscan.cli.output import listing


@pytest.mark.parametrize(("width", "lines"), [(40, 3), (24, 7)])
def test_a_table_that_is_wider_than_the_screen_is_a_block_for_each_row(width: int, lines: int) -> None:
    shown = listing("commit", "operation", "said of it", right=("commit",))
    for number in (1, 2):
        shown.add_row(str(number), "write", "by=nightly")
    screen = Console(width=width, force_terminal=True, color_system=None)
    with screen.capture() as captured:
        screen.print(shown)
    told = captured.get().rstrip().split("\n")
    assert all(len(line.rstrip()) <= width for line in told)
    assert len(told) == lines
    assert (told[0].split() == ["commit", "1"]) == (width == 24)
