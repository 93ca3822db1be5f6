"""Names that an attached store does not have are reported with what to write."""

from __future__ import annotations

import pytest

from elasticscan.base.errors import UnknownName
from elasticscan.connector.sql.attached import AttachedStore
from elasticscan.connector.sql.methods import INSTEAD, TableNames, no_such_name

OWN = [name for name in dir(AttachedStore) if name[0] != "_"]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("query", "write catalog.sql(text)"),
        ("load_table", "write catalog.table(name).load()"),
        ("show_tables", "write catalog.tables, a tuple"),
        ("upsert", "catalog.sql('INSERT INTO …')"),
        ("trips", "write catalog.table('trips')"),
        ("explian", "write catalog.explain"),
    ],
)
def test_a_name_that_people_type_is_reported_with_the_one_there_is(typed: str, message: str) -> None:
    error = no_such_name(typed, OWN, ["trips"])
    assert isinstance(error, UnknownName)
    assert message in error.message


def test_any_other_name_is_a_plain_attribute_error() -> None:
    for name in ("nonsense", "_sql_", "__array__", "_repr_json_"):
        assert type(no_such_name(name, OWN, ["trips"])) is AttributeError


def test_no_name_that_there_is_is_reported_of() -> None:
    assert INSTEAD.keys() & set(OWN) == set()


def test_an_attached_store_that_is_only_begun_has_the_same_errors() -> None:
    begun = AttachedStore.__new__(AttachedStore)
    with pytest.raises(UnknownName, match=r"write catalog\.sql"):
        begun.query  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(UnknownName, match=r"catalog.table\('t'\)"):
        begun["t"]  # type: ignore[call-overload]
    assert not hasattr(begun, "_views")


def test_names_of_tables_are_a_tuple_that_may_be_called_as_the_method_of_a_store() -> None:
    names = TableNames(["cities", "trips"])
    assert names == ("cities", "trips") == names()
