"""Statistics compared with plain Python: bounds hold for every value, and equal values have equal hashes."""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base import key_encoding
from elasticscan.base.key_encoding import NULL, can_be_sought, encode_value, index_hash, place_of, successor
from elasticscan.metadata import KEY_BYTES, TableInfo, unpack_statistics
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage.fragment import FragmentReader, fragment_schema
from elasticscan.storage.fragment_writer import Destination, write_fragment
from elasticscan.topology import SlotSet
from tests.base.examples import examples
from tests.storage.memory_disk import MemoryDisk
from tests.storage.versions import ORIGIN

_BYTES = st.binary(max_size=6) | st.sampled_from(
    (b"", b"\xff", b"\xff" * 31, b"\xff" * 32, b"\xff" * 60, b"\0" * 20, b"a" * 40, b"a" * 41)
)
_TEXTS = st.text(max_size=6) | st.sampled_from(
    ("", "\0", "a\0", "a\0b", "x" * 40, "x" * 40 + "a", "x" * 40 + "b", "\uffff" * 20)
)
TEXTS = {pa.string(): _TEXTS, pa.large_string(): _TEXTS, pa.binary(): _BYTES, pa.large_binary(): _BYTES}
DECIMALS = [pa.decimal128(38, 5), pa.decimal128(9, 2)]
DAY = {pa.time32("ms"): 86_399_999, pa.time64("ns"): 86_400 * 10**9 - 1}
OTHERS = [
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()),
    *(pa.date32(), pa.date64(), pa.timestamp("us"), pa.timestamp("ns", "UTC")),
    *(pa.binary(3), pa.binary(40), pa.binary(300)),
]


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if kind in TEXTS:
        return TEXTS[kind]
    if kind in DECIMALS:
        most = 10**kind.precision - 1
        wide = decimal.Context(prec=76)
        return st.integers(-most, most).map(lambda n: decimal.Decimal(n).scaleb(-kind.scale, wide))
    if kind in DAY:
        return st.integers(0, DAY[kind]).map(lambda n: pa.scalar(n, kind))
    if kind == pa.bool_():
        return st.booleans()
    if kind == pa.date64():
        return st.dates()
    # Random bits, so that there are NaN, both zeros and the largest and smallest numbers.
    width = kind.byte_width
    ends = [b"\0" * width, b"\xff" * width, b"\0" * (width - 1) + b"\x80", b"\xff" * (width - 1) + b"\x7f"]
    bits = st.binary(min_size=width, max_size=width) if width < 9 else st.sampled_from([b"a" * width])
    more = [b"a" * (width - 1) + b"b", b"\0" * (width - 1) + b"\x01"]
    if pa.types.is_floating(kind):  # a signalling NaN, for which NumPy's minima may return another NaN
        infinity = np.array([np.inf], kind.to_pandas_dtype()).view(f"u{width}")
        more.append((infinity + infinity.dtype.type(1)).tobytes())
    return (bits | st.sampled_from([*ends, *more])).map(
        lambda content: pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(content)])[0]
    )


TYPES = [*TEXTS, *DECIMALS, *DAY, *OTHERS]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 4)


@pytest.mark.parametrize("kind", TYPES, ids=str)
@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_blocks_bound_every_value_of_any_type_as_tightly_as_they_can(
    kind: pa.DataType, data: st.DataObject
) -> None:
    column = pa.array(data.draw(st.lists(st.none() | values_of(kind), min_size=1, max_size=15)), kind)
    hashes, own_keys = index_hash([column]).tolist(), list(map(encode_value, column))
    assert len({*zip(hashes, own_keys, strict=True)}) == len({*hashes}) == len({*own_keys})
    if can_be_sought(kind):
        order = sorted(range(len(column)), key=own_keys.__getitem__)
        check_places(column.take(pa.array(order)), sorted(own_keys), own_keys[0])
    table, disk = pa.schema([("a", kind), ("b", kind)]), MemoryDisk()
    schema = fragment_schema(table, versioned=False, tombstones=False)
    slots = pa.array(np.zeros(len(column), dtype=np.uint16))
    rows = pa.RecordBatch.from_arrays([column, column.slice(0), slots], schema=schema)
    info = TableInfo(1, "t", table, ("a",), ("a",), None, 0, 0)
    staged = write_fragment(Destination(disk, 1, ORIGIN), info, SlotSet.span(0, 1), [rows])
    statistics = unpack_statistics(staged.statistics)
    batches = [batch.column("a") for batch in FragmentReader(disk, staged.path, ["a"], staged.seal, info)]
    assert statistics.block_rows == tuple(len(batch) for batch in batches)
    assert sum(statistics.block_rows) == len(column)
    assert statistics.columns["b"] == statistics.columns["a"]
    for block, batch in zip(statistics.columns["a"], batches, strict=True):
        keys = sorted(key for key in map(encode_value, batch) if key != NULL)
        assert block.nulls == len(batch) - len(keys)
        if not keys:
            assert (block.low, block.high) == (b"", b"")
            continue
        assert all(block.low <= key < block.high for key in keys)
        assert block.low == keys[0][:KEY_BYTES]
        last = keys[-1]
        assert block.high == (last + b"\0" if len(last) <= KEY_BYTES else successor(last[:KEY_BYTES]))


def check_places(column: pa.Array, keys: Sequence[bytes], key: bytes) -> None:
    """Check that `place_of` finds keys, also cut ones, in an ascending column where their bytes sort."""
    column = pa.concat_arrays([column[:1], column, column[-1:]]).slice(1, len(column))
    cut = [key[:length] for length in range(len(key))]
    for sought in (*cut, key, key + b"\5", successor(key) if key > b"\0" else b"\1", b"\0\5", b"\2"):
        begin, end = place_of(column, sought)
        assert all(row < sought and not sought.startswith(row) for row in keys[:begin])
        assert all(row < sought and sought.startswith(row) for row in keys[begin:end])
        assert all(row >= sought for row in keys[end:])


def test_every_type_with_value_keys_that_a_table_may_have_is_tried() -> None:
    views = {pa.string_view().id, pa.binary_view().id}  # no table has such columns
    assert {kind.id for kind in TYPES} == set(key_encoding.ENCODERS) - views
