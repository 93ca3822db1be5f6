"""Newest versions of rows: which are, without a look at commits that need not be known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from elasticscan.metadata import Bounds, Fragment
from elasticscan.storage import lookup
from elasticscan.storage.lookup import Candidates, newest
from tests.storage.versions import KEY_KINDS, Shelf, Version, table_of

AT_NINE = Bounds(0, 9)


def shelf_of(*fragments: dict[int, int]) -> Shelf:
    """Fragments, each with some keys and their commits."""
    shelf = Shelf(table_of(KEY_KINDS["int"]), 4)
    for commits in fragments:
        shelf.add([Version((key,), at, f"{at}", shelf.slot_of((key,))) for key, at in commits.items()])
    return shelf


def candidates_of(shelf: Shelf, fragment: Fragment) -> Candidates:
    """All rows of a fragment."""
    versions = shelf.contents[fragment.id]
    slots = np.array([version.slot for version in versions], dtype=np.uint16)
    keys = pa.array([version.key[0] for version in versions], shelf.table.schema.field("k").type)
    return Candidates(fragment, np.arange(len(versions)), slots, [keys])


def newest_keys(shelf: Shelf, groups: Sequence[Candidates], bounds: Bounds = AT_NINE) -> list[list[int]]:
    """The keys whose rows count, for each group."""
    source = shelf.source()
    masks = newest(groups, shelf.fragments, bounds, lambda fragment: source.open(fragment, ("k",)))
    return [
        sorted(group.keys[0].filter(pa.array(mask)).to_pylist())
        for group, mask in zip(groups, masks, strict=True)
    ]


def test_versions_of_fragments_whose_commits_overlap_are_compared_one_by_one() -> None:
    shelf = shelf_of({1: 1, 2: 5, 3: 1}, {1: 3, 2: 3, 4: 3}, {3: 4, 4: 2})
    groups = [candidates_of(shelf, fragment) for fragment in shelf.fragments]
    assert newest_keys(shelf, groups) == [[2], [1, 4], [3]]


def test_a_version_beyond_the_snapshot_hides_nothing() -> None:
    shelf = shelf_of({1: 1, 2: 5, 3: 1}, {1: 3, 2: 3, 3: 8})
    groups = [candidates_of(shelf, fragment) for fragment in shelf.fragments]
    assert newest_keys(shelf, groups, Bounds(0, 4)) == [[3], [1, 2]]
    assert newest_keys(shelf, groups, Bounds(2, 9)) == [[2], [1, 3]]


def test_commits_that_cannot_matter_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = shelf_of({1: 1, 2: 2, 3: 1}, {1: 4, 5: 5})
    asked: list[int] = []
    commits_of = lookup.commits_of
    monkeypatch.setattr(lookup, "commits_of", lambda of, *rest: asked.append(of.id) or commits_of(of, *rest))
    assert newest_keys(shelf, [candidates_of(shelf, shelf.fragments[0])]) == [[2, 3]]
    assert asked == [2]  # the one that has a version, of a commit beyond all of the other's
