"""Slots of rows: Spark's Murmur3 over whole Arrow columns.

`spark_hash` returns the same values as Spark's SQL function `hash(a, b, ...)`, so that Spark's own
`repartition(n, key)` and the store group rows in the same way. It is Murmur3 (x86, 32 bits) with three
rules of Spark's `Murmur3_x86_32` and `HashExpression`:

- The hash of one column is the seed of the next, and a null returns the seed unchanged.
- The one to three bytes after the last whole word of a string are mixed in one by one, each as a signed
  integer (`hashUnsafeBytes`), while the original Murmur3 packs them into a last word.
- Types of up to 32 bits hash as one word, longer ones as two, timestamps as microseconds, decimals of
  up to 18 digits as their unscaled long, longer ones as the fewest big-endian bytes that hold the value.

Columns are hashed in blocks that fit into a core's cache, which doubles the speed.

The machine must be little-endian, because Arrow stores values in its byte order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from elasticscan.base.errors import SchemaMismatch
from elasticscan.base.limits import MAX_SLOTS

Words = NDArray[np.uint32]
Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]

HASH = "spark"  # its name in a store's catalog and in the footers of files

SPARK_SEED = 42

_BLOCK_ROWS = 16_384
_FEW_ROWS = 32  # fewer rows than this are hashed one by one

_C1, _C2, _ADDED, _FINAL_1, _FINAL_2 = 0xCC9E2D51, 0x1B873593, 0xE6546B64, 0x85EBCA6B, 0xC2B2AE35
_MASK = 0xFFFFFFFF

_LARGE = {pa.large_string().id, pa.large_binary().id}
_BYTES = {pa.string().id, pa.binary().id, pa.binary(1).id, *_LARGE}
_PLAIN = (
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    *(pa.date32(), pa.timestamp("us"), pa.decimal128(1)),
)
_HASHED = _BYTES | {kind.id for kind in _PLAIN}


def spark_hash(columns: Sequence[pa.Array | pa.ChunkedArray], seed: int = SPARK_SEED) -> NDArray[np.int32]:
    """Compute Spark's `hash(columns...)` of every row, for one or several columns of equal length.

    Raises `SchemaMismatch` for a type that Spark does not hash as one value, and for a timestamp in
    seconds or milliseconds that does not fit Spark's microseconds.

    >>> spark_hash([pa.array([1], pa.int32())]).tolist()
    [-559580957]
    """
    assert columns, "a hash needs at least one column"
    rows = len(columns[0])
    assert all(len(column) == rows for column in columns), "hashed columns must be of equal length"
    running = np.full(rows, seed & _MASK, dtype=np.uint32)
    for column in columns:
        if column.type.id not in _HASHED:
            raise SchemaMismatch(
                f"a column of type {column.type} cannot be hashed as Spark does; use a whole number, date, "
                "timestamp, decimal, float, text or binary",
                type=str(column.type),
            )
        for start, block in _blocks(column):
            part = running[start : start + len(block)]
            there = block.is_valid().to_numpy(zero_copy_only=False) if block.null_count else True
            np.copyto(part, _fold(block, part), where=there)
    return running.view(np.int32)


def slots_of(columns: Sequence[pa.Array | pa.ChunkedArray], slots: int) -> NDArray[np.uint16]:
    """Return the slot of every row, `pmod(hash, slots)`; raises the same errors as `spark_hash`."""
    assert 1 <= slots <= MAX_SLOTS
    hashes = spark_hash(columns)
    # NumPy's floor division by a scalar is vectorised, its remainder is not. If the product overflows, the
    # subtraction overflows, too, so the remainder is right.
    hashes -= hashes // np.int32(slots) * np.int32(slots)
    return hashes.astype(np.uint16)


def _blocks(column: pa.Array | pa.ChunkedArray) -> Iterator[tuple[int, pa.Array]]:
    """Yield slices of at most `_BLOCK_ROWS` rows, never empty, each with the number of rows before it."""
    before = 0
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else (column,):
        for start in range(0, len(chunk), _BLOCK_ROWS):
            yield before + start, chunk.slice(start, _BLOCK_ROWS)
        before += len(chunk)


def raw_values(column: pa.Array, dtype: Any, per_row: int = 1) -> NDArray[Any]:
    """Return the values without a copy, as `per_row` numbers for each row; nulls have arbitrary numbers."""
    item = np.dtype(dtype).itemsize * per_row
    values = np.frombuffer(column.buffers()[1], dtype, len(column) * per_row, column.offset * item)
    values.setflags(write=False)  # Other columns may share this memory.
    return values


def _fold(block: pa.Array, running: Words) -> Words:
    """Return the hashes of a block, whose seeds are `running`."""
    if block.type.id in _BYTES:
        return _fold_bytes(*_bytes_of(block), running)
    if pt.is_decimal128(block.type) and block.type.precision > 18:
        return _fold_bytes(*_bytes_of_integers(block), running)
    words = _words_of(block)
    for word in words:
        running = _mix(running, word)
    return _finish(running, np.uint32(4 * len(words)))


def _rotate(x: Words, bits: int) -> Words:
    return x << np.uint32(bits) | x >> np.uint32(32 - bits)


def _mix(running: Words, word: Words) -> Words:
    mixed = running ^ _rotate(word * np.uint32(_C1), 15) * np.uint32(_C2)
    return _rotate(mixed, 13) * np.uint32(5) + np.uint32(_ADDED)


def _finish(running: Words, lengths: Words | np.uint32) -> Words:
    mixed = running ^ lengths
    mixed = (mixed ^ mixed >> np.uint32(16)) * np.uint32(_FINAL_1)
    mixed = (mixed ^ mixed >> np.uint32(13)) * np.uint32(_FINAL_2)
    return mixed ^ mixed >> np.uint32(16)


def _fold_bytes(data: Bytes, starts: Longs, lengths: Longs, running: Words) -> Words:
    """Mix in byte strings, which are ranges of `data`."""
    rows, length = len(lengths), int(lengths[0])
    if rows < _FEW_ROWS:
        places = zip(starts.tolist(), (starts + lengths).tolist(), running.tolist(), strict=True)
        running = np.array(
            [_mix_row(data[at:end].tobytes(), hashed) for at, end, hashed in places], np.uint32
        )
    elif (lengths == length).all():  # then they are at equal distances
        first, step, whole = int(starts[0]), int(starts[1] - starts[0]), length & ~3
        words = np.ndarray((rows, whole // 4), np.uint32, data.data, first, (step, 4))
        tails = np.ndarray((rows, length - whole), np.uint8, data.data, first + whole, (step, 1))
        for word in (*words.T, *map(_signed, tails.T)):
            running = _mix(running, word)
    else:
        running = _mix_ragged(data, starts, lengths, running)
    return _finish(running, lengths.astype(np.uint32))


def _mix_row(data: bytes, running: int) -> int:
    whole = len(data) & ~3
    for word in (
        *np.frombuffer(data[:whole], np.uint32).tolist(),
        *np.frombuffer(data[whole:], np.int8).tolist(),
    ):
        mixed = word * _C1 & _MASK
        running ^= (mixed << 15 | mixed >> 17) * _C2 & _MASK
        running = ((running << 13 | running >> 19) * 5 + _ADDED) & _MASK
    return running


def _mix_ragged(data: Bytes, starts: Longs, lengths: Longs, running: Words) -> Words:
    """Mix in byte strings of many lengths, the longest first.

    Rows of 11, 5, 8 and 2 bytes have 2, 1, 2 and 0 whole words, so they are sorted 11, 8, 5, 2:

        step 0    mixes word 0 of    11  8  5       active[0] = 3
        step 1    mixes word 1 of    11  8          active[1] = 2
        tails     of 3, 0, 1 and 2 bytes, each byte mixed in as a word of its own

    Rows that still have words are thus always the first ones, and a step is one call over a slice.
    """
    words = lengths >> 2
    most = int(words.max())
    narrow = np.uint16 if most < 1 << 16 else np.int64  # Stable sorts of 16 bits are radix sorts.
    order = np.argsort((most - words).astype(narrow), kind="stable")
    mixed, at, rest = running[order], starts[order], (lengths & 3)[order]
    word_at = np.ndarray(max(len(data) - 3, 0), np.uint32, data.data, strides=(1,))  # from any byte
    for active in np.searchsorted(-words[order], -np.arange(most)).tolist():
        mixed[:active] = _mix(mixed[:active], word_at[at[:active]])
        at[:active] += 4
    for byte in range(3):
        which = np.flatnonzero(rest > byte)
        mixed[which] = _mix(mixed[which], _signed(data[at[which] + byte]))
    hashes = np.empty_like(running)
    hashes[order] = mixed
    return hashes


def _signed(values: Bytes) -> Words:
    return values.view(np.int8).astype(np.int32).view(np.uint32)


def _bytes_of(block: pa.Array) -> tuple[Bytes, Longs, Longs]:
    """Return a buffer with the bytes of texts or binaries, where each begins in it, and how long it is."""
    if pt.is_fixed_size_binary(block.type):
        width, rows = block.type.byte_width, len(block)
        return raw_values(block, np.uint8, width), width * np.arange(rows), np.full(rows, width)
    _, ends, data = block.buffers()
    dtype = np.dtype(np.int64 if block.type.id in _LARGE else np.int32)
    offsets = np.frombuffer(ends, dtype, len(block) + 1, block.offset * dtype.itemsize).astype(np.int64)
    return np.frombuffer(b"" if data is None else data, np.uint8), offsets[:-1], np.diff(offsets)


def _bytes_of_integers(block: pa.Array) -> tuple[Bytes, Longs, Longs]:
    """Return decimals of more than 18 digits as the bytes of `BigInteger.toByteArray`.

    These are big-endian, with the fewest bytes for value and sign: 127 is `7f`, 128 is `00 80`, -128 is `80`.
    """
    halves = raw_values(block, np.int64, 2).reshape(-1, 2)
    negative = halves[:, 1] >> 63
    low, high = (halves[:, 0] ^ negative).view(np.uint64), (halves[:, 1] ^ negative).view(np.uint64)
    low[high != 0] = np.iinfo(np.uint64).max
    # One more byte for every 2**7, 2**15, ... reached: the top bit of the first byte is the sign.
    steps = np.uint64(1) << np.arange(7, 64, 8, dtype=np.uint64)
    lengths = 1 + np.searchsorted(steps, low, "right") + np.searchsorted(steps, high, "right")
    data = np.ascontiguousarray(halves.view(np.uint8)[:, ::-1]).reshape(-1)
    return data, 16 * np.arange(1, len(block) + 1) - lengths, lengths


def _words_of(block: pa.Array) -> Sequence[Words]:
    """Return plain values as the numbers to hash: one of 32 bits, or the low and the high half of 64."""
    kind = block.type
    if pt.is_decimal128(kind):
        quarters = raw_values(block, np.uint32, 4)
        return quarters[0::4], quarters[1::4]
    if pt.is_timestamp(kind):
        words = _microseconds(block).view(np.uint32)
    elif pt.is_floating(kind):
        with np.errstate(invalid="ignore"):  # for a signalling NaN
            values = raw_values(block, np.dtype(f"f{kind.bit_width // 8}")) + kind.to_pandas_dtype()(0)
        values[np.isnan(values)] = np.nan  # minus zero is zero now, and there is one NaN
        words = values.view(np.uint32)
    else:
        block = block.cast(pa.int32()) if kind.bit_width < 32 else block
        words = raw_values(block, np.uint32, block.type.bit_width // 32)
    return (words,) if len(words) == len(block) else (words[0::2], words[1::2])


def _microseconds(block: pa.Array) -> Longs:
    if block.type.unit == "ns":
        return raw_values(block, np.int64) // 1000
    try:
        return raw_values(block.cast(pa.timestamp("us", block.type.tz)), np.int64)
    except pa.ArrowInvalid as error:
        raise SchemaMismatch(
            f"A timestamp is too far away to be counted in microseconds, as its hash needs: {error}. "
            "Mend the row or leave it out.",
            type=str(block.type),
        ) from error
