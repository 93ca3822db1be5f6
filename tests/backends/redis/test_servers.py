"""Real clusters: what is read of them, what is refused, and in which words."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

import elasticscan
from elasticscan.backends.redis import ClusterStore
from elasticscan.backends.redis.names import slot_of
from elasticscan.backends.redis.pages import ACL
from elasticscan.base.errors import (
    Busy,
    ContinuationKeyError,
    InvalidCall,
    InvalidOption,
    LimitExceeded,
    SchemaMismatch,
    ShardUnavailable,
    TableChanged,
)
from tests.backends.redis.servers import KINDS, ServerCluster, alone

SCHEMA = pa.schema([("key", pa.string()), ("name", pa.string()), ("age", pa.int64())])
KEYS = 3_000
ROWS = {f"person:{n}": {"name": f"n{n}", "age": str(n)} for n in range(KEYS)}


@pytest.fixture(scope="module", params=KINDS)
def cluster(request: pytest.FixtureRequest) -> Iterator[ServerCluster]:
    with ServerCluster(request.param) as started:
        started.load(ROWS)
        yield started


@pytest.fixture
def store(cluster: ServerCluster) -> Iterator[ClusterStore]:
    with elasticscan.open(cluster.url) as store:
        yield store


def check(rows: pa.Table) -> None:
    counted = Counter(rows.column("key").to_pylist())
    wanted = {key.removeprefix("person:") for key in ROWS}
    assert not wanted - counted.keys(), "keys were lost"
    assert not [key for key, times in counted.items() if times > 1], "keys were repeated"
    for row in rows.to_pylist():
        if row["key"] in wanted:
            assert (row["name"], row["age"]) == (f"n{row['key']}", int(row["key"]))


def test_keys_at_a_master_that_does_not_serve_their_slot_are_an_error(
    cluster: ServerCluster, store: ClusterStore
) -> None:
    slot = slot_of(b"torn:{x}")
    source = cluster.owner(slot)
    target = cluster.other_than(source)
    cluster.load({f"torn:{{x}}{n}": {"name": "t", "age": "1"} for n in range(4)})
    cluster.begin_move(slot, source, target)
    cluster.move_keys(slot, source, target, most=2)
    for master in (source, target):
        master.client.execute_command("CLUSTER SETSLOT", slot, "STABLE")
    scan, stream = (store.table("torn", SCHEMA).scan() for _ in range(2))
    reader = stream.to_reader()
    for _ in range(2):  # a scan that failed never looks complete
        with pytest.raises(ShardUnavailable, match="redis-cli --cluster fix"):
            list(scan)
    with pytest.raises(ShardUnavailable, match="redis-cli --cluster fix"):
        reader.read_all()
    with pytest.raises(InvalidCall):
        reader.read_next_batch()
    table = store.table("torn", SCHEMA, fail_on_torn_slots=False)
    assert table.scan().to_table().num_rows == 2
    cluster.begin_move(slot, source, target)
    cluster.move_keys(slot, source, target)
    cluster.end_move(slot, target)
    assert store.table("torn", SCHEMA).scan().to_table().num_rows == 4


def test_a_slot_with_many_keys_is_read_in_pages(cluster: ServerCluster, store: ClusterStore) -> None:
    cluster.load({f"big:{{t}}{n}": {"name": "b", "age": str(n)} for n in range(9_000)})
    scan = store.table("big", SCHEMA).scan(page_rows=4_000)
    rows = pa.Table.from_batches([page.rows for page in scan])
    assert sorted(rows.column("age").to_pylist()) == list(range(9_000))
    with pytest.raises(LimitExceeded, match="maxSlotKeys"):
        store.table("big", SCHEMA, max_slot_keys=8_000).scan().to_table()


def test_conditions_on_the_key_read_only_what_they_name(store: ClusterStore) -> None:
    table = store.table("person", SCHEMA)
    scan = table.scan(filter="key IN ('17', '2000', 'missing')")
    assert len(scan.slots) == 3
    assert sorted(scan.to_table().column("age").to_pylist()) == [17, 2000]
    assert table.scan(filter="key LIKE '29%' AND age > 2950").count() == 49
    either = table.scan(filter="key = '5' OR age = 6", columns=["age"]).to_table()
    assert sorted(either.column("age").to_pylist()) == [5, 6]
    assert table.scan(columns=["key"]).to_table().num_rows == table.scan().count() == KEYS
    assert table.scan(limit=10).to_table().num_rows == 10


def test_columns_are_read_from_values(store: ClusterStore, cluster: ServerCluster) -> None:
    texts = store.table("person").schema
    assert texts.names == ["key", "age", "name"] and texts.field("age").type == pa.string()
    assert store.table("person", infer_schema=True).schema.field("age").type == pa.int64()
    client = cluster.client()
    for number in range(50):
        client.set(f"doc:{number}", f'{{"n": {number},\n "tags": ["a", "b"]}}')
        client.set(f"text:{number}", f"v{number}", ex=1_000)
    client.close()
    docs = store.table("doc", model="json", infer_schema=True).scan().to_table()
    assert sorted(docs.column("n").to_pylist()) == list(range(50))
    assert docs.column("tags")[0].as_py() == ["a", "b"]
    texts_read = store.table("text", model="string", ttl_column="left").scan().to_table()
    assert sorted(texts_read.column("value").to_pylist()) == sorted(f"v{n}" for n in range(50))
    assert all(0 < left <= 1_000_000 for left in texts_read.column("left").to_pylist())


def test_values_that_do_not_fit_are_an_error_on_request(store: ClusterStore, cluster: ServerCluster) -> None:
    cluster.load({"odd:1": {"age": "x"}, "odd:2": {"age": "2"}})
    with pytest.raises(SchemaMismatch, match="PERMISSIVE"):
        store.table("odd", pa.schema([("age", pa.int64())]), mode="FAILFAST").scan().to_table()
    with pytest.raises(SchemaMismatch, match="holds no string"):
        store.table("odd", pa.schema([("age", pa.int64())]), model="string").scan().to_table()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda store: store.create_table("t", SCHEMA, ["key"]), InvalidCall, "only read"),
        (lambda store: store.table("person", SCHEMA).upsert({}), InvalidCall, "upsert"),
        (lambda store: store.table("person", SCHEMA).scan(snapshot=1), InvalidCall, "snapshot"),
        (lambda store: store.table("person", SCHEMA).scan(page_rows=0), InvalidOption, "page_rows"),
        (lambda store: store.table("person", SCHEMA).scan(page_bytes=0), InvalidOption, "page_bytes"),
        (lambda store: store.table("person", SCHEMA).scan(limit=-1), InvalidOption, "limit"),
        (lambda store: store.table("person", SCHEMA, moed="FAILFAST"), InvalidOption, "did you mean 'mode'"),
        (lambda store: store.table("named"), InvalidOption, "keyColumn"),
        (lambda store: store.table("nojson", model="json"), SchemaMismatch, "give a schema"),
        (lambda store: store.table("nulls", model="json"), SchemaMismatch, "give a schema"),
        (lambda store: store.resume("nonsense"), ContinuationKeyError, "start a new scan"),
    ],
)
def test_what_a_cluster_cannot_do_is_an_error(
    store: ClusterStore,
    cluster: ServerCluster,
    call: Callable[[ClusterStore], object],
    error: type[Exception],
    text: str,
) -> None:
    client = cluster.client()
    client.set("nojson:1", "{")
    client.set("nulls:1", "null")
    client.close()
    cluster.load({"named:1": {"key": "1", "x": "2"}})
    with pytest.raises(error, match=text):
        call(store)


def test_a_table_is_no_more_than_it_says_and_a_scan_is_read_once(
    cluster: ServerCluster, store: ClusterStore
) -> None:
    table = store.table("person", SCHEMA)
    assert not hasattr(table, "collect"), "other libraries look for such names"
    scan = table.scan()
    assert scan.explain()["guarantee"].startswith("each key")
    scan.to_table()
    with pytest.raises(InvalidCall):
        scan.to_table()
    cluster.load({"renamed:1": {"key": "1", "x": "2"}})
    (row,) = store.table("renamed", key_column="id").scan().to_table().to_pylist()
    assert row == {"id": "1", "key": "1", "x": "2"}


def test_a_sealed_key_needs_its_secret(cluster: ServerCluster) -> None:
    with elasticscan.open(cluster.url, keySecret="hunter2") as sealed, elasticscan.open(cluster.url) as plain:
        page = next(sealed.table("person", SCHEMA).scan(page_rows=10))
        assert sealed.resume(page.key).to_table().num_rows == KEYS - page.rows.num_rows
        with pytest.raises(ContinuationKeyError):
            plain.resume(page.key)


def test_a_cluster_that_is_replaced_during_a_scan_is_noticed() -> None:
    with ServerCluster("valkey", masters=3) as cluster, elasticscan.open(cluster.url) as store:
        cluster.load(ROWS)
        scan = store.table("person", SCHEMA).scan(page_rows=100)
        key = next(scan).key
        for server in cluster.masters:
            server.client.flushall()
            server.client.execute_command("CLUSTER RESET HARD")
        for server in cluster.masters:
            server.client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16_383)  # three clusters by now
        for _ in range(2):
            with pytest.raises(TableChanged, match="replaced"):
                for _ in scan:
                    pass
        assert store.table("person", SCHEMA).scan().count() == 0, "another scan reads the new cluster"
        with elasticscan.open(cluster.url) as other, pytest.raises(TableChanged, match="another"):
            other.resume(key).to_table()
        with pytest.raises(TableChanged, match="replaced"):
            next(scan)


def test_the_documented_rule_of_access_is_enough_and_needed(cluster: ServerCluster) -> None:
    for server in cluster.servers:
        server.client.execute_command(
            "ACL SETUSER", "reader", "reset", "on", ">pw", *ACL.split(), "%R~person:*"
        )
    url = cluster.url.replace("redis://", "redis://reader:pw@")
    with elasticscan.open(url) as store:
        check(store.table("person", infer_schema=True).scan().to_table())
        with pytest.raises(ShardUnavailable, match="ACL SETUSER"):
            store.table("other", SCHEMA).scan().to_table()
        with pytest.raises(ShardUnavailable, match="ACL SETUSER"):
            store.table("other")
    with pytest.raises(ShardUnavailable, match="user and password") as refused:
        elasticscan.open(url.replace("pw@", "hunter2@"))
    assert "hunter2" not in str(refused.value)


def test_servers_that_are_no_cluster_or_away_are_errors(cluster: ServerCluster) -> None:
    with pytest.raises(ShardUnavailable, match="no node"):
        elasticscan.open("redis://127.0.0.1:1")
    with pytest.raises(InvalidOption, match="redis://"):
        elasticscan.open("redis://127.0.0.1:x")
    with alone() as port, pytest.raises(InvalidOption, match="cluster-enabled"):
        elasticscan.open(f"redis://127.0.0.1:{port}")


def test_slots_that_nobody_serves_are_an_error_in_the_end() -> None:
    with ServerCluster("redis", masters=3) as cluster:
        cluster.load(ROWS)
        cluster.masters[0].kill()
        with (
            elasticscan.open(cluster.url, slotTimeout="1") as store,
            pytest.raises(Busy, match="redis-cli --cluster check"),
        ):
            store.table("person", SCHEMA).scan().to_table()


def test_a_slot_that_moved_waits_however_long_a_caller_takes_over_pages(cluster: ServerCluster) -> None:
    with elasticscan.open(cluster.url, slotTimeout="0.2") as store:
        scan = store.table("person", SCHEMA).scan(page_rows=300)
        rows = [next(scan).rows]
        for slot in sorted({slot_of(key.encode()) for key in ROWS})[-5:]:
            cluster.move(slot, cluster.other_than(cluster.owner(slot)))
        for page in scan:
            rows.append(page.rows)
            time.sleep(0.05)
    check(pa.Table.from_batches(rows))


def test_columns_are_read_wherever_their_keys_are_now(cluster: ServerCluster, store: ClusterStore) -> None:
    cluster.load({f"crowd:{{q}}{n}": {"x": "1"} for n in range(100)} | {"solo:{q}": {"a": "1", "note": "2"}})
    assert store.table("solo").schema.names == ["key", "a", "note"]
    slot = slot_of(b"solo:{q}")
    cluster.move(slot, cluster.other_than(cluster.owner(slot)))
    assert store.table("solo").schema.names == ["key", "a", "note"]


def test_announced_addresses_are_mapped_or_named_in_the_error() -> None:
    with ServerCluster("valkey", masters=3) as cluster:
        cluster.load(ROWS)
        ports = {master.port: number for number, master in enumerate(cluster.masters, start=1)}
        for port, announced in ports.items():
            master = next(each for each in cluster.masters if each.port == port)
            master.client.config_set("cluster-announce-port", announced)
        cluster.settle()
        with pytest.raises(ShardUnavailable, match="addressMap"):
            elasticscan.open(cluster.url)
        pairs = ",".join(f"127.0.0.1:{announced}=127.0.0.1:{port}" for port, announced in ports.items())
        with elasticscan.open(cluster.url, addressMap=pairs) as store:
            check(store.table("person", SCHEMA).scan().to_table())
