"""What the demo shows: a live picture on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from rich import box
from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from elasticscan.cli.demo_accounts import Account
from elasticscan.cli.demo_mover import NEW
from elasticscan.cli.picture import colours, shard_lines
from elasticscan.store import Store
from elasticscan.topology import Phase

LINE_SECONDS = 2.0
_PICTURES_PER_SECOND = 8


@dataclass(frozen=True, slots=True)
class Moment:
    """Where the demo stands.

    Attributes:
        seconds: since the scans began.
        expected: rows that each scan should give.
        spark_rows, spark_pages, plain_rows, plain_pages: what they gave so far.
        moves: moves finished so far.
        act: what the operator is doing.
    """

    seconds: float
    expected: int
    spark_rows: int
    spark_pages: int
    plain_rows: int
    plain_pages: int
    moves: int
    act: str


class View(Protocol):
    """Something that shows how it goes."""

    def say(self, text: str) -> None: ...

    def show(self, moment: Moment) -> None: ...


class Silent:
    """For scripts."""

    def say(self, text: str) -> None:
        del text

    def show(self, moment: Moment) -> None:
        del moment


@dataclass(slots=True)
class Lines:
    """For logs: a line every two seconds."""

    console: Console
    _last: float = -LINE_SECONDS

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def show(self, moment: Moment) -> None:
        # The clock starts again with the first page.
        if 0 <= moment.seconds - self._last < LINE_SECONDS:
            return
        self._last = moment.seconds
        self.say(
            f"{moment.seconds:5.1f} s   Spark {moment.spark_rows / moment.expected:4.0%} "
            f"{moment.spark_rows:>8,} rows   plain {moment.plain_rows:>8,} rows   "
            f"{moment.moves:>4} moves finished   {moment.act}"
        )


@dataclass(slots=True)
class Picture:
    """For terminals: shards with their tablets, each in the colour of where it was at the start."""

    store: Store
    live: Live
    _colour: Mapping[str, str] = field(init=False)
    _home: Mapping[int, str] = field(init=False)

    def __post_init__(self) -> None:
        placement, names = self.store.context.placement(), self.store.context.shard_names()
        self._colour = colours([*names.values(), NEW])
        self._home = {tablet.id: self._colour[names[tablet.shard]] for tablet in placement.tablets}

    def say(self, text: str) -> None:
        self.live.console.print(text, markup=False)

    def show(self, moment: Moment) -> None:
        self.live.update(self._drawn(moment))

    def _drawn(self, moment: Moment) -> RenderableType:
        scans = Table.grid(padding=(0, 2))
        for name, rows, pages, style in (
            ("Spark, elasticscan", moment.spark_rows, moment.spark_pages, "green"),
            ("a plain scan", moment.plain_rows, moment.plain_pages, "red"),
        ):
            bar = ProgressBar(moment.expected, rows, width=30, complete_style=style, finished_style=style)
            scans.add_row(name, bar, Text(f"{rows:>8,} rows", style=style), f"{pages:>4} pages")
        told = Text.assemble(
            (f"{moment.moves} moves finished", "bold"),
            f" while they read, now: {moment.act}   ",
            ("▷ a tablet on its way", "dim"),
        )
        shards = shard_lines(_placement(self.store), self._colour, self._home)
        title = f"{moment.expected:,} flights, {moment.seconds:.0f} s"
        return Panel(Group(shards, Text(), scans, Text(), told), title=title, box=box.ROUNDED, padding=(1, 2))


def _placement(store: Store) -> dict[str, Any]:
    """As much of `Store.status` as a picture needs several times a second."""
    with store.context.catalog.reading() as tx:
        placement, shards, moves = tx.placement(), tx.shards(), tx.moves()
    names = {shard.id: shard.name for shard in shards}
    return {
        "shards": [{"name": shard.name, "draining": shard.draining} for shard in shards],
        "tablets": [{"id": t.id, "shard": names[t.shard]} for t in placement.tablets],
        "moves": [
            {"tablet": move.tablet, "to": names.get(move.target, "")}
            for move in moves
            if move.phase != Phase.PLANNED
        ],
    }


@contextmanager
def picture(console: Console, store: Store) -> Iterator[View]:
    """The view that fits where the demo runs."""
    if not console.is_terminal:
        yield Lines(console)
        return
    with Live(console=console, refresh_per_second=_PICTURES_PER_SECOND) as live:
        yield Picture(store, live)


def result_table(elastic: Account, plain: Account, more: Sequence[tuple[str, str, str]]) -> Table:
    """Both scans beside each other; `more` are lines (title, elastic, plain)."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("")
    shown.add_column("elasticscan in Spark", justify="right", style="green")
    shown.add_column("a plain scan", justify="right", style="red")
    for title, mine, other in (
        ("rows expected", elastic.expected, plain.expected),
        ("rows read", elastic.read, plain.read),
        ("rows missing", elastic.missing, plain.missing),
        ("rows repeated", elastic.repeated, plain.repeated),
    ):
        shown.add_row(title, f"{mine:,}", f"{other:,}")
    for line in more:
        shown.add_row(*line)
    return shown


def bar_chart(counts: Mapping[str, int], width: int = 50) -> Table:
    """Bars, the longest first."""
    chart = Table.grid(padding=(0, 2))
    most = max(counts.values(), default=0)
    for name, count in counts.items():
        chart.add_row(name, Bar(most, 0, count, width=width, color="dodger_blue1"), f"{count:>7,}")
    return chart
