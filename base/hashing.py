"""Slots of rows: Spark's Murmur3 over whole Arrow columns.

`spark_hash` gives what Spark's SQL function `hash(a, b, ...)` gives, so that Spark's own
`repartition(n, key)` and the store send a row to the same place. It is Murmur3 (x86, 32 bits) with
three habits of Spark's `Murmur3_x86_32` and `HashExpression`:

- The hash of one column is the seed of the next, and a null passes the seed through.
- The one to three bytes left over behind the last whole word of a string are mixed in one by one,
  each as a signed integer (`hashUnsafeBytes`), not packed into a last word as Murmur3 proper does.
- Types of up to 32 bits hash as one word, longer ones as two, timestamps as microseconds, decimals of
  up to 18 digits as their unscaled long, longer ones as the fewest big-endian bytes that hold the value.

All work is done in blocks small enough to stay in a core's cache: that alone doubles the speed.

Arrow keeps its values in the machine's byte order, which is taken to be little-endian.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elasticscan.base.errors import InvalidKey, SchemaMismatch
from elasticscan.base.limits import MAX_SLOTS

Words = NDArray[np.uint32]
Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]

HASH = "spark"  # its name in a store's catalog and in the footers of files

SPARK_SEED = 42

_BLOCK_ROWS = 16_384
_FEW_ROWS = 32  # fewer rows than this are hashed one by one

_C1 = np.uint32(0xCC9E2D51)
_C2 = np.uint32(0x1B873593)
_ADDED = np.uint32(0xE6546B64)
_FIVE = np.uint32(5)
_FINAL_1 = np.uint32(0x85EBCA6B)
_FINAL_2 = np.uint32(0xC2B2AE35)


# ------------------------------------------------------------------------------------ the surface


def spark_hash(columns: Sequence[pa.Array | pa.ChunkedArray], seed: int = SPARK_SEED) -> NDArray[np.int32]:
    """Compute Spark's `hash(columns...)` of every row, for one or several columns of equal length.

    Raises `SchemaMismatch` for a type that Spark would not hash as one value, and `InvalidKey` for a
    timestamp in seconds or milliseconds so far away that Spark's microseconds cannot hold it.

    >>> spark_hash([pa.array([1], pa.int32())]).tolist()
    [-559580957]
    """
    assert columns, "a hash needs at least one column"
    rows = len(columns[0])
    assert all(len(column) == rows for column in columns), "hashed columns must be of equal length"
    folds = [_fold_of(column.type) for column in columns]
    running = np.full(rows, seed & 0xFFFFFFFF, dtype=np.uint32)
    scratch = np.empty((2, min(rows, _BLOCK_ROWS)), dtype=np.uint32)
    for column, fold in zip(columns, folds, strict=True):
        for start, block in _blocks(column):
            part = running[start : start + len(block)]
            if block.null_count:
                before = part.copy()
                fold(block, part, scratch)
                np.copyto(part, before, where=pc.is_null(block).to_numpy(zero_copy_only=False))
            else:
                fold(block, part, scratch)
    return running.view(np.int32)


def slots_of(columns: Sequence[pa.Array | pa.ChunkedArray], slots: int) -> NDArray[np.uint16]:
    """Return the slot of every row, `pmod(hash, slots)`; raises as `spark_hash`."""
    assert 1 <= slots <= MAX_SLOTS
    hashes = spark_hash(columns)
    # NumPy's floor division by a scalar is vectorised and its remainder is not. The product may
    # wrap around; so does the subtraction, back to the right remainder.
    hashes -= hashes // np.int32(slots) * np.int32(slots)
    return hashes.astype(np.uint16)


# ------------------------------------------------------------------------------- columns to blocks


def _blocks(column: pa.Array | pa.ChunkedArray) -> Iterator[tuple[int, pa.Array]]:
    """Yield slices of at most `_BLOCK_ROWS` rows, never empty, each with the number of rows before it."""
    before = 0
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else (column,):
        for start in range(0, len(chunk), _BLOCK_ROWS):
            yield before + start, chunk.slice(start, _BLOCK_ROWS)
        before += len(chunk)


def raw_values(column: pa.Array, dtype: Any, per_row: int = 1) -> NDArray[Any]:
    """Return the values without a copy, `per_row` numbers each; nulls have arbitrary numbers."""
    item = np.dtype(dtype).itemsize * per_row
    values = np.frombuffer(column.buffers()[1], dtype, len(column) * per_row, column.offset * item)
    values.setflags(write=False)  # Arrow's memory is shared with all holders of the column.
    return values


# ------------------------------------------------------------------------------- Murmur3, in place


def _rotate(x: Words, bits: int, spare: Words) -> None:
    np.right_shift(x, np.uint32(32 - bits), out=spare)
    np.left_shift(x, np.uint32(bits), out=x)
    np.bitwise_or(x, spare, out=x)


def _mix(running: Words, word: Words, scratch: Words) -> None:
    k, spare = scratch[0, : len(word)], scratch[1, : len(word)]
    np.multiply(word, _C1, out=k)
    _rotate(k, 15, spare)
    np.multiply(k, _C2, out=k)
    np.bitwise_xor(running, k, out=running)
    _rotate(running, 13, spare)
    np.multiply(running, _FIVE, out=running)
    np.add(running, _ADDED, out=running)


def _finish(running: Words, length: int | Words, scratch: Words) -> None:
    spare = scratch[0, : len(running)]
    np.bitwise_xor(running, np.uint32(length) if isinstance(length, int) else length, out=running)
    for bits, factor in ((16, _FINAL_1), (13, _FINAL_2)):
        np.right_shift(running, np.uint32(bits), out=spare)
        np.bitwise_xor(running, spare, out=running)
        np.multiply(running, factor, out=running)
    np.right_shift(running, np.uint32(16), out=spare)
    np.bitwise_xor(running, spare, out=running)


def _fold_words(block: pa.Array, running: Words, scratch: Words) -> None:
    parts = _words_of(block)
    for part in parts:
        _mix(running, part, scratch)
    _finish(running, 4 * len(parts), scratch)


def _fold_texts(block: pa.Array, running: Words, scratch: Words) -> None:
    _, ends, data = block.buffers()
    large = pa.types.is_large_string(block.type) or pa.types.is_large_binary(block.type)
    dtype = np.dtype(np.int64 if large else np.int32)
    offsets = np.frombuffer(ends, dtype, len(block) + 1, block.offset * dtype.itemsize).astype(np.int64)
    data = np.frombuffer(b"" if data is None else data, np.uint8)[offsets[0] : offsets[-1]]
    lengths = np.diff(offsets)
    length = int(lengths[0])
    if (lengths == length).all():
        _fold_equal(data.reshape(len(block), length), running, scratch)
    else:
        _fold_ragged(data, offsets[:-1] - offsets[0], lengths, running, scratch)


def _fold_fixed_size_binary(block: pa.Array, running: Words, scratch: Words) -> None:
    width = block.type.byte_width
    _fold_equal(raw_values(block, np.uint8, width).reshape(len(block), width), running, scratch)


def _fold_big_decimals(block: pa.Array, running: Words, scratch: Words) -> None:
    """Fold in decimals of over 18 digits as the bytes of `BigInteger.toByteArray`.

    These are big-endian, and as few as hold value and sign: 127 is `7f`, 128 is `00 80`, -128 is `80`.
    """
    halves = raw_values(block, np.int64, 2).reshape(-1, 2)
    negative = halves[:, 1] >> 63
    low, high = (halves[:, 0] ^ negative).view(np.uint64), (halves[:, 1] ^ negative).view(np.uint64)
    low[high != 0] = np.iinfo(np.uint64).max
    # One more byte for every 2**7, 2**15, ... reached: the top bit of the first byte is the sign.
    steps = np.uint64(1) << np.arange(7, 64, 8, dtype=np.uint64)
    lengths = 1 + np.searchsorted(steps, low, "right") + np.searchsorted(steps, high, "right")
    data = np.ascontiguousarray(halves.view(np.uint8)[:, ::-1]).reshape(-1)
    _fold_ragged(data, 16 * np.arange(1, len(block) + 1) - lengths, lengths, running, scratch)


def _fold_equal(rows: Bytes, running: Words, scratch: Words) -> None:
    """Fold in byte strings of one length, the rows of a matrix; every step takes a column of words."""
    length = rows.shape[1]
    whole = length & ~3
    if whole:
        words = np.array(rows[:, :whole], order="C").view(np.uint32)
        if len(rows) < _FEW_ROWS:
            for row in range(len(rows)):
                running[row] = _fold_row(words[row], int(running[row]))
        else:
            for column in range(whole // 4):
                _mix(running, words[:, column], scratch)
    for column in range(whole, length):
        _mix(running, _signed_words(rows[:, column]), scratch)
    _finish(running, length, scratch)


def _fold_row(words: Words, running: int) -> int:
    """Fold in the words of one row: a NumPy step over a few rows costs as much as 30 words here."""
    k = words * _C1
    _rotate(k, 15, np.empty_like(k))
    for word in (k * _C2).tolist():
        running ^= word
        running = ((running << 13 | running >> 19) * 5 + 0xE6546B64) & 0xFFFFFFFF
    return running


def _fold_ragged(data: Bytes, starts: Longs, lengths: Longs, running: Words, scratch: Words) -> None:
    """Fold in byte strings of many lengths, the longest first.

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
    hashes, position, lengths = running[order], starts[order], lengths[order]
    active = np.searchsorted(words[order] * -1, -np.arange(most))
    # A word that begins at any byte is cut out of the two aligned words around it, side by side in 64 bits.
    # Of the bytes 00 01 02 .. 07 (pair 07060504_03020100) the word at byte 3 is the pair >> 24: 06050403.
    aligned = np.zeros(len(data) // 4 + 3, dtype=np.uint32)
    aligned.view(np.uint8)[: len(data)] = data
    pairs = aligned[1:].astype(np.uint64)
    pairs <<= np.uint64(32)
    pairs |= aligned[:-1]
    at, shift = position >> 2, ((position & 3) << 3).astype(np.uint64)
    together = int(np.searchsorted(-active, -_FEW_ROWS, "right"))  # steps with at least _FEW_ROWS rows
    for count in active[:together].tolist():
        pair = pairs.take(at[:count])
        pair >>= shift[:count]
        _mix(hashes[:count], pair.astype(np.uint32), scratch)
        at[:count] += 1
    for row in range(int(active[together]) if together < most else 0):
        first, end = position[row] + 4 * together, position[row] + (lengths[row] & ~3)
        hashes[row] = _fold_row(np.frombuffer(data[first:end].tobytes(), np.uint32), int(hashes[row]))
    rest = lengths & 3
    tail = position + lengths - rest
    for byte in range(3):
        which = np.flatnonzero(rest > byte)
        some = hashes[which]
        _mix(some, _signed_words(data[tail[which] + byte]), scratch)
        hashes[which] = some
    _finish(hashes, lengths.astype(np.uint32), scratch)
    running[order] = hashes


# ----------------------------------------------------------------------- values as words, by type


def _signed_words(values: NDArray[Any]) -> Words:
    signed = values.view(np.dtype(f"i{values.dtype.itemsize}"))
    return signed.astype(np.int32, copy=False).view(np.uint32)


def _words_of(block: pa.Array) -> Sequence[Words]:
    """Return the numbers as which plain values hash: one of 32 bits, or the low and the high half of 64."""
    kind = block.type
    if pa.types.is_decimal128(kind):
        quarters = raw_values(block, np.uint32, 4)
        return quarters[0::4], quarters[1::4]
    if pa.types.is_timestamp(kind):
        words = _microseconds(block).view(np.uint32)
    elif pa.types.is_floating(kind):
        with np.errstate(invalid="ignore"):  # of a signalling NaN
            values = raw_values(block, np.dtype(f"f{kind.bit_width // 8}")) + kind.to_pandas_dtype()(0)
        values[np.isnan(values)] = np.nan  # minus zero is zero now, and there is one NaN
        words = values.view(np.uint32)
    else:
        small = kind.bit_width < 32
        words = raw_values(
            block.cast(pa.int32()) if small else block, np.uint32, 2 if kind.bit_width == 64 else 1
        )
    return (words,) if len(words) == len(block) else (words[0::2], words[1::2])


def _microseconds(block: pa.Array) -> Longs:
    if block.type.unit == "ns":
        return raw_values(block, np.int64) // 1000
    try:
        return raw_values(block.cast(pa.timestamp("us", block.type.tz)), np.int64)
    except pa.ArrowInvalid as error:
        raise InvalidKey(
            f"A timestamp is too far away to be counted in microseconds, as its hash needs: {error}. "
            "Mend the row or leave it out.",
            type=str(block.type),
        ) from error


Fold = Callable[[pa.Array, Words, Words], None]

_PLAIN = (
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    *(pa.date32(), pa.timestamp("us"), pa.decimal128(1)),
)
_FOLDS: dict[int, Fold] = {
    **{kind.id: _fold_words for kind in _PLAIN},
    **{kind.id: _fold_texts for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())},
    pa.binary(1).id: _fold_fixed_size_binary,
}


def _fold_of(kind: pa.DataType) -> Fold:
    if pa.types.is_decimal128(kind) and kind.precision > 18:
        return _fold_big_decimals
    if kind.id not in _FOLDS:
        raise SchemaMismatch(
            f"a column of type {kind} cannot be hashed as Spark does; use a whole number, date, timestamp, "
            "decimal, float, text or binary",
            type=str(kind),
        )
    return _FOLDS[kind.id]
