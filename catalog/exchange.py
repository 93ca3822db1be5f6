"""A message to a server, of one statement or of several, and all the answers to it, at the driver's library.

The driver flushes and waits for each statement apart, also where it is sent with others, and makes objects
around each: most of what a small commit's statements take of a processor. Here all of them go out at once.
Only what goes beyond the message is the driver's: how values become bytes, and bytes values, how
answers are waited for (`waiting.py`) and which error a refusal is.

A message that was broken off leaves unread answers. Its connection is closed then: the next caller would
take them for its own.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

# Words of SQL, and the values for their places: $1, $2, …
Said = tuple[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a statement."""

    rows: Sequence[Any]
    rowcount: int

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def all(self) -> Sequence[Any]:
        return self.rows

    def scalar(self) -> Any:
        return self.rows[0][0] if self.rows else None


@lru_cache(maxsize=64)
def row_type(names: tuple[str, ...]) -> Any:
    """Return the type of the rows that have some columns."""
    return namedtuple("Row", names, rename=True)


@lru_cache(maxsize=1)
def _library() -> Any:
    import psycopg  # noqa: PLC0415 - an extra, which not all installations have

    return psycopg


def exchange(driver: Any, said: Sequence[Said]) -> list[Answer]:
    """Return the answers to some statements; if one fails, the rest is not run, and its error is raised."""
    message, line = _Message(driver, said), driver.pgconn
    try:
        line.enter_pipeline_mode()
        driver.wait(message.steps())
    finally:
        if message.is_over:
            line.exit_pipeline_mode()
        else:
            driver.close()
    return message.answers()


class _Message:
    """A message on its way, and what came back so far."""

    def __init__(self, driver: Any, said: Sequence[Said]) -> None:
        library = _library()
        self._generators, self._errors = library.generators, library.errors
        self._status, self._format = library.pq.ExecStatus, library.adapt.PyFormat.AUTO
        self._line, self._values = driver.pgconn, library.adapt.Transformer(driver)
        self._encoding = driver.info.encoding
        # All of it before the first is sent, with which a lock may be taken that others wait for.
        self._parts = [self._part(*one) for one in said]
        self._results = list[Any]()
        self.is_over = False

    def _part(self, words: str, values: Sequence[Any]) -> tuple[Any, ...]:
        if not values:
            return words.encode(), None
        dumped = self._values.dump_sequence(values, [self._format] * len(values))
        return words.encode(), dumped, self._values.types, self._values.formats

    def steps(self) -> Generator[Any, Any, None]:
        """Send it, and take all of its answers; between the steps the driver waits."""
        for part in self._parts:
            self._line.send_query_params(*part)
        self._line.pipeline_sync()
        try:
            yield from self._generators.send(self._line)
            while not self.is_over:
                for result in (yield from self._generators.fetch_many(self._line)):
                    if result.status == self._status.PIPELINE_SYNC:
                        self.is_over = True
                    else:
                        self._results.append(result)
        except self._errors.Error:
            self._raise_refusal()  # the server may have said why, before it ended the connection
            raise

    def _raise_refusal(self) -> None:
        for result in self._results:
            if result.status not in (self._status.TUPLES_OK, self._status.COMMAND_OK):
                raise self._errors.error_from_result(result, encoding=self._encoding)

    def answers(self) -> list[Answer]:
        self._raise_refusal()
        return [self._answer(result) for result in self._results]

    def _answer(self, result: Any) -> Answer:
        if not result.nfields:
            return Answer((), result.command_tuples or 0)
        # Of each column that the driver describes it makes an object, which takes longer than all else here.
        names = tuple(result.fname(number).decode() for number in range(result.nfields))
        self._values.set_pgresult(result)
        rows = self._values.load_rows(0, result.ntuples, row_type(names)._make)
        return Answer(rows, len(rows))
