"""Passwords of catalogs and roots are in no error, status or output of a store."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import ElasticScanError, InvalidOption, ShardUnavailable
from elasticscan.base.redaction import redact, shown
from elasticscan.catalog import postgres, seal_keys
from elasticscan.cli.maintenance import adopt
from elasticscan.connector.sql.table_read import TableRead
from elasticscan.store import Store
from elasticscan.store.roots.location import Location, path_or_uri
from tests.base.examples import examples
from tests.storage.memory_disk import MemoryDisk

SECRET = "hunter2"
CATALOGS = [
    f"postgresql+psycopg://ann:{SECRET}@127.0.0.1:port/x",
    f"postgresql+psycopg://ann:{SECRET}/x@127.0.0.1:1/x?connect_timeout=1",
    f"postgresql+psycopg://ann:{SECRET}@127.0.0.1:1/x?connect_timeout=1&sslpassword={SECRET}",
    f"postgresql+psycopg://ann:{SECRET}@127.0.0.1:1/x?channel_binding={SECRET}",
    f"sqlite://ann:{SECRET}@/x",
    f"s3://KEY:{SECRET}@bucket/x",
]
ODD = [  # no URLs, or none that a driver reads as it was meant; `places` draws more
    f"postgresql+psycopg://ann:a@{SECRET}@127.0.0.1:1/x",
    f"postgresql+psycopg:ann:{SECRET}",
    f"ann:{SECRET}@127.0.0.1:1/x",
    f"host=127.0.0.1 port=1 key={SECRET}",
    f"Server=127.0.0.1;AccountKey={SECRET}",
]
AMBIGUOUS = [  # where we see a parameter or a path, a driver sees the name of a host
    f"postgresql+psycopg://127.0.0.1:1/x?password=@{SECRET}",
    f"postgresql+psycopg://127.0.0.1:1/x?connect_timeout=1&password=ab@{SECRET}",
    f"postgresql+psycopg://127.0.0.1?password=@{SECRET}:1/x",
    f"postgresql+psycopg://ann:ab@{SECRET}/c@127.0.0.1:1/x",
    f"postgresql+psycopg://ann:ab@{SECRET}:1/c@127.0.0.1:1/x",
]
ROOTS = [
    f"postgresql://ann:{SECRET}@127.0.0.1:1/x",
    f"wat://KEY:{SECRET}@bucket/x",
    f"s3://KEY:{SECRET}@bucket/x?wat={SECRET}",
    f"s3://KEY:{SECRET} x@bucket/x",
    f"s3://KEY:a/{SECRET}@bucket/x",
    f"gs://KEY:{SECRET}@bucket/x",
]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a server that is not there."""
    monkeypatch.setattr(postgres, "FIRST_CONNECT_SECONDS", 0.0)


def message(call: Callable[[], Any]) -> str:
    """All that a log would have of an error, and what is found behind it, also where no log shows that."""
    with pytest.raises(ElasticScanError) as caught:
        call()
    lines = traceback.format_exception(caught.value)
    texts = [line for line in lines if not line.startswith("  ")]
    behind, seen = [caught.value], []
    while behind:
        error = behind.pop()
        seen.append(error)
        texts += [str(error), repr(error), repr(error.args)]
        texts += [held for held in vars(error).values() if isinstance(held, str)]
        texts += [repr(getattr(held, "password", None)) for held in vars(error).values()]
        chain = (error.__cause__, error.__context__, *getattr(error, "exceptions", ()))
        behind += [each for each in chain if each is not None and each not in seen]
    return "".join(texts)


@pytest.mark.parametrize("uri", [*CATALOGS, *ODD, *AMBIGUOUS])
def test_no_error_of_a_catalog_shows_its_password(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIPS", uri)
    assert SECRET not in message(lambda: Store.open("env:TRIPS"))
    assert SECRET not in message(lambda: Store.open(uri))
    assert SECRET not in message(lambda: Store.create(uri, {"a": str(tmp_path / "a")}))
    assert SECRET not in message(lambda: Store.create(uri, ["a"]))
    with suppress(InvalidOption):  # of what holds no catalog
        assert SECRET not in repr(Location.of(uri))
    assert not any(SECRET in path.name for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("uri", AMBIGUOUS)
def test_a_part_of_a_password_is_never_asked_for_as_a_host(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *names, **_: asked.append(names))
    for call in (lambda: Store.open(uri), lambda: Store.create(uri, {"a": str(tmp_path / "a")})):
        with pytest.raises(InvalidOption, match="where its host begins"):
            call()
    assert asked == []


@pytest.mark.parametrize("rest", [f"ann:?{SECRET}=@127.0.0.1:1/x", "127.0.0.1:1/x?sslmod=require"])
def test_an_option_that_a_server_does_not_know_is_no_damage_and_not_reported_by_name(rest: str) -> None:
    place = f"postgresql+psycopg:///{rest}"
    for call in (lambda: Store.open(place), lambda: Store.create(place, {"a": "a"})):
        with pytest.raises(InvalidOption, match="not certain where its host begins"):
            call()
        assert SECRET not in message(call)


NOISE = st.text(st.sampled_from("ab1 :/@?&=;%+'\"\\"), max_size=4)
NAMES_OF_SECRETS = ["password", "sslpassword", "PASSWD", "pwd", "client_secret", "token", "api_key", "sslkey"]


@st.composite
def places(draw: st.DrawFn) -> str:
    """A URL, or what somebody took for one, with a password or another secret in it."""
    secret = draw(NOISE) + SECRET + draw(NOISE)
    if draw(st.integers(0, 3)) == 0:
        quote = draw(st.sampled_from(["", "'"]))
        if quote:
            secret = secret.replace("\\", "").replace("'", "\\'")
        else:
            secret = "".join(secret.replace("\\", "").split())
        pairs = [
            "host=127.0.0.1",
            "port=1",
            f"{draw(st.sampled_from(NAMES_OF_SECRETS))}={quote}{secret}{quote}",
        ]
        return draw(st.sampled_from([" ", ";", "  "])).join(draw(st.permutations(pairs)))
    scheme = draw(
        st.sampled_from(["postgresql+psycopg", "postgresql", "mysql", "wat", "wat+x", "POSTGRES", "s3"])
    )
    slashes = "/" * draw(st.integers(0, 4))
    if draw(st.booleans()):
        if "+" not in scheme and len(slashes) < 2:  # where that ends is anybody's guess
            secret = "".join(secret.split())
        return f"{scheme}:{slashes}ann:{secret}@127.0.0.1:1/x"
    value = "".join(secret.replace("&", "").split())
    name = draw(st.sampled_from(NAMES_OF_SECRETS))
    return f"{scheme}:{slashes}127.0.0.1:1/x?{name}={value}{draw(st.sampled_from(['', '&x=y']))}"


@settings(deadline=None, max_examples=examples(1_000))
@given(places())
@example("postgresql+psycopg://ann:// hunter2@127.0.0.1:1/x")
def test_no_secret_of_any_place_is_in_a_text(place: str) -> None:
    assert SECRET not in shown(place)
    assert shown(shown(place)) == shown(place)
    assert SECRET not in redact(f"there is nothing at {place}")
    assert SECRET not in redact(str({"uri": place}))
    if "://" not in place:
        assert SECRET not in message(lambda: path_or_uri(place))


@settings(
    deadline=None,
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(place=places())
def test_no_secret_of_any_place_is_reported(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert SECRET not in message(lambda: Store.open(place))
    assert SECRET not in message(lambda: Store.create(place, {"a": str(tmp_path / "a")}))
    here = Path(mkdtemp(dir=tmp_path))
    with suppress(InvalidOption), Store.create(here, {"a": place}, disks=lambda _: MemoryDisk()) as store:
        assert SECRET not in f"{store.status()} {store!r}"
    assert not any(SECRET in path.name for path in tmp_path.rglob("*"))


# Buckets are looked for where nobody answers, and nothing is asked of a machine elsewhere.
UNREACHABLE = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.mark.parametrize("root", [*ROOTS, *ODD])
def test_no_error_of_a_root_shows_its_password(root: str, tmp_path: Path) -> None:
    assert SECRET not in message(lambda: Store.create(tmp_path / "s", {"a": root}))
    with Store.create(tmp_path / "t", ["a"]) as store:
        assert SECRET not in message(lambda: store.expand({"b": root}))


@pytest.mark.long
@pytest.mark.parametrize("place", [*ROOTS, *CATALOGS])
def test_no_error_of_files_elsewhere_shows_a_password(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in UNREACHABLE.items():
        monkeypatch.setenv(name, value)
    with Store.create(tmp_path / "t", ["a"]) as store:
        table = store.create_table("t", pa.table({"id": [1]}), ["id"])
        assert SECRET not in message(lambda: store.load("x", place, primary_key="id"))
        assert SECRET not in message(lambda: store.load("x", f"{place}/*.csv", primary_key="id"))
        assert SECRET not in message(lambda: store.load("x", place, primary_key="id", format="parquet"))
        assert SECRET not in message(lambda: table.export(place))
        assert SECRET not in message(lambda: store.backup(place))
        assert SECRET not in message(lambda: Store.from_backup(place, tmp_path / "back"))


@pytest.mark.long
def test_a_store_whose_catalog_is_at_a_server_shows_no_password(
    postgres_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in (postgres_url.replace("@", f":{SECRET}@"), f"{postgres_url}&password={SECRET}"):
        maker = Store.open if place.startswith(f"{postgres_url}&") else Store.create
        arguments = () if maker == Store.open else ({"a": str(tmp_path / "a")},)
        with maker(place, *arguments) as store:
            if not store.tables():
                store.create_table("t", {"id": [1]}, primary_key="id")
            table = store.table("t")
            shown = [store, store.status(), store.topology, store.tables(), store.topology_history()]
            shown += [table, table.scan(), table.history()]
            assert SECRET not in repr(shown) + str(store)
            assert SECRET not in store._repr_html_()
            assert SECRET not in message(lambda: store.table("no"))
        adopt(place)
        assert SECRET not in capsys.readouterr().out


def test_a_read_of_an_attached_table_shows_no_password() -> None:
    read = TableRead(None, CATALOGS[1], "t", pa.schema([]))  # type: ignore[arg-type]
    assert SECRET not in repr(read)
    assert "'t'" in repr(read)


def test_a_store_may_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPS", str(tmp_path / "s"))
    Store.create("env:TRIPS", ["a"]).close()
    with Store.open(tmp_path / "s"), Store.open("env:TRIPS") as store:
        assert store.tables() == ()
    with pytest.raises(InvalidOption, match="environment variable 'TRAPS'"):
        Store.open("env:TRAPS")


def test_errors_of_statements_do_not_tell_their_parameters(tmp_path: Path) -> None:
    """Secrets are among them."""
    with Store.create(tmp_path / "s", ["a"]) as store:
        with store.context.catalog.reading() as tx:
            secret = next(iter(seal_keys(tx.state, tx.now).values()))
            said = message(lambda: tx.execute("SELECT nothing WHERE 1 = :secret", {"secret": secret}))
        assert "nothing" in said and repr(secret) not in said
        assert repr(secret) not in repr(store.status())
    assert issubclass(ShardUnavailable, ElasticScanError)
