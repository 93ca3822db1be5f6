"""What the demo shows."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console
from rich.live import Live

from elasticscan.cli.demo_accounts import Account
from elasticscan.cli.demo_view import Lines, Moment, Picture, bar_chart, picture, result_table
from elasticscan.cli.picture import BLOCK
from elasticscan.store import Store

MOMENT = Moment(
    seconds=1.0,
    expected=1_000,
    spark_rows=500,
    spark_pages=5,
    plain_rows=400,
    plain_pages=4,
    moves=7,
    act="shard s3 joins",
)


def test_a_log_gets_a_line_now_and_then() -> None:
    console = Console(width=200)
    with console.capture() as captured:
        view = Lines(console)
        # The clock starts again when the first page has come.
        for seconds in (0.0, 0.1, 1.9, 2.5, 4.0, 5.0, 0.1, 0.2):
            view.show(replace(MOMENT, seconds=seconds))
    lines = captured.get().splitlines()
    assert [line.split()[0] for line in lines] == ["0.0", "2.5", "5.0", "0.1"]
    assert "Spark  50%" in lines[0]
    assert "7 moves finished   shard s3 joins" in lines[0]


def test_tablets_keep_the_colour_of_where_they_were(uri: str) -> None:
    console = Console(width=100, force_terminal=True, color_system="256")
    with Store.open(uri) as store:
        view = Picture(store, Live(console=console, auto_refresh=False))
        store.expand(["s3"])
        store.contract("s1")
        with console.capture() as captured:
            console.print(view._drawn(MOMENT))
    text = captured.get()
    lines = {
        name: next(line for line in text.splitlines() if name in line and BLOCK in line)
        for name in ("s2", "s3")
    }
    blue, orange = "\x1b[38;5;33m" + BLOCK, "\x1b[38;5;208m" + BLOCK
    assert sum(line.count(blue) for line in lines.values()) == 4
    assert sum(line.count(orange) for line in lines.values()) == 4
    assert "7 moves finished" in text


def test_without_a_terminal_there_is_no_live_picture(uri: str) -> None:
    with Store.open(uri) as store, picture(Console(force_terminal=False), store) as view:
        assert isinstance(view, Lines)


def test_both_scans_stand_beside_each_other() -> None:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(result_table(Account(9, 9, 0, 0, 0), Account(9, 8, 3, 2, 0), [("moves", "21", "20")]))
        console.print(bar_chart({"UA": 10, "AA": 5}))
    lines = [line.split() for line in captured.get().splitlines()]
    assert ["rows", "missing", "0", "3"] in lines
    assert ["rows", "repeated", "0", "2"] in lines
    assert ["moves", "21", "20"] in lines
    assert [line[0] for line in lines[-2:]] == ["UA", "AA"]
