"""Answers to small questions: whole however they come, and an error where they do not come."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("psycopg", reason="pip install 'elasticscan[postgres]'")

from elasticscan.catalog import waiting
from elasticscan.catalog.waiting import answer, ask
from elasticscan.store import Store
from tests.base.postgres import Server
from tests.base.severed_line import BLOCK, SeveredLine

QUESTION = b"SELECT 7, NULL, 'a text that is longer than the others'"
ANSWER = [b"7", None, b"a text that is longer than the others"]


def connect(line: SeveredLine) -> object:
    return waiting.connection_type().connect(**line.address, autocommit=True)


def answer_to(connection: object, words: bytes) -> list[bytes | None]:
    ask(connection, words)
    return answer(connection)


@pytest.mark.parametrize("piece", [1, 2, 7, BLOCK])
def test_an_answer_is_whole_in_whatever_pieces_it_comes(line: SeveredLine, piece: int) -> None:
    connection = connect(line)
    line.piece = piece
    assert [answer_to(connection, QUESTION) for _ in range(3)] == [ANSWER] * 3
    connection.close()


def test_an_answer_that_ends_amid_any_byte_is_an_error_and_never_a_part(line: SeveredLine) -> None:
    ends = 0
    for count in range(0, 400, 2):
        connection = connect(line)
        line.rest = count
        try:
            came = answer_to(connection, QUESTION)
        except Exception:
            ends += 1
        else:
            assert came == ANSWER
            break
        finally:
            line.rest = None
            connection.close()
    assert ends > 40, "it was cut in all its parts"


def test_words_that_the_server_refuses_and_answers_of_no_row_are_errors(line: SeveredLine) -> None:
    for words in (b"SELECT nothing", b"SELECT 1 WHERE false", b"SELECT generate_series(1, 2)"):
        connection = connect(line)
        with pytest.raises(Exception, match=r"rows"):
            answer_to(connection, words)
        connection.close()


def test_a_silent_server_is_waited_for_no_longer_than_the_limit(
    line: SeveredLine, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(line)
    monkeypatch.setattr(waiting, "ANSWER_SECONDS", 0.2)
    with postgres.paused(), pytest.raises(TimeoutError, match=r"no answer for 0\.2 seconds"):
        answer_to(connection, QUESTION)
    connection.close()


def test_a_scan_goes_on_where_the_answers_to_its_looks_break_off(
    line: SeveredLine, postgres: Server, tmp_path: Path
) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False)])
    with postgres.database() as database:
        roots = {name: str(tmp_path / name) for name in "ab"}
        with Store.create(line.url(database), roots, tablets=4, slots=16) as store:
            store.create_table("t", schema, ["k"]).upsert(pa.table({"k": range(100)}, schema=schema))
            keys = list[int]()
            for number, page in enumerate(store.table("t").scan(page_rows=3)):
                keys += page.rows["k"].to_pylist()
                line.rest = number * 5 % 90
            line.rest = None
            assert sorted(keys) == list(range(100))
