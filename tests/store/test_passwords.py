"""Passwords of catalogs and roots are in no error, status or output of a store."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import ElasticScanError, InvalidOption
from elasticscan.base.redaction import redact, shown
from elasticscan.catalog import postgres, seal_keys
from elasticscan.cli.maintenance import adopt
from elasticscan.connector.sql.table_read import TableRead
from elasticscan.store import Store
from elasticscan.store.roots.location import path_or_uri
from tests.base.examples import examples
from tests.storage.memory_disk import MemoryDisk

SECRET = "hunter2"
AMBIGUOUS = [  # where we see a parameter or a path, a driver sees the name of a host
    f"postgresql+psycopg://127.0.0.1:1/x?password=@{SECRET}",
    f"postgresql+psycopg://127.0.0.1?password=@{SECRET}:1/x",
    f"postgresql+psycopg://ann:ab@{SECRET}/c@127.0.0.1:1/x",
    f"postgresql+psycopg:///ann:?{SECRET}=@127.0.0.1:1/x",
    f"postgresql+psycopg:///127.0.0.1:1/x?sslmod={SECRET}",
]
PLACES = [
    f"postgresql+psycopg://ann:{SECRET}@127.0.0.1:port/x",
    f"postgresql+psycopg://ann:{SECRET}@127.0.0.1:1/x?connect_timeout=1&sslpassword={SECRET}",
    f"postgresql+psycopg://ann:{SECRET}@127.0.0.1:1/x?channel_binding={SECRET}",
    f"sqlite://ann:{SECRET}@/x",
    *(f"s3://KEY:{secret}@bucket/x" for secret in (SECRET, f"a/{SECRET}", f"{SECRET} x")),
    f"gs://KEY:{SECRET}@bucket/x?wat={SECRET}",
    f"postgresql+psycopg:ann:{SECRET}",  # no URL; `places` draws more
    *AMBIGUOUS,
]
# Where a place may be named, of a store that is there or not; then, of files.
Use = Callable[[str, Path, Store], object]
USES: dict[str, Use] = {
    "open": lambda place, here, store: Store.open(place),
    "open what the environment names": lambda place, here, store: Store.open("env:TRIPS"),
    "create": lambda place, here, store: Store.create(place, {"a": str(here / "a")}),
    "create a root": lambda place, here, store: Store.create(here / "new", {"a": place}),
    "expand": lambda place, here, store: store.expand({"b": place}),
}
FILES: dict[str, Use] = {
    "load": lambda place, here, store: store.load("x", place, primary_key="id"),
    "load some": lambda place, here, store: store.load("x", f"{place}/*.csv", primary_key="id"),
    "export": lambda place, here, store: store.table("t").export(place),
    "back up": lambda place, here, store: store.backup(place),
    "restore": lambda place, here, store: Store.from_backup(place, here / "back"),
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No one waits for a server that is not there, and nothing is asked of a machine elsewhere."""
    monkeypatch.setattr(postgres, "FIRST_CONNECT_SECONDS", 0.0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def message(call: Callable[[], Any]) -> str:
    """All that a log would have of an error, and what is found behind it, also where no log shows that."""
    with pytest.raises(ElasticScanError) as caught:
        call()
    texts = [line for line in traceback.format_exception(caught.value) if not line.startswith("  ")]
    behind: list[BaseException | None] = [caught.value]
    for error in behind:
        if error is not None and error not in behind[: behind.index(error)]:
            held = vars(error).values()
            texts += [repr(error), repr(error.args), *(text for text in held if isinstance(text, str))]
            texts += [repr(getattr(value, "password", None)) for value in held]
            behind += [error.__cause__, error.__context__, *getattr(error, "exceptions", ())]
    return "".join(texts)


LONG = [pytest.param(FILES, place, marks=pytest.mark.long) for place in PLACES if place not in AMBIGUOUS]


@pytest.mark.parametrize(("uses", "place"), [*((USES, place) for place in PLACES), *LONG])
def test_no_error_of_a_catalog_a_root_or_files_shows_a_password(
    uses: dict[str, Use], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    if place in AMBIGUOUS:  # a part of a password is never asked for as a host
        monkeypatch.setattr("socket.getaddrinfo", lambda *names, **_: asked.append(names))
        with pytest.raises(InvalidOption, match="where its host begins"):
            Store.open(place)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIPS", place)
    with Store.create(tmp_path / "s", ["a"]) as store:
        store.create_table("t", {"id": [1]}, "id")
        for how, use in uses.items():
            assert SECRET not in message(partial(use, place, tmp_path, store)), how
    assert not any(SECRET in path.name for path in tmp_path.rglob("*"))
    assert asked == []


NOISE = st.text(st.sampled_from("ab1 :/@?&=;%+'\"\\"), max_size=4)
NAMES_OF_SECRETS = ["password", "sslpassword", "PASSWD", "pwd", "client_secret", "token", "api_key", "sslkey"]
SCHEMES = ["postgresql+psycopg", "postgresql", "mysql", "wat", "wat+x", "POSTGRES", "s3"]


@st.composite
def places(draw: st.DrawFn) -> str:
    """A URL, or what someone took for one, with a password or another secret in it."""
    secret, name = draw(NOISE) + SECRET + draw(NOISE), draw(st.sampled_from(NAMES_OF_SECRETS))
    if draw(st.integers(0, 3)) == 0:
        quote, secret = draw(st.sampled_from(["", "'"])), secret.replace("\\", "")
        secret = secret.replace("'", "\\'") if quote else "".join(secret.split())
        pairs = ["host=127.0.0.1", "port=1", f"{name}={quote}{secret}{quote}"]
        return draw(st.sampled_from([" ", ";", "  "])).join(draw(st.permutations(pairs)))
    scheme, slashes = draw(st.sampled_from(SCHEMES)), "/" * draw(st.integers(0, 4))
    if draw(st.booleans()):
        if "+" not in scheme and len(slashes) < 2:  # where that ends is anybody's guess
            secret = "".join(secret.split())
        return f"{scheme}:{slashes}ann:{secret}@127.0.0.1:1/x"
    value = "".join(secret.replace("&", "").split())
    return f"{scheme}:{slashes}127.0.0.1:1/x?{name}={value}{draw(st.sampled_from(['', '&x=y']))}"


@settings(
    deadline=None,
    max_examples=examples(120),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(place=places())
@example(place="postgresql+psycopg://ann:// hunter2@127.0.0.1:1/x")
def test_no_secret_of_any_place_is_reported(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in (shown(place), redact(f"there is nothing at {place}"), redact(str({"uri": place}))):
        assert SECRET not in text
    assert shown(shown(place)) == shown(place)
    if "://" not in place:
        assert SECRET not in message(lambda: path_or_uri(place))
    monkeypatch.chdir(tmp_path)
    for how in ("open", "create"):
        assert SECRET not in message(partial(USES[how], place, tmp_path, None))  # type: ignore[arg-type]
    here = Path(mkdtemp(dir=tmp_path))
    with suppress(InvalidOption), Store.create(here, {"a": place}, disks=lambda _: MemoryDisk()) as store:
        assert SECRET not in f"{store.status()} {store!r}"
    assert not any(SECRET in path.name for path in tmp_path.rglob("*"))


@pytest.mark.long
def test_a_store_whose_catalog_is_at_a_server_shows_no_password(
    postgres_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Store.create(postgres_url, {"a": str(tmp_path / "a")}).create_table("t", {"id": [1]}, primary_key="id")
    for place in (postgres_url.replace("@", f":{SECRET}@"), f"{postgres_url}&password={SECRET}"):
        with Store.open(place) as store:
            table = store.table("t")
            shown = [store, store.status(), store.topology, store.tables(), store.topology_history()]
            read = TableRead(None, place, table.definition)  # type: ignore[arg-type]
            shown += [table, table.scan(), table.history(), read]
            assert SECRET not in f"{shown!r}{store}{store._repr_html_()}"
            assert SECRET not in message(lambda: store.table("no"))
        adopt(place)
        assert SECRET not in capsys.readouterr().out


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
        tx = store.context.catalog.newest()
        secret = next(iter(seal_keys(tx.state, tx.now).values()))
        said = message(lambda: tx.execute("SELECT nothing WHERE 1 = :secret", {"secret": secret}))
        assert "nothing" in said and repr(secret) not in said
