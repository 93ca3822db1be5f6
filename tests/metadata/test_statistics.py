"""Fragment statistics: what they keep."""

from __future__ import annotations

import pyarrow as pa

from elasticscan.base.key_encoding import encode_value
from elasticscan.metadata import Block, FragmentStatistics, pack_statistics, unpack_statistics


def key(value: int | None) -> bytes:
    return encode_value(pa.scalar(value, pa.int32()))


def test_statistics_survive_packing() -> None:
    blocks = (Block(key(0), key(30), 0), Block(key(30), key(50), 1))
    statistics = FragmentStatistics((30, 21), {"a": blocks})
    assert unpack_statistics(pack_statistics(statistics)) == statistics
    assert statistics.rows == 51
