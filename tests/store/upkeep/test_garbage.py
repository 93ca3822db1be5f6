"""What becomes of each file of a root, decided from values alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.metadata import Manifest
from elasticscan.store.upkeep.garbage import Action, GarbageRules, RemovalPlan, Shelf, in_question, plan
from elasticscan.topology import SlotSet
from tests.base.examples import examples

NOW = 1_000_000.0
STORE = "5" * 32
RULES = GarbageRules(grace_seconds=100, trash_seconds=1_000, share=0.5, few=3)


def path(number: int) -> str:
    return f"t1/{number:032x}.arrow"


def witness(name: str, **fields: Any) -> Manifest:
    values: dict[str, Any] = {
        "kind": "fragment",
        "store": STORE,
        "store_slots": 16,
        "store_hash": "spark",
        "shard": 1,
        "table": 1,
        "table_name": "t",
        "primary_key": ("id",),
        "shard_key": ("id",),
        "compression": None,
        "not_null": (),
        "path": name,
        "operation": "write",
        "write": "0" * 32,
        "after_commit": 5,
        "began_at": 0.0,
        "min_commit": 0,
        "max_commit": 0,
        "slots": SlotSet.span(0, 16),
        "epochs": (),
        "replaces": (),
        "rows": 1,
        "unique": True,
        "tombstones": 0,
    }
    return Manifest(**values | fields)


def shelf(
    files: dict[str, float], live: set[str] = frozenset(), dropped: dict[str, float] | None = None
) -> Shelf:  # type: ignore[assignment]
    """A root with files of some ages in seconds."""
    times = {name: NOW - age for name, age in files.items()}
    return Shelf("a", frozenset({1}), NOW, times, frozenset(live), dropped or {})


def decided(found: RemovalPlan) -> dict[str, Action]:
    return {decision.path: decision.action for decision in found.decisions}


def planned(
    root: Shelf, rules: GarbageRules = RULES, newest: int = 9, doubt: str | None = None, **more: Any
) -> RemovalPlan:
    said = {name: witness(was) for name, was in in_question(root, rules).items()} | more.get("said", {})
    return plan(root, rules, said, STORE, newest, doubt)


def test_the_unknown_goes_to_the_trash_and_the_dropped_goes() -> None:
    root = shelf({path(1): 100, path(2): 100}, dropped={path(2): 100})
    assert decided(planned(root)) == {path(1): Action.TRASH, path(2): Action.DELETE}


def test_what_was_needed_within_the_grace_period_is_spared() -> None:
    root = shelf({path(1): 99, path(2): 10**6}, dropped={path(2): 99})
    assert in_question(root, RULES) == {}
    assert set(decided(planned(root)).values()) == {Action.KEEP}


@pytest.mark.parametrize("other", [{"store": "6" * 32}, {"shard": 2}, {"path": path(3)}])
@pytest.mark.parametrize("dropped", [{}, {path(1): 10**6}])
def test_what_says_that_it_is_another_ones_is_kept(other: dict[str, Any], dropped: dict[str, float]) -> None:
    root = shelf({path(1): 10**6}, dropped=dropped)
    found = planned(root, said={path(1): witness(path(1), **other)})
    assert decided(found) == {path(1): Action.KEEP}


@pytest.mark.parametrize("other", [{"store": "6" * 32}, {"shard": 2}])
def test_another_ones_file_stays_in_the_trash_too(other: dict[str, Any]) -> None:
    at = f"trash/1/{path(1)}"
    assert in_question(shelf({at: 0}), RULES) == {at: path(1)}
    assert decided(planned(shelf({at: 0}), said={at: witness(path(1), **other)})) == {at: Action.KEEP}
    assert decided(planned(shelf({at: 0}), said={at: None})) == {at: Action.EMPTY}


@pytest.mark.parametrize("dropped", [{}, {path(1): 10**6}])
@pytest.mark.parametrize("trash_seconds", [0, 1_000])
def test_what_says_nothing_goes_to_the_trash_at_most(dropped: dict[str, float], trash_seconds: int) -> None:
    root = shelf({path(1): 10**6}, dropped=dropped)
    rules = GarbageRules(100, trash_seconds)
    assert decided(planned(root, rules, said={path(1): None})) == {path(1): Action.TRASH}


def test_without_a_trash_what_is_proven_goes_at_once() -> None:
    assert decided(planned(shelf({path(1): 100}), GarbageRules(100, 0))) == {path(1): Action.DELETE}


@pytest.mark.parametrize("said", [{"after_commit": 10}, {"max_commit": 10}])
def test_a_file_that_is_ahead_of_the_catalog_is_reported(said: dict[str, int]) -> None:
    root = shelf({path(1): 10**6})
    assert planned(root, said={path(1): witness(path(1), **said)}).ahead == 10
    assert planned(root, newest=10, said={path(1): witness(path(1), **said)}).ahead == 0
    foreign = witness(path(1), store="6" * 32, **said)
    assert planned(root, said={path(1): foreign}).ahead == 0


def test_a_doubtful_catalog_takes_nothing_that_it_does_not_know() -> None:
    root = shelf({path(1): 100, path(2): 100}, dropped={path(2): 100})
    assert decided(planned(root, doubt="why")) == {path(1): Action.KEEP, path(2): Action.DELETE}


def test_too_much_at_once_is_counted_without_what_was_dropped() -> None:
    unknown, known = [path(n) for n in range(4)], [path(n) for n in range(10, 13)]
    ages = dict.fromkeys(unknown + known, 10**6)
    assert (planned(shelf(ages, live=set(known))).unknown, planned(shelf(ages, live=set(known))).of) == (4, 7)
    assert planned(shelf(ages, live={*known, path(3)})).unknown == 0, "few"
    assert planned(shelf(ages, dropped=dict.fromkeys(unknown, 10**6), live=set(known))).unknown == 0


def test_the_trash_is_emptied_by_age_and_gives_back_what_is_missing() -> None:
    old, young = f"trash/{int(NOW) - 1_000}/{path(1)}", f"trash/{int(NOW) - 999}/{path(2)}"
    found = planned(shelf({old: 0, young: 10**6}))
    assert decided(found) == {old: Action.EMPTY, young: Action.KEEP}
    found = planned(shelf({old: 0, young: 0}, live={path(1), path(2)}))
    assert set(decided(found).values()) == {Action.RESTORE}
    found = planned(shelf({old: 0, path(1): 0}, live={path(1)}))
    assert decided(found) == {old: Action.KEEP}


@pytest.mark.parametrize(
    "name", ["notes.txt", "trash/x/notes", f"trash/1/{path(1)}.bak", f"b/{path(1)}", "t1/x.arrow"]
)
def test_other_peoples_files_stay(name: str) -> None:
    assert set(decided(planned(shelf({name: 10**9}), GarbageRules(0, 0))).values()) <= {Action.KEEP}


def test_dropped_files_that_are_gone_are_forgotten_after_the_grace_period() -> None:
    assert planned(shelf({}, dropped={path(1): 100, path(2): 99})).vanished == (path(1),)


ages = st.sampled_from([0.0, 99.0, 100.0, 5_000.0])


@settings(deadline=None, max_examples=examples(200))
@given(
    st.dictionaries(st.integers(0, 9), ages),
    st.sets(st.integers(0, 9)),
    st.dictionaries(st.integers(0, 9), ages),
    st.sampled_from([0.0, 1_000.0]),
)
def test_whatever_is_known_no_live_file_leaves_its_place(
    there: dict[int, float], live: set[int], dropped: dict[int, float], trash_seconds: float
) -> None:
    gone = {path(n): age for n, age in dropped.items() if n not in live}
    root = shelf({path(n): age for n, age in there.items()}, {path(n) for n in live}, gone)
    for decision in planned(root, GarbageRules(100, trash_seconds)).decisions:
        assert decision.path not in root.live
        if decision.action in (Action.DELETE, Action.TRASH):
            needed = gone.get(decision.path, NOW - root.files[decision.path])
            assert needed >= 100
