"""Options of a cluster and of a table in it, from a URL and from names and values.

An option has the name of its field, in Spark's spelling: `keysPattern` is `keys_pattern`. Case, dots and
underscores do not matter, so the names of spark-redis (`keys.pattern`) are understood.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal
from urllib.parse import unquote

from elasticscan.backends.redis.cluster_map import Address
from elasticscan.base.errors import InvalidOption
from elasticscan.base.redaction import shown
from elasticscan.base.suggestions import suggest
from elasticscan.store import resolve

# A sample is a hash with unknown fields: all fields are read, or the first ones if there are very many.
Kind = Literal["hash", "string", "json", "sample"]
KINDS: tuple[Kind, ...] = ("hash", "string", "json")  # the kinds that users choose
MODES = ("PERMISSIVE", "FAILFAST")
_PORT = 6379
_PLACE = r"(\[[^][@/?#,]+\]|[^][:@/?#,]+)(?::([0-9]{1,5}))?"
_LOGIN = r"(?P<user>[^:@/?#]*)(?::(?P<password>[^@/?#]*))?@"
_SCHEME = r"(?:redis|valkey)(?P<tls>s?)://"
_URL = re.compile(rf"{_SCHEME}(?:{_LOGIN})?(?P<places>{_PLACE}(?:,{_PLACE})*)(?:/(?P<table>[^@?#]*))?")


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The way to reach a cluster.

    Attributes:
        seeds: addresses of nodes that are asked for all other nodes.
        timeout: seconds that a connection or an answer may take.
        slot_timeout: seconds that a slot may stay refused.
        address_map: the address to use for each address that a node announces.
        key_secret: seals continuation keys; without it, anyone who has a key can read it.
        topology_history: a store for the placements that drivers read; None for the process's memory.
    """

    seeds: tuple[Address, ...]
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    timeout: float = 10.0
    slot_timeout: float = 60.0
    address_map: Mapping[Address, Address] = field(default_factory=dict)
    key_secret: str | None = field(default=None, repr=False)
    topology_history: str | None = None


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The keys of a table, and the form of their values. All fields are plain values."""

    keys_pattern: str = "*"
    key_column: str = "key"
    model: Kind = "hash"
    ttl_column: str | None = None
    sample_keys: int = 1_000
    infer_schema: bool = False
    mode: str = MODES[0]
    fail_on_torn_slots: bool = True
    max_slot_keys: int = 1_000_000


def _addresses(text: str) -> dict[Address, Address]:
    pairs = [part.split("=") for part in text.split(",")]
    return {_address(announced.strip()): _address(reached.strip()) for announced, reached in pairs}


def _address(text: str) -> Address:
    found = re.fullmatch(_PLACE, text)
    port = int(found[2] or _PORT) if found else 0
    if found is None or not 0 < port < 1 << 16:
        raise InvalidOption(f"{text!r} must be host:port; give a port from 1 to 65535", option="url")
    return found[1].strip("[]"), port


def _place(text: str) -> str:
    """Refuse a URI with secrets, which Spark would show in plans. `env:NAME` is resolved at its opening."""
    if shown(text) != text:
        raise InvalidOption(
            "topologyHistory must not hold a password; set a variable to the URL, and give env:NAME",
            option="topologyHistory",
        )
    return text


def _positive(number: float) -> float:
    if not 0 < number < 1e9:
        raise ValueError(number)
    return number


# The parser of an option's text and its description, by the option's name or else its type.
_FORMS: dict[str, tuple[Callable[[str], Any], str]] = {
    "str": (str, "text"),
    "str | None": (str, "text"),
    "bool": (lambda text: {"true": True, "false": False}[text.lower()], "true or false"),
    "int": (lambda text: _positive(int(text)), "a whole number above 0"),
    "float": (lambda text: _positive(float(text)), "a number of seconds above 0"),
    "Kind": (lambda text: KINDS[KINDS.index(text.lower())], ", ".join(KINDS)),
    "mode": (lambda text: MODES[MODES.index(text.upper())], ", ".join(MODES)),
    "key_secret": (resolve, "text"),
    "topology_history": (_place, "text"),
    "address_map": (_addresses, "announced=reached pairs: 10.0.0.1:6379=host:7001"),
}


def read_options(given: Mapping[str, Any], *kinds: type) -> list[dict[str, Any]]:
    """Parse options into the fields of each of the dataclasses `kinds`.

    Values may be texts; None means that the option is not set. Raises `InvalidOption`.
    """
    known = {_plain(each.name): (at, each) for at, kind in enumerate(kinds) for each in fields(kind)}
    known = {name: found for name, found in known.items() if name not in ("seeds", "tls")}
    names = [re.sub("_(.)", lambda letter: letter[1].upper(), each.name) for _, each in known.values()]
    if "password" in known:
        known["auth"] = known["password"]
    read: list[dict[str, Any]] = [{} for _ in kinds]
    for name, value in given.items():
        if _plain(name) not in known:
            raise InvalidOption(f"there is no option {name!r}{suggest(name, names)}", option=name)
        at, option = known[_plain(name)]
        if value is not None:
            parse, allowed = _FORMS.get(option.name) or _FORMS[str(option.type)]
            try:
                read[at][option.name] = parse(str(value))
            except (ValueError, LookupError):
                raise InvalidOption(f"{name}={str(value)!r} must be {allowed}", option=name) from None
    return read


def _plain(name: str) -> str:
    return re.sub("[._]", "", name).lower()


def split_uri(uri: str) -> tuple[dict[str, Any], str]:
    """Read a URL: fields of `ClusterOptions`, and the table or "".

    Raises `InvalidOption`.
    """
    found = _URL.fullmatch(resolve(uri))
    if found is None:  # the error does not quote the URL, which may have a password
        raise InvalidOption(
            "the URL must be redis://user:password@host:port,host:port/table; percent-encode the password",
            option="url",
        )
    user, password, table = (text and unquote(text) for text in found.group("user", "password", "table"))
    seeds = tuple(map(_address, found["places"].split(",")))
    fields_of_url = {"seeds": seeds, "tls": bool(found["tls"]), "user": user or None, "password": password}
    return fields_of_url, (table or "").strip("/")
