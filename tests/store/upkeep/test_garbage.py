"""What becomes of each file of a root, decided from values alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.metadata import Manifest
from elasticscan.store.upkeep.garbage import Action, Decision, GarbageRules, RootState, plan, too_many_unknown
from elasticscan.topology import Shard
from tests.base.examples import examples

NOW = 1_000_000.0
STORE = "5" * 32
RULES = GarbageRules(grace_seconds=100, orphan_seconds=1_000, share=0.5, few=3)


def path(number: int) -> str:
    return f"t1/{number:032x}.arrow"


def witness(name: str, **fields: Any) -> Manifest:
    """A manifest, as far as it is looked at."""
    footer = {"store": STORE, "shard": 1, "path": name, "after_commit": 5, "max_commit": 0}
    return cast(Manifest, SimpleNamespace(**footer | fields))


def root_state(
    files: dict[str, float], live: set[str] = frozenset(), dropped: dict[str, float] | None = None
) -> RootState:  # type: ignore[assignment]
    """A root with files of some ages in seconds."""
    times = {name: NOW - age for name, age in files.items()}
    return RootState(Shard(1, "a", "a"), frozenset({1}), NOW, times, frozenset(live), dropped or {})


def planned(root: RootState, rules: GarbageRules = RULES) -> tuple[Decision, ...]:
    return plan(root, rules, witness, STORE)[0]


FILE = path(1)
KEEP, DELETE, SOON = Action.KEEP, Action.DELETE, GarbageRules(grace_seconds=100, orphan_seconds=0)
OTHERS = [witness(FILE, store="6" * 32), witness(FILE, shard=2)]


@pytest.mark.parametrize(
    ("age", "dropped", "facts", "expected"),
    [
        # Orphans go in the end, what was dropped goes after the grace period.
        *((1_000, None, {}, DELETE), (999, None, {}, KEEP), (0, 100, {}, DELETE), (10**6, 99, {}, KEEP)),
        *((100, None, {"rules": SOON}, DELETE), (99, None, {"rules": SOON}, KEEP)),
        # By its own account it is another one's.
        *((1_000, dropped, {"said": other}, KEEP) for other in OTHERS for dropped in (None, 100)),
        # It says nothing.
        *((1_000, dropped, {"said": None}, DELETE) for dropped in (None, 1_000)),
        (1_000, 100, {"said": None}, KEEP),
        # A doubtful catalog takes nothing that it does not know.
        *((1_000, None, {"doubt": "why", **said}, KEEP) for said in ({}, {"said": None})),
        (1_000, 100, {"doubt": "why"}, DELETE),
        # Other people's files stay.
        *(
            (10**9, None, {"path": name, "rules": GarbageRules(0, 0)}, KEEP)
            for name in ("notes.txt", f"{FILE}.bak", f"b/{FILE}", "t1/x.arrow")
        ),
    ],
)
def test_each_file_has_its_fate(
    age: float, dropped: float | None, facts: dict[str, Any], expected: Action
) -> None:
    name = facts.get("path", FILE)
    root = root_state({name: age}, dropped=None if dropped is None else {name: dropped})
    said = facts.get("said", witness(name))
    (found,), _ = plan(root, facts.get("rules", RULES), lambda _: said, STORE, facts.get("doubt"))
    assert (found.path, found.action) == (name, expected)


def test_too_much_at_once_is_counted_without_what_was_dropped() -> None:
    unknown, known = [path(n) for n in range(4)], [path(n) for n in range(10, 13)]
    ages = dict.fromkeys(unknown + known, 10**6)

    def count(live: set[str], dropped: dict[str, float] | None = None) -> int:
        root = root_state(ages, live, dropped)
        return too_many_unknown(root, RULES, planned(root))

    assert count({*known}) == 4
    assert count({*known, path(3)}) == 0, "few"
    assert count({*known}, dict.fromkeys(unknown, 10**6)) == 0


ages = st.sampled_from([0.0, 99.0, 100.0, 5_000.0])


@settings(deadline=None, max_examples=examples(200))
@given(
    st.dictionaries(st.integers(0, 9), ages),
    st.sets(st.integers(0, 9)),
    st.dictionaries(st.integers(0, 9), ages),
    st.sampled_from([0.0, 1_000.0]),
)
def test_whatever_is_known_no_live_file_is_deleted(
    there: dict[int, float], live: set[int], dropped: dict[int, float], orphan_seconds: float
) -> None:
    gone = {path(n): age for n, age in dropped.items() if n not in live}
    root = root_state({path(n): age for n, age in there.items()}, {path(n) for n in live}, gone)
    for decision in planned(root, GarbageRules(100, orphan_seconds)):
        assert decision.path not in root.live
        if decision.action is Action.DELETE:
            unused = gone.get(decision.path, NOW - root.files[decision.path])
            assert unused >= (100 if decision.path in gone else max(100, orphan_seconds))
