"""Checks of inputs, left out one at a time: a test of the public behaviour finds each."""

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

# By the missing check: the planted change, and the test that finds it, with its fixture.
FAULTS = dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, Callable[[Store], None]]]()


def left_out(
    owner: Any, name: str, fixture: str, test: Callable[..., None], instead: Any = lambda *_, **__: None
) -> None:
    what = f"{owner.__name__.rpartition('.')[2]}.{name}"
    FAULTS[what] = (lambda patch: patch.setattr(owner, name, instead), fixture, test)


def _entered_at_once(context: Context, name: str, schema: pa.Schema, keys: list[str], *_: object) -> object:
    info = store_definitions.define_table(name, schema, keys)
    with context.catalog.writing() as tx:
        return enter(tx, replace(info, name=name))


LONG_KEY = test_limits.test_a_key_that_no_continuation_key_takes_is_refused_before_it_is_staged
left_out(ingest, "check_key_bytes", "limits_store", LONG_KEY)
NESTED = test_limits.test_a_definition_that_cannot_be_kept_is_refused_and_all_else_goes_on
nested = partial(NESTED, make=test_limits.add, what="more levels than Arrow writes")
left_out(definition, "_check_column", "limits_store", nested)
FIRST_WRITE = test_writing.test_a_missing_table_is_made_from_the_columns_and_as_asked
first_write = partial(FIRST_WRITE, asked={}, form="lz4")
left_out(writing, "reserve_table", "writing_store", first_write, _entered_at_once)
SLOW_WRITE = test_publishing.test_a_slow_write_says_what_became_of_the_parts_that_it_staged
slow_write = partial(SLOW_WRITE, harm="collected")
left_out(Context, "noticing_collection", "publishing_store", slow_write, lambda _: nullcontext())
text = partial(refused, name="Table.upsert", option="user_metadata", value={"a": "\ud800"})
left_out(arguments, "is_whole", "invalid_store", text, lambda _: True)
number = partial(refused, name="Store.collect_garbage", option="share", value=2)
left_out(arguments, "number", "invalid_store", number, lambda _, value, **__: value)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_check_that_is_left_out_is_noticed(request: pytest.FixtureRequest, fault: str) -> None:
    plant, fixture, test = FAULTS[fault]
    store = request.getfixturevalue(fixture)
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, ElasticScanError, pa.ArrowException, pytest.fail.Exception)):
            test(store)
