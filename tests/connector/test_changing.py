"""DELETE, UPDATE and MERGE are cut at the right words, or refused with what was expected where."""

from __future__ import annotations

import pytest

from elasticscan.connector.sql.changing import DELETE, INSERT, UPDATE, RowChange, Target, read_change
from elasticscan.connector.sql.statements import statement_about
from elasticscan.connector.sql.tokens import NotUnderstoodError

TRIPS = Target("trips", ("day", "id", "km", "to"), ("day", "id"))
ON = "ON t.day = s.day AND t.id = s.id"


def read(text: str, target: Target = TRIPS) -> RowChange:
    statement = statement_about(text, [target.view])
    assert statement is not None
    return read_change(statement.kind, statement.reader, target)


def test_a_delete_reads_keys_alone() -> None:
    change = read("DELETE FROM trips AS t WHERE t.km > 3 -- far\n;")
    assert change.query == (
        "SELECT `t`.`day` AS `day`, `t`.`id` AS `id`, 0 AS _elasticscan_action FROM `trips` AS `t` "
        "WHERE (t.km > 3\n)"
    )
    assert change.actions == (DELETE,)
    assert " WHERE" not in read("DELETE FROM trips").query


def test_an_update_takes_the_words_between_commas_and_keywords() -> None:
    change = read(
        "UPDATE trips SET km = CASE WHEN km > 1, 2 THEN 3 END, trips.`to` = concat('a, b WHERE', `to`) "
        "/* , km = 4 */ WHERE id IN (SELECT id FROM x WHERE a = 1)"
    )
    assert change.set == {"km": "CASE WHEN km > 1, 2 THEN 3 END", "to": "concat('a, b WHERE', `to`)"}
    assert change.query.endswith("WHERE (id IN (SELECT id FROM x WHERE a = 1)\n)")
    assert read("UPDATE trips SET km = DEFAULT").query.count("NULL AS `km`") == 1


def test_a_merge_joins_no_more_than_its_clauses_need() -> None:
    kinds = {
        "WHEN MATCHED THEN DELETE": " INNER JOIN ",
        "WHEN NOT MATCHED THEN INSERT *": " RIGHT JOIN ",
        "WHEN NOT MATCHED BY SOURCE THEN DELETE": " LEFT JOIN ",
        "WHEN NOT MATCHED BY TARGET THEN INSERT * WHEN NOT MATCHED BY SOURCE THEN DELETE": " FULL JOIN ",
    }
    for clauses, join in kinds.items():
        assert join in read(f"MERGE INTO trips t USING s {ON} {clauses}").query


def test_the_clauses_of_a_merge_are_numbered_in_order() -> None:
    change = read(
        f"MERGE INTO trips t USING (SELECT * FROM x) s(day, id, far) {ON} "
        "WHEN MATCHED AND CASE WHEN far > 1 THEN TRUE END THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET km = far, t.`to` = DEFAULT "
        "WHEN NOT MATCHED THEN INSERT (day, id, km) VALUES (s.day, s.id, far)"
    )
    assert change.actions == (DELETE, UPDATE, INSERT)
    assert "AND (CASE WHEN far > 1 THEN TRUE END\n) THEN 0" in change.query
    assert "CASE _elasticscan_action WHEN 1 THEN (far\n) WHEN 2 THEN (far\n) END AS `km`" in change.query


@pytest.mark.parametrize(
    ("on", "insert", "absent"),
    [
        ("t.day = s.day AND t.id = s.id", "*", True),
        ("(s.id = t.ID AND (t.day) = s.day)", "*", True),
        ("s.ID = t.id AND `s`.day = `t`.`day`", "*", True),
        ("t.day = s.day", "*", False),
        ("t.day = s.day AND t.id = s.id AND t.km > 3", "*", False),
        ("t.day = s.day AND t.id = s.id OR t.km > 3", "*", False),
        ("t.day = s.day AND t.id = s.id + 1", "*", False),
        ("t.day <=> s.day AND t.id = s.id", "*", False),
        ("t.day = s.day AND t.id = s.id", "(day, id) VALUES (s.day, s.id)", True),
        ("t.day = s.day AND t.id = s.id", "(id, day) VALUES (s.id + 1, s.day)", False),
        ("t.day = s.day AND t.id = s.id", "(day) VALUES (s.day)", False),
    ],
)
def test_a_merge_inserts_only_keys_that_on_has_compared(on: str, insert: str, absent: bool) -> None:
    text = f"MERGE INTO trips t USING s ON {on} WHEN NOT MATCHED THEN INSERT {insert}"
    if absent:
        read(text)
        return
    with pytest.raises(NotUnderstoodError, match="might insert an existing key"):
        read(text)


def test_a_merge_may_write_the_key_that_on_has_compared() -> None:
    read(f"MERGE INTO trips t USING s {ON} WHEN MATCHED THEN UPDATE SET *")
    read(f"MERGE INTO trips t USING s {ON} WHEN MATCHED THEN UPDATE SET id = s.id, km = 1")
    read("MERGE INTO trips t USING s FOR VERSION AS OF 'x' AS y ON t.id = y.id WHEN MATCHED THEN DELETE")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("UPDATE trips SET", "it ends where a name was expected"),
        ("UPDATE trips SET km 3", "= was expected at '3'"),
        ("UPDATE trips SET km = 1, km = 2", "column km is set twice"),
        ("UPDATE trips SET km = (1 WHERE id = 2", "it ends within parentheses"),
        ("UPDATE trips SET km = 1) WHERE id = 2", "more was expected at '\\)'"),
        ("UPDATE trips SET mile = 1", "no column mile; it has day, id, km, to"),
        ("UPDATE trips SET trips.km.x = 1", "trips.km.x is not a column; assign to whole columns"),
        ("UPDATE trips SET id = 1", "column id belongs to the primary key; insert rows"),
        (
            "DELETE FROM trips FOR TIMESTAMP AS OF '2026-01-01' WHERE id = 1",
            "its end was expected at 'TIMESTAMP'",
        ),
        ("MERGE INTO trips VERSION AS OF 'tag' USING s ON a", "USING was expected at 'AS'"),
        ("DELETE FROM trips t u WHERE id = 1", "its end was expected at 'u'"),
        ("MERGE INTO trips USING s", "it ends where ON was expected"),
        ("MERGE INTO trips USING (SELECT 1) ON a", "a name for the source was expected at 'ON'"),
        ("MERGE INTO trips USING s ON a = b", "it ends where WHEN was expected"),
        (f"MERGE INTO trips t USING s {ON} WHEN MATCHED THEN INSERT *", "UPDATE SET or DELETE was expected"),
        (f"MERGE INTO trips t USING s {ON} WHEN NOT MATCHED THEN DELETE", "INSERT was expected at 'DELETE'"),
        (
            f"MERGE INTO trips t USING s {ON} WHEN NOT MATCHED THEN INSERT (day, id) VALUES (1)",
            ", was expected",
        ),
        (
            f"MERGE INTO trips t USING s {ON} WHEN NOT MATCHED THEN INSERT (id) VALUES (1, 2)",
            "\\) was expected",
        ),
        (f"MERGE INTO trips t USING s {ON} WHEN NOT MATCHED THEN INSERT (id, ID) VALUES (1, 2)", "twice"),
        (
            f"MERGE INTO trips t USING s {ON} WHEN MATCHED THEN UPDATE SET id = 1",
            "belongs to the primary key",
        ),
        (
            "MERGE INTO trips t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *",
            "day belongs to the prim",
        ),
    ],
)
def test_what_is_no_such_statement_is_refused_with_what_was_expected(text: str, why: str) -> None:
    with pytest.raises(NotUnderstoodError, match=why):
        read(text)


def test_words_of_refused_clauses_may_be_names_and_operators() -> None:
    change = read(
        "UPDATE trips SET km = CAST(id IS DISTINCT FROM 3 AS INT), to = id IS DISTINCT FROM 4 WHERE true"
    )
    assert change.set is not None and change.set["to"] == "id IS DISTINCT FROM 4"
    assert "limit > 3" in read("DELETE FROM trips WHERE limit > 3 AND id IN (SELECT id FROM x LIMIT 2)").query
    assert "`trips`.limit < 4" in read("DELETE FROM trips WHERE `trips`.limit < 4").query


def test_rows_that_a_merge_only_deletes_may_be_met_several_times() -> None:
    once = read(f"MERGE INTO trips t USING s {ON} WHEN MATCHED THEN DELETE").query
    assert once.startswith("SELECT DISTINCT CASE")
    more = read(
        f"MERGE INTO trips t USING s {ON} WHEN MATCHED AND km > 3 THEN DELETE WHEN MATCHED THEN DELETE"
    )
    assert "DISTINCT" not in more.query
