"""No password, token or key of a URI is shown, whatever form the URI has."""

from __future__ import annotations

import pickle
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import NotFound
from elasticscan.base.redaction import as_cause, redact, shown, without
from tests.base.examples import examples

HARMLESS = [
    "/data/flights.store",
    "flights.store",
    "file:///data/a@b",
    "redis://h:7000,h:7001/person",
    "sqlite:////data/x.db",
    "postgresql+psycopg://ann@db:5432/flights?sslmode=require&application_name=x",
    "s3://bucket/prefix?region=eu-west-1&scheme=http&endpoint_override=127.0.0.1%3A9000",
    "gs://anonymous@bucket/x",
    "abfss://container@account.dfs.core.windows.net/x",
    "env:FLIGHTS",
]


@pytest.mark.parametrize("uri", HARMLESS)
def test_what_has_no_secret_is_shown_as_it_is(uri: str) -> None:
    assert shown(uri) == uri
    assert redact(f"the store '{uri}' is {uri}.") == f"the store '{uri}' is {uri}."


NOISE = st.text(st.sampled_from("ab1 @/?#:%+;=,.'\"[]") | st.characters(codec="ascii"), max_size=6).map(
    lambda text: text.replace("\n", "")  # which ends a text of a log
)
HOSTS = st.lists(
    st.sampled_from(["h", "db.example.org:5432", "127.0.0.1:1", "[::1]:7000"]), min_size=1, max_size=3
)


PARAMETERS = [
    *("PassWord={}", "sslkey={}", "user={}", "key={}", "x={}", "hosts={}", "%68={}", "={}"),
    *("options=-cpassword%3D{}", "endpoint_override=http%3A%2F%2Fann%3A{}%40h%3A9000"),
]


@st.composite
def uris(draw: st.DrawFn, secret: str = "hunter2") -> str:
    """Draw a URI with a secret in its password or in a parameter, also with several hosts."""
    text = f"{draw(NOISE)}{secret}{draw(NOISE)}"
    text = quote(text, safe="") if draw(st.booleans()) else text
    scheme = draw(st.sampled_from(["postgresql+psycopg", "redis", "s3", "https", "WAT", "foo_bar", "x.y"]))
    hosts = ",".join(draw(HOSTS))
    if draw(st.booleans()):
        text = text if "://" not in text else "".join(text.split())  # else a second URI begins in it
        return f"{scheme}://{draw(st.sampled_from(['ann', '']))}:{text}@{hosts}/db?sslmode=require"
    text = "".join(text.replace("&", "").split())  # which end a parameter and a URI
    parameter = draw(st.sampled_from(PARAMETERS)).replace("{}", text)
    user, more = (
        draw(st.sampled_from(["", "ann@", "ann:pw@"])),
        draw(st.sampled_from(["", "&x=y", "&port=1"])),
    )
    return f"{scheme}://{user}{hosts}/db?host=h:1&{parameter}{more}"


@settings(deadline=None, max_examples=examples(2_000))
@given(
    uris(), uris(), st.sampled_from(["", "ann@example.org", "password=x", "(user ann at host)", "mysql:x"])
)
def test_no_secret_of_any_uri_is_shown_alone_or_in_a_text(uri: str, other: str, after: str) -> None:
    assert "hunter2" not in shown(uri)
    assert shown(shown(uri)) == shown(uri)
    for text in (
        f"cannot reach {uri}: refused; see /x {after}",
        f"{uri} {after}",
        f"'{uri}' is not {other!r}, {after}",
        repr({"uri": uri, "uris": [other, after]}),
        f"({uri}),{after}\n{other}",
    ):
        assert "hunter2" not in redact(text)
    assert "hunter2" not in without(f"no host in {uri!r}", uri)


def test_uris_stay_readable_without_their_secrets() -> None:
    for uri in (
        "postgresql+psycopg://ann:***@host:5432/db?sslmode=require",
        "postgresql+psycopg://ann@corp:***@host/db",
        "redis://ann:***@h:7000,h:7001/person",
        "redis://:***@[::1]:7000,[::2]/person?region=x&token=***",
        "abfs://account@host/x?***",
        "s3://bucket/prefix",
    ):
        whole = uri.replace("***", "hunter2%40%2F")
        assert shown(whole) == shown(uri) == uri
        said = redact(f"cannot open '{whole}', nor {whole}: refused; ask ann")
        assert said.startswith(f"cannot open '{uri}")
        assert said.endswith(f" nor {uri}: refused; ask ann") or "token" in uri


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql+psycopg://h/db;password=first hunter2",
        "postgresql+psycopg://h/db password=first hunter2",
        "mssql+pyodbc://h/db?odbc_connect=x;PWD=first hunter2",
        "sqlserver://h;database=d;pwd=hunter2",
        "password=first hunter2",
    ],
)
def test_a_password_with_blanks_after_a_url_is_hidden_to_its_end(uri: str) -> None:
    assert "hunter2" not in shown(uri) + redact(uri) + redact(f"cannot open {uri}: refused")


@pytest.mark.long
@pytest.mark.parametrize(
    "part", ["a:", "pg:x ", "token", "x=", "a://b ", "pwd='", "a:b:c ", "\\", "@", ".", "x"]
)
def test_a_text_of_a_million_characters_is_looked_at_once(part: str) -> None:
    """And not once more for each place in it where a URI might begin: that would take hours."""
    many = part * (1_000_000 // len(part))
    assert "hunter2" not in redact(f"{many} postgresql://ann:hunter2@db/x")
    assert "hunter2" not in shown(f"postgresql://ann:hunter2{many}@db/x")
    assert "hunter2" not in redact(f"at {many}password=hunter2")


def test_errors_redact_their_text_and_their_fields_however_deep() -> None:
    uri = "postgresql://ann:hunter2@db/x"
    deep: list[object] = [uri, uri, uri]
    for _ in range(100_000):
        deep = [[deep[0]], {"a": deep[1]}, (deep[2],)]
    error = NotFound(f"{uri} holds no store", uri=uri, more={"roots": [uri, (uri, 3)]}, deep=deep)
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert "hunter2" not in f"{each} {each!r} {each.args} {each.fields}"
        assert each.fields["more"]["roots"][1] == ("postgresql://ann:***@db/x", 3)


def test_a_cause_has_no_secret_in_its_text_and_nothing_behind_it() -> None:
    uri = "postgresql://ann:hunter2@db/x"
    for leaking in (
        FileNotFoundError(2, f"not at {uri}", uri, None, uri),
        KeyError(uri),
        UnicodeDecodeError("utf-8", b"x", 0, 1, uri),
    ):
        leaking.__cause__ = leaking.__context__ = KeyError(uri)
        leaking.connection = uri  # type: ignore[union-attr]
        assert as_cause(leaking, uri) is leaking
        assert "hunter2" not in f"{leaking} {leaking!r} {leaking.args} {vars(leaking)}"
        assert leaking.__cause__ is leaking.__context__ is None

    class Stubborn(OSError):
        def __str__(self) -> str:
            return uri

    assert as_cause(Stubborn(), uri) is None


def test_whatever_part_of_a_uri_is_not_shown_is_in_no_text_about_it() -> None:
    uri = "postgresql://127.0.0.1:1/x?connect_timeout=1&password=hun@ter2.ter2"
    for text in ("no host 'ter2.ter2'", "'hun' is no parameter", "no ter2.ter2:5432"):
        assert "hun" not in without(text, uri)
        assert "ter2" not in without(text, uri)
    assert without("refused by db, as ann", "postgresql://ann:db@db/x") == "refused by db, as ann"


def test_what_looks_like_a_driver_within_a_password_hides_all_from_the_first_colon() -> None:
    said = redact("cannot reach s3:///ann:hunter2 ]C+h:a>f@[::1]:7000/x: refused\nsee redis:7000")
    assert said == "cannot reach s3:***\nsee redis:7000"


def test_a_host_is_shown_unless_it_may_be_a_part_of_a_password() -> None:
    for host in ("db", "db.example.org", "127.0.0.1", "::1"):
        place = f"[{host}]" if ":" in host else host
        for query in ("", "?password=ab"):
            assert host in shown(f"postgresql://ann:hunter2@{place}:5432/x{query}")
            assert host in shown(f"postgresql://{place}/x{query}")
    assert shown("postgresql://db/x?password=a@b") == "postgresql://db/x?password=***"
    assert shown("postgresql://db:1/x?password=@hunter2") == "postgresql://***"
    assert shown("postgresql://ann:a@hunter2/b@db/x") == "postgresql://***"
    assert shown("postgresql://ann:a@d/b@db/x") == "postgresql://***"
