"""Index runs: what is known of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from elasticscan.base.key_encoding import (
    encode_values,
)
from elasticscan.metadata import HASH, KEY_BYTES, StagedRun, unpack_histogram
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage.indexes import run as index_run
from elasticscan.storage.indexes.run import RunReader, build_runs
from tests.base.examples import examples
from tests.storage.indexed import Indexed
from tests.storage.versions import ORIGIN, SEEDS, Version


@pytest.fixture(autouse=True)
def _small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 4)
    monkeypatch.setattr(index_run, "BATCH_ROWS", 3)
    monkeypatch.setattr(index_run, "RUN_ROWS", 7)


def readers(indexed: Indexed, runs: tuple[StagedRun, ...]) -> list[RunReader]:
    return [RunReader(indexed.disk, indexed.table, indexed.index, run) for run in runs]


def everything(reader: RunReader) -> pa.RecordBatch:
    return reader.take(np.arange(reader.entries), reader.columns)


def filled(seed: int) -> Indexed:
    """A table of one fragment with several versions of some rows, and tombstones."""
    indexed = Indexed(seed, style="mixed")
    rng, shelf = indexed.rng, indexed.shelf
    versions = [
        Version(
            key, commit, None if rng.random() < 0.2 else "", shelf.slot_of(key), indexed.some_values(True)
        )
        for key in indexed.slots
        for commit in (1, 2)
        if commit == 1 or rng.random() < 0.5
    ]
    shelf.fragments.clear()
    shelf.add(versions)
    return indexed


@settings(max_examples=examples(40), deadline=None)
@given(SEEDS)
def test_the_histogram_of_a_run_is_exact(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_run, "RUN_ROWS", 1 << 20)
        patch.setattr(index_run, "HISTOGRAM_STEPS", 5)
        indexed = filled(seed)
        (staged,) = build_runs(indexed.disk, indexed.table, indexed.index, indexed.fragments[0], ORIGIN)
    histogram = unpack_histogram(staged.histogram)
    (run,) = readers(indexed, (staged,))
    names = ("_hash",) if indexed.index.kind == HASH else indexed.index.columns
    columns = [everything(run).column(name) for name in names]
    keys = [encode_values(columns, row) for row in range(run.entries)]
    assert histogram.rows == staged.rows == len(keys)
    assert histogram.distinct == tuple(
        len({encode_values(columns[:count], row) for row in range(run.entries)})
        for count in range(1, len(columns) + 1)
    )
    assert len(histogram.bounds) == (min(6, max(2, len(keys))) if keys else 0)
    if keys:
        assert (histogram.bounds[0], histogram.bounds[-1]) == (keys[0][:KEY_BYTES], keys[-1][:KEY_BYTES])
        steps = np.linspace(0, len(keys) - 1, len(histogram.bounds))
        assert list(histogram.bounds) == [keys[int(at)][:KEY_BYTES] for at in steps]
