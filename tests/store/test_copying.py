"""Whatever copies rows into new files proves them then, however lately a scan did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from elasticscan.base.errors import FragmentDamaged
from elasticscan.storage import BatchCache
from elasticscan.store import Store

ROWS = 50_000


def rows(value: int) -> pa.Table:
    return pa.table({"id": range(ROWS), "v": pa.array(np.full(ROWS, value))})


@pytest.mark.parametrize(
    "copy",
    [lambda store: store.move(store.context.placement().tablets[0].id, "s2"), lambda store: store.compact()],
    ids=["move", "compact"],
)
def test_damage_since_a_scan_is_not_copied(copy: Callable[[Store], object], tmp_path: Path) -> None:
    with Store.create(tmp_path / "a", ["s1", "s2"], tablets=4) as store:
        table = store.create_table("t", rows(0).schema, ["id"])
        table.upsert(rows(1))
        table.upsert(rows(2))
        store.context._batches = BatchCache(most_bytes=1)  # as if other batches had come since
        assert table.scan().to_table().num_rows == ROWS
        for file in tmp_path.glob("a/**/*.arrow"):
            content = file.read_bytes()
            for value in (1, 2):
                content = content.replace(
                    np.full(8_000, value).astype("<i8").tobytes(), np.full(8_000, 9).astype("<i8").tobytes()
                )
            file.write_bytes(content)
        with pytest.raises(FragmentDamaged, match="have changed since they were written"):
            copy(store)
