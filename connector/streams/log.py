"""One line in the log for each micro-batch that reads a table of a store.

    spark.streams.addListener(StreamLog())

    stream copy, batch 1: 9,000 rows in 0.9 s, from snapshot 2 at slot 1847 to slot 3681;
        left to read: about 2,036 rows
    stream copy, batch 9: 12 rows in 0.3 s, from the end of commit 4 to the end of commit 6;
        left to read: nothing

(each of these is one line).

Everything comes from the progress that Spark reports after a micro-batch, which bears the offsets
between which it read and what the source knew when it chose them. What is *left to read* is
therefore as of the planning of the batch, after its own rows; commits made since come with the next.

Not told: how many pages were read, and how many of them by virtual scans, because a tablet moved.
Only the tasks know that, while they read; Spark 4.3 brings nothing but rows back from the tasks of a
Python source. What the source has planned is told where its report has it (`planned`), and that is
of the batch before, since Spark asks for the report ahead of the plan. Plans are no count of what
tasks did: one that finds a tablet gone reads it elsewhere.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_OURS = frozenset(("v", "store", "table", "slot", "mac"))  # what every offset of ours has
_PLANNED = (("base", "base-shard scans"), ("virtual", "virtual scans"), ("changes", "change scans"))


class StreamLog(StreamingQueryListener):
    """Logs each micro-batch of each stream of the session; those of other sources are left out.

    Args:
        log: where to; the logger `elasticscan.connector.streams.log` by default.
        level: of the lines.
    """

    def __init__(self, log: logging.Logger | None = None, level: int = logging.INFO) -> None:
        self._log, self._level = log or logging.getLogger(__name__), level

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing: the first batch says where it begins."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        for line in lines(event.progress):
            self._log.log(self._level, "%s", line)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing: no batch ran."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Nothing: whoever waits for the query gets its error."""


def lines(progress: Mapping[str, Any]) -> Iterator[str]:
    """What there is to say of a micro-batch: a line for each of its sources that is a table of a store."""
    if "addBatch" not in (progress.get("durationMs") or {}):  # a look for news that found none
        return
    name = progress.get("name") or str(progress.get("id"))[:8]
    seconds = (progress.get("batchDuration") or 0) / 1_000
    sources = [(source, _json(source.get("endOffset"))) for source in progress["sources"]]
    ours = [(source, end) for source, end in sources if end is not None and end.keys() >= _OURS]
    for source, end in ours:
        start = _json(source.get("startOffset")) or end.get("since")
        # Of several tables the ids say which; a single one is known by the stream's name.
        which = f" of table {end['table']}" if len(ours) > 1 else ""
        rows = _count(source.get("numInputRows") or 0, "row")
        left = _left(_json(source.get("latestOffset")), "about " if "at" in end else "")
        yield (
            f"stream {name}, batch {progress.get('batchId')}: {rows}{which} in {seconds:.1f} s, "
            f"{_span(start, end)}{left}"
        )


def _json(given: Any) -> dict[str, Any] | None:
    """An offset, which Spark hands over as text; None also for offsets of a form that is not ours."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:  # "None", where a stream has not begun
            return None
    return given if isinstance(given, dict) else None


def _span(start: Mapping[str, Any] | None, end: Mapping[str, Any]) -> str:
    to = _place(end)
    if start is None:
        return f"to {to}"
    if start.get("at") is not None and start.get("at") == end.get("at"):
        to = f"slot {end['slot']}"
    return f"from {_place(start)} to {to}"


def _place(offset: Mapping[str, Any]) -> str:
    slot = offset.get("slot", 0)
    if "at" in offset:
        return f"snapshot {offset['at']} at slot {slot}"
    if slot:  # inside a commit that is larger than a batch may be
        return f"commit {offset['commit'] + 1} at slot {slot}"
    return f"the end of commit {offset['commit']}"


def _left(report: Mapping[str, Any] | None, about: str) -> str:
    if report is None or "behindRows" not in report:
        return ""
    commits, rows = report.get("behindCommits", 0), report["behindRows"]
    parts = [_count(commits, "commit")] if commits else []
    # The rows of a snapshot that are left are estimated, by the shares of slots in files.
    parts += [about + _count(rows, "row")] if rows else []
    if commits:
        parts.append(f"the oldest {report.get('behindSeconds', 0.0):.0f} s old")
    told = f"; left to read: {', '.join(parts) or 'nothing'}"
    planned = report.get("planned")
    if isinstance(planned, Mapping):
        scans = [f"{planned[kind]} {words}" for kind, words in _PLANNED if planned.get(kind)]
        told += f"; the batch before was planned as {', '.join(scans) or 'nothing'}"
    return told


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
