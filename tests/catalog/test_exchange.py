"""Messages to a server: each statement has its answer, a refusal is an error, and nothing is left behind."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("psycopg", reason="pip install 'elasticscan[postgres]'")

import psycopg

from elasticscan.catalog.exchange import exchange
from elasticscan.catalog.waiting import connection_type
from tests.base.postgres import Server
from tests.base.severed_line import BLOCK, SeveredLine

VALUES = (2**62, 1.5, "a text with a ' and a %", b"\x00\xff", None)
TYPES = "$1::bigint AS a, $2::float8 AS b, $3::varchar AS c, $4::bytea AS d, $5::bigint AS e"


def connect(line: SeveredLine) -> Any:
    return connection_type().connect(**line.address, autocommit=True)


MESSAGE = [
    ("BEGIN", ()),
    ("CREATE TEMPORARY TABLE t (n bigint)", ()),
    ("INSERT INTO t SELECT generate_series(1, $1::bigint)", (2_000,)),
    ("SELECT n FROM t ORDER BY n", ()),
    (f"SELECT {TYPES}", VALUES),
    ("DELETE FROM t WHERE n > $1 AND n < $1 + $2", (10, 5)),
    ("SELECT n FROM t WHERE false", ()),
    ("ROLLBACK", ()),
]


@pytest.mark.parametrize("piece", [7, 1_000, BLOCK])
def test_each_statement_has_its_own_answer_in_whatever_pieces_they_come(
    line: SeveredLine, piece: int
) -> None:
    connection = connect(line)
    line.piece = piece
    for _ in range(2):
        *_, inserted, numbers, values, deleted, none, _ = exchange(connection, MESSAGE)
        assert (inserted.rowcount, deleted.rowcount) == (2_000, 4)
        assert [n for (n,) in numbers] == list(range(1, 2_001))
        assert (values.all()[0].c, tuple(values.all()[0])) == (VALUES[2], VALUES)
        assert (none.all(), none.scalar()) == ([], None)
    connection.close()


def test_a_message_that_is_longer_than_what_a_line_holds_is_sent_while_it_is_answered(
    postgres: Server,
) -> None:
    address = {"host": str(postgres.directory), "user": "elasticscan", "dbname": "postgres"}
    connection, text = connection_type().connect(**address, autocommit=True), "x" * 3_000_000
    answers = exchange(connection, [("SELECT $1::varchar", (text,))] * 8)
    assert [answer.scalar() == text for answer in answers] == [True] * 8
    connection.close()


def test_a_statement_that_is_refused_is_reported_and_those_behind_it_are_not_done(line: SeveredLine) -> None:
    connection = connect(line)
    exchange(connection, [("CREATE TEMPORARY TABLE t (n bigint)", ())])
    insert = ("INSERT INTO t VALUES ($1)", (1,))
    with pytest.raises(psycopg.errors.UndefinedTable, match="nowhere"):
        exchange(connection, [insert, ("SELECT * FROM nowhere", ()), insert])
    with pytest.raises(psycopg.DataError, match="NUL"):
        exchange(connection, [insert, ("SELECT $1::varchar", ("\0",))])
    assert exchange(connection, [("SELECT count(*) FROM t", ())])[0].scalar() == 0
    connection.close()


def test_a_message_whose_answers_end_amid_any_byte_is_an_error_and_never_a_part(line: SeveredLine) -> None:
    ends = 0
    for count in range(0, 1_000, 9):
        connection = connect(line)
        line.rest = count
        try:
            answers = exchange(connection, [("BEGIN", ()), (f"SELECT {TYPES}", VALUES), ("ROLLBACK", ())])
        except psycopg.OperationalError:
            ends += 1
            assert connection.closed
        else:
            assert tuple(answers[1].all()[0]) == VALUES
            break
        finally:
            line.rest = None
            connection.close()
    assert ends > 10, "it was cut in all its parts"


def test_what_the_server_said_before_it_ended_a_connection_is_reported(line: SeveredLine) -> None:
    connection = connect(line)
    with pytest.raises(psycopg.errors.AdminShutdown):
        exchange(connection, [("SELECT pg_terminate_backend(pg_backend_pid())", ())])
    connection.close()
