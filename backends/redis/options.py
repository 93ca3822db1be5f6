"""Options of a cluster and of a table in it, from a URL and from names and texts, as Spark gives them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from elasticscan.backends.redis.cluster_map import Address
from elasticscan.backends.redis.values import KINDS, Kind
from elasticscan.base.errors import InvalidOption
from elasticscan.base.suggestions import suggest

FAIL_FAST = "FAILFAST"
_PORT = 6379
_FROM_ENVIRONMENT = "env:"


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The way to reach a cluster.

    Attributes:
        seeds: nodes that are asked for the others.
        timeout: seconds that a connection or an answer may take.
        slot_timeout: seconds that a slot may stay refused.
        address_map: the addresses to use in place of those that nodes announce.
    """

    seeds: tuple[Address, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    timeout: float = 10.0
    slot_timeout: float = 60.0
    address_map: Mapping[Address, Address] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The keys that are a table, and the form of their values. Plain values only."""

    keys_pattern: str
    key_column: str = "key"
    model: Kind = "hash"
    ttl_column: str | None = None
    sample_keys: int = 1_000
    infer_schema: bool = False
    mode: str = "PERMISSIVE"
    fail_on_torn_slots: bool = True
    max_slot_keys: int = 1_000_000

    def __post_init__(self) -> None:
        _kind("model", self.model)
        _mode("mode", self.mode)


def resolved(uri: str) -> str:
    """Return a URI, also one that an environment variable holds."""
    if not uri.startswith(_FROM_ENVIRONMENT):
        return uri
    name = uri.removeprefix(_FROM_ENVIRONMENT)
    if name not in os.environ:
        raise InvalidOption(
            f"the environment variable {name} is not set; set it, or give the URL", option="url"
        )
    return os.environ[name]


def split_uri(uri: str) -> tuple[ClusterOptions, str | None]:
    """Read `redis://user:password@host:port,host:port/table`: how to reach the cluster, and the table.

    Raises `InvalidOption`.
    """
    parts = _parts(resolved(uri))
    login, _, places = ("", "", "") if parts is None else parts.netloc.rpartition("@")
    seeds = _seeds(places)
    # Errors of parsing hold the password, also as the context of another: none is under way here.
    if parts is None or seeds is None or "@" in parts.path:
        raise InvalidOption(
            "the URL must be redis://user:password@host:port,host:port/table; percent-encode the password",
            option="url",
        )
    user, has_password, password = login.partition(":")
    options = ClusterOptions(
        seeds,
        unquote(user) or None,
        unquote(password) if has_password else None,
        tls=parts.scheme in ("rediss", "valkeys"),
    )
    return options, unquote(parts.path.strip("/")) or None


def _parts(uri: str) -> SplitResult | None:
    try:
        return urlsplit(uri)
    except ValueError:
        return None


def _seeds(places: str) -> tuple[Address, ...] | None:
    try:
        return tuple(_address(place) for place in places.split(","))
    except ValueError:
        return None


def _address(place: str) -> Address:
    host, colon, port = place.rpartition(":") if not place.endswith("]") else (place, "", "")
    host, port = (host, port) if colon else (place, str(_PORT))
    if not host or not 0 < int(port) < 1 << 16:
        raise ValueError(place)
    return host.strip("[]"), int(port)


def _addresses(name: str, text: str) -> dict[Address, Address]:
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return {_address(announced.strip()): _address(reached.strip()) for announced, reached in pairs}
    except ValueError:
        raise InvalidOption(
            f"{name} must be announced=reached pairs: 10.0.0.1:6379=host:7001", option=name
        ) from None


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = 0
    if not 0 < seconds < 1e9:
        raise InvalidOption(f"{name}={text!r} must be a number of seconds above 0", option=name)
    return seconds


def _count(name: str, text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 40:
        raise InvalidOption(f"{name}={text!r} must be a whole number above 0", option=name)
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidOption(f"{name}={text!r} must be true or false", option=name)
    return text.lower() == "true"


def _kind(name: str, text: str) -> str:
    if text.lower() not in KINDS:
        why = ": it holds serialized Java objects" if text.lower() == "binary" else ""
        raise InvalidOption(
            f"{name}={text!r} cannot be read{why}; use one of {', '.join(KINDS)}", option=name
        )
    return text.lower()


def _mode(name: str, text: str) -> str:
    if text.upper() not in ("PERMISSIVE", FAIL_FAST):
        raise InvalidOption(f"{name}={text!r} must be PERMISSIVE or FAILFAST", option=name)
    return text.upper()


def _text(_: str, text: str) -> str:
    return text


Parse = Callable[[str, str], Any]
# The field that an option sets, and how its text is read.
OPTIONS: Mapping[str, tuple[str, Parse]] = {
    "timeout": ("timeout", _seconds),
    "slotTimeout": ("slot_timeout", _seconds),
    "addressMap": ("address_map", _addresses),
    "tlsCaFile": ("tls_ca_file", _text),
    "tlsCertFile": ("tls_cert_file", _text),
    "tlsKeyFile": ("tls_key_file", _text),
    "user": ("user", _text),
    "auth": ("password", _text),
    "keysPattern": ("keys_pattern", _text),
    "keyColumn": ("key_column", _text),
    "model": ("model", _kind),
    "ttlColumn": ("ttl_column", _text),
    "sampleKeys": ("sample_keys", _count),
    "inferSchema": ("infer_schema", _flag),
    "mode": ("mode", _mode),
    "failOnTornSlots": ("fail_on_torn_slots", _flag),
    "maxSlotKeys": ("max_slot_keys", _count),
}
# The names that spark-redis has for some of them.
_DOTTED = {"keys.pattern": "keysPattern", "key.column": "keyColumn", "infer.schema": "inferSchema"}
_OF_CLUSTER = frozenset(each.name for each in fields(ClusterOptions))


def parse_options(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what options say of the cluster, and of the table, by the names of fields.

    Raises `InvalidOption`.
    """
    spelt = {name.lower(): name for name in OPTIONS}
    cluster: dict[str, Any] = {}
    table: dict[str, Any] = {}
    for given, text in options.items():
        name = _DOTTED.get(given.lower()) or spelt.get(given.lower())
        if name is None:
            raise InvalidOption(f"there is no option {given!r}{suggest(given, OPTIONS)}", option=given)
        field_name, read = OPTIONS[name]
        (cluster if field_name in _OF_CLUSTER else table)[field_name] = read(name, str(text))
    return cluster, table
