"""Options, patterns, placements, values and keys: what needs no server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from redis.exceptions import ExecAbortError, ResponseError

from elasticscan.backends import is_cluster
from elasticscan.backends.redis import pages
from elasticscan.backends.redis.cluster_map import UNSERVED, parse_map
from elasticscan.backends.redis.names import (
    SLOTS,
    prefix_of,
    probe_of,
    slot_of,
    slots_of_prefix,
)
from elasticscan.backends.redis.options import ClusterOptions, Kind, TableOptions, read_options, split_uri
from elasticscan.backends.redis.pages import SlotProgress, read_page
from elasticscan.backends.redis.values import KeySpace
from elasticscan.base.errors import InvalidOption, LimitExceeded, SchemaMismatch, ShardUnavailable
from elasticscan.protocol import Cursor, PageRequest
from elasticscan.topology import SlotSet

ID = "{:040x}".format


def line(number: int, port: int, slots: str, flags: str = "master") -> str:
    return f"{ID(number)} 10.0.0.{number}:{port}@{port + 10_000} {flags} - 0 0 1 connected {slots}"


@pytest.mark.parametrize("slot", [0, 1, 8_191, 16_383])
@pytest.mark.parametrize("prefix", [b"person:", b"", b"user{", b"user{a", b"{", b"a}b", b"a{b{c"])
def test_a_probe_lies_in_its_slot_and_begins_with_its_prefix(prefix: bytes, slot: int) -> None:
    probe = probe_of(prefix, slot, b":x")
    assert slot_of(probe) == slot and probe.startswith(prefix)


@pytest.mark.parametrize("prefix", [b"t:{a}:", b"{a}{", b"t:{a}"])
def test_a_prefix_with_a_hash_tag_and_its_probe_are_of_one_slot(prefix: bytes) -> None:
    assert slot_of(probe_of(prefix, 7, b":x")) == slot_of(b"a")
    assert slots_of_prefix(prefix) == SlotSet.span(slot_of(b"a"), slot_of(b"a") + 1)
    assert len(slots_of_prefix(b"t:{a")) == SLOTS
    with pytest.raises(InvalidOption, match="hash tag"):
        slots_of_prefix(b"t:{}")


def test_a_view_gives_slots_to_masters_and_none_to_replicas() -> None:
    lines = [line(1, 7001, "100-16383 [100->-abc]", "myself,master"), line(2, 7002, "0-98")]
    lines += [line(3, 7003, "", "slave"), line(4, 7004, "", "handshake")]
    shards: dict[str, int] = {}
    cluster = parse_map("\n".join(lines), ("h", 1), shards)
    assert cluster.placement.at(shards[ID(2)]) == SlotSet.span(0, 99)
    assert cluster.placement.at(shards[ID(1)]) == SlotSet.span(100, SLOTS)
    assert cluster.placement.at(UNSERVED) == SlotSet.span(99, 100)
    assert set(cluster.ids.values()) == {ID(1), ID(2)}
    assert cluster.members == {ID(1), ID(2), ID(3)}


@pytest.mark.parametrize(
    "lines", [[], [line(1, 7001, "", "myself,slave"), line(2, 0, "0-9", "master,noaddr")]]
)
def test_a_view_without_a_master_is_no_answer(lines: list[str]) -> None:
    with pytest.raises(ValueError, match="no master"):
        parse_map("\n".join(lines), ("h", 1), {})


@pytest.mark.parametrize(
    ("pattern", "prefix", "matching", "others"),
    [
        (b"t:*", b"t:", [b"t:", b"t:a\n*"], [b"u:a"]),
        (b"t:?x*", b"t:", [b"t:ax", b"t:\xffx1"], [b"t:x"]),
        (b"t[a-c]\\*", b"t", [b"tb*"], [b"td*", b"tb1"]),
        (b"t[^a]", b"t", [b"tb"], [b"ta"]),
        (b"t[\\]]", b"t", [b"t]"], [b"t\\", b"t"]),
        (b"t[\\d]", b"t", [b"td"], [b"t\\", b"t7"]),
        (b"t[z-a-]x", b"t", [b"tmx", b"t-x"], [b"tAx"]),
        (b"t[]a", b"t", [], [b"ta", b"t]a"]),
        (b"t[^]a", b"t", [b"t\xffa"], [b"ta"]),
        (b"t[ab", b"t", [b"ta", b"tb"], [b"t[ab"]),
    ],
)
def test_patterns_match_as_in_redis(
    pattern: bytes, prefix: bytes, matching: list[bytes], others: list[bytes]
) -> None:
    assert prefix_of(pattern) == prefix
    names = pa.table({"name": pa.array([*matching, *others], pa.binary())})
    kept = KeySpace(TableOptions(pattern.decode()), pa.schema([("key", pa.binary())])).select(names)
    assert kept.column("name").to_pylist() == matching


def test_a_url_says_how_to_reach_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHE", "rediss://ann:p%40ss@h1,[::1]:7001/person")
    fields, table = split_uri("env:CACHE")
    options = ClusterOptions(**fields)
    assert is_cluster("env:CACHE") and not is_cluster("a/b.store") and not is_cluster(7)
    assert (options.user, options.password, options.tls, table) == ("ann", "p@ss", True, "person")
    assert options.seeds == (("h1", 6379), ("::1", 7001))
    assert "p@ss" not in repr(options)


@pytest.mark.parametrize(
    "password",
    [
        "[hunter2]",
        "\u2100hunter2",
        *(f"{before}hunter2x" for before in ("x/", "x#", "x?", "12/", "12?", "12#")),
    ],
)
def test_no_error_of_a_url_shows_its_password(password: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        split_uri(f"redis://ann:{password}@h:x1/t")
    error: BaseException | None = refused.value
    while error is not None:
        assert "hunter2" not in str(error)
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    ("name", "text"),
    [("model", "binary"), ("mode", "x"), ("timeout", "0"), ("maxSlotKeys", "-1"), ("addressMap", "a"),
     ("inferSchema", "yes"), ("keysPatern", "x")],
)  # fmt: skip
def test_options_that_are_wrong_are_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidOption, match=name):
        read_options({name: text}, ClusterOptions, TableOptions)


def test_options_are_those_of_spark_redis_and_of_python() -> None:
    given = {"keys.pattern": "a*", "KEY.column": "id", "auth": "x", "addressmap": "10.0.0.1:6379=h:7"}
    cluster, table = read_options(given, ClusterOptions, TableOptions)
    assert table == {"keys_pattern": "a*", "key_column": "id"}
    assert cluster == {"address_map": {("10.0.0.1", 6379): ("h", 7)}, "password": "x"}
    typed = {"mode": "failfast", "model": "HASH", "infer_schema": True, "sample_keys": 10, "ttl_column": None}
    (table,) = read_options(typed, TableOptions)
    assert table == {"mode": "FAILFAST", "model": "hash", "infer_schema": True, "sample_keys": 10}


def key_space(model: Kind, columns: pa.Schema, **options: Any) -> KeySpace:
    return KeySpace(TableOptions("t:*", model=model, **options), columns, b"t:")


def rows(space: KeySpace, values: Sequence[object], columns: list[str]) -> list[dict[str, object]]:
    names = pa.array([f"t:{number}".encode() for number in range(len(values))], pa.binary())
    found, there = space.read(names, values, None, columns)
    listed: list[dict[str, object]] = found.filter(pa.array(there)).to_pylist()
    return listed


def test_hashes_become_rows_and_objects_with_what_is_none_as_null() -> None:
    hashes = key_space("hash", pa.schema([("key", pa.string()), ("n", pa.int32()), ("s", pa.string())]))
    found = rows(hashes, [[b"x", b"1"], None, [None, None], [b"\xff", b"x"], [b"y", b"z"]], ["key", "s", "n"])
    rest = [("2", None, None), ("3", None, None), ("4", "y", None)]
    assert [tuple(row.values()) for row in found] == [("0", "x", 1), *rest]
    fields = pa.schema([("key", pa.string()), ("a", pa.int64()), ("b", pa.list_(pa.string()))])
    values = [b'{"a": 1,\n"b": ["x"]}', b"nonsense", None, b'{"a": 2} {"a": 3}', b'{"a": 4, "z": 1}']
    found = rows(key_space("json", fields), values, ["key", "a", "b"])
    assert [row["a"] for row in found] == [1, None, None, 4]
    with pytest.raises(SchemaMismatch):
        rows(key_space("json", fields, mode="FAILFAST"), values, ["a"])


@pytest.mark.parametrize(
    "odd",
    [
        *(b"", b"null", b"[]", b"[" * 100_000, b'{"a": "', b'{"a":', b'"}, {"', b'{"a":1},"other":2'),
        *(b'{"a": 3}\n{"a": 33}', b'{"a": 3}}\n{"value":{"a": 33}', b'{"a": "\xff"}'),
        '{"a": 1}'.encode("utf-16"),
    ],
)
def test_a_value_that_is_no_object_takes_no_row_of_its_neighbours(odd: bytes) -> None:
    objects = key_space("json", pa.schema([("key", pa.string()), ("a", pa.int64())]))
    found = rows(objects, [odd, b'{"a": 2}', b"", odd, b'{"a": 4}'], ["key", "a"])
    assert [(row["key"], row["a"]) for row in found if row["a"] is not None] == [("1", 2), ("4", 4)]
    assert [row["key"] for row in found] == ["0", "1", "2", "3", "4"]


def test_a_slot_that_grows_beyond_the_limit_and_a_service_without_the_commands_are_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "NAMES_AT_ONCE", 2)
    columns = pa.schema([("key", pa.string()), ("v", pa.string())])
    slot, space = slot_of(b"a"), key_space("string", columns, max_slot_keys=3)
    request = PageRequest(0, 1, (Cursor(SlotSet.span(slot, slot + 1)),), 0, ("key", "v"), 9, 1 << 30)
    queued = [b"OK", b"QUEUED", b"QUEUED"]
    lists = [[0, 3, [b"t:{a}1", b"t:{a}2"]], [0, 4, [b"t:{a}%d" % n for n in range(3)]]]
    answers = iter([*queued, b"QUEUED", each] for each in lists)
    with pytest.raises(LimitExceeded, match="maxSlotKeys"):
        read_page(request, space, SlotProgress(), lambda *_: next(answers), ("h", 1))
    refused = [ResponseError("unknown subcommand 'GETKEYSINSLOT'"), ExecAbortError("discarded")]
    with pytest.raises(ShardUnavailable, match="GETKEYSINSLOT"):
        read_page(request, space, SlotProgress(), lambda *_: [*queued, *refused], ("h", 1))


def test_names_that_are_no_text_need_a_binary_column() -> None:
    names = pa.array([b"t:\xff"], pa.binary())
    with pytest.raises(SchemaMismatch, match="binary"):
        key_space("string", pa.schema([("key", pa.string())])).keys(names)
    kept = key_space("string", pa.schema([("key", pa.binary())])).keys(names)
    assert kept.to_pylist() == [b"\xff"]
