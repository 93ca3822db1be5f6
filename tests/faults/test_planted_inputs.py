"""Checks on what comes in, left out one at a time: a test of what a user would see notices each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import ElasticScanError
from elasticscan.connector import writing
from elasticscan.storage import definition, ingest
from elasticscan.store import Store, arguments
from elasticscan.store.context import Context
from elasticscan.store.writing import definitions as store_definitions
from elasticscan.store.writing.definitions import enter
from tests.connector import test_writing
from tests.connector.conftest import store as writing_store  # noqa: F401 - a fixture
from tests.store import test_limits
from tests.store.test_invalid_arguments import place, refused  # noqa: F401 - a fixture
from tests.store.test_invalid_arguments import store as invalid_store  # noqa: F401 - a fixture
from tests.store.test_limits import store as limits_store  # noqa: F401 - a fixture
from tests.store.writing import test_publishing
from tests.store.writing.test_publishing import store as publishing_store  # noqa: F401 - a fixture

Patch = pytest.MonkeyPatch
# What is left out, and the test that notices, with the fixture that it takes.
FAULTS: list[tuple[Callable[[Patch], None], str, Callable[[Store], None]]] = []


def noticed_by(fixture: str, test: Callable[..., None], **given: object) -> Callable[..., Any]:
    def enter(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        FAULTS.append((plant, fixture, partial(test, **given)))
        return plant

    return enter


LONG_KEY = test_limits.test_a_key_that_no_continuation_key_takes_is_refused_before_it_is_staged


@noticed_by("limits_store", LONG_KEY)
def key_length_not_checked(patch: Patch) -> None:
    patch.setattr(ingest, "check_key_bytes", lambda *_: None)


NESTED = test_limits.test_a_definition_that_cannot_be_kept_is_refused_and_all_else_goes_on


@noticed_by("limits_store", NESTED, make=test_limits.add, what="more levels than Arrow writes")
def depth_not_checked(patch: Patch) -> None:
    patch.setattr(definition, "_check_limits", lambda _: None)


@noticed_by("writing_store", test_writing.test_a_first_write_that_fails_leaves_no_table, overwrite=False)
def table_made_before_its_rows(patch: Patch) -> None:
    def at_once(context: object, name: str, schema: pa.Schema, keys: list[str], *_: object) -> object:
        info = store_definitions.define_table(name, schema, keys)
        with context.catalog.writing() as tx:  # type: ignore[attr-defined]
            return enter(tx, replace(info, name=name))

    patch.setattr(writing, "reserve_table", at_once)


SLOW_WRITE = test_publishing.test_a_slow_write_says_what_became_of_the_parts_that_it_staged


@noticed_by("publishing_store", SLOW_WRITE, harm="collected")
def collection_not_noticed_while_staging(patch: Patch) -> None:
    patch.setattr(Context, "noticing_collection", lambda _: nullcontext())


@noticed_by("invalid_store", refused, name="Store.elasticity", option="on_progress", value=7)
def callback_not_checked(patch: Patch) -> None:
    patch.setattr(arguments, "callback", lambda *_: None)


@noticed_by("invalid_store", refused, name="Table.upsert", option="user_metadata", value={"a": "\ud800"})
def text_that_cannot_be_encoded(patch: Patch) -> None:
    patch.setattr(arguments, "is_whole", lambda _: True)


@noticed_by("invalid_store", refused, name="Store.collect_garbage", option="share", value=2)
def range_not_checked(patch: Patch) -> None:
    patch.setattr(arguments, "number", lambda _, value, **__: value)


@pytest.mark.parametrize(
    ("plant", "fixture", "test"), [pytest.param(*fault, id=fault[0].__name__) for fault in FAULTS]
)
def test_a_check_that_is_left_out_is_noticed(
    request: pytest.FixtureRequest,
    plant: Callable[[Patch], None],
    fixture: str,
    test: Callable[[Store], None],
) -> None:
    store = request.getfixturevalue(fixture)
    with Patch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, ElasticScanError, pa.ArrowException, pytest.fail.Exception)):
            test(store)
