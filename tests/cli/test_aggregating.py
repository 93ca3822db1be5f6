"""aggregate."""

from __future__ import annotations

import json
from typing import Any

import pytest

Shell = Any


def test_groups_come_in_their_order_as_a_table_or_as_json(shell: Shell, uri: str) -> None:
    asked = ("aggregate", uri, "t", "count(*)", "max(id) AS last", "--by", "name", "--filter", "id < 100")
    groups = [json.loads(line) for line in shell.ok(*asked, "--json").splitlines()]
    assert sum(group["count(*)"] for group in groups) == 100
    assert [group["name"] for group in groups] == sorted({group["name"] for group in groups})
    assert max(group["last"] for group in groups) == 99
    assert f"{len(groups)} groups." in shell.ok(*asked)


def test_without_groups_there_is_one_row_also_of_an_empty_snapshot(shell: Shell, uri: str) -> None:
    message = shell.ok("aggregate", uri, "t", "count(*) AS c", "sum(id) AS s", "--snapshot", "1", "--json")
    assert json.loads(message) == {"c": 0, "s": None}
    assert "All rows as one group." in shell.ok("aggregate", uri, "t", "count(*)")


@pytest.mark.parametrize("words", [["median(id)"], ["sum(ids)"], ["count(*)", "--by", "x"]])
def test_what_there_is_not_is_an_error_of_the_call(shell: Shell, uri: str, words: list[str]) -> None:
    assert shell.fails("aggregate", uri, "t", *words)[0] == 2
