"""Options of a cluster and of a table in it, from a URL and from names and values.

An option has the name of its field, in Spark's spelling: `keysPattern` is `keys_pattern`. Case, dots and underscores
do not matter, so the names of spark-redis (`keys.pattern`) are understood.
"""  # noqa: E501

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from elasticscan.backends.redis.cluster_map import Address
from elasticscan.backends.redis.values import KINDS, Kind
from elasticscan.base.errors import InvalidOption
from elasticscan.base.redaction import shown
from elasticscan.base.suggestions import suggest

FAIL_FAST = "FAILFAST"
_PORT = 6379
_FROM_ENVIRONMENT = "env:"
Parse = Callable[[str, str], Any]


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


def _one_of(*values: str) -> Parse:
    def read(name: str, text: str) -> str:
        found = next((value for value in values if value.lower() == text.lower()), None)
        if found is None:
            raise InvalidOption(f"{name}={text!r} must be one of {', '.join(values)}", option=name)
        return found

    return read


def _flag(name: str, text: str) -> bool:
    return bool(_one_of("true", "false")(name, text) == "true")


def _model(name: str, text: str) -> str:
    if text.lower() == "binary":
        raise InvalidOption("model='binary' holds serialized Java objects; write hash or json", option=name)
    return str(_one_of(*KINDS)(name, text))


def _text(_: str, text: str) -> str:
    return text


def _secret(_: str, text: str) -> str:
    return resolved(text)


def _place(name: str, text: str) -> str:
    """Refuse a URI whose secrets Spark would show in plans; `env:NAME` is resolved where it is opened."""
    if shown(text) != text:
        raise InvalidOption(
            f"{name} must not hold a password; set a variable to the URL, and give env:NAME", option=name
        )
    return text


def _option(read: Parse, default: Any, shown: bool = True) -> Any:
    return field(default=default, repr=shown, metadata={"read": read})


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The way to reach a cluster.

    Attributes:
        seeds: nodes that are asked for the others.
        timeout: seconds that a connection or an answer may take.
        slot_timeout: seconds that a slot may stay refused.
        address_map: the addresses to use in place of those that nodes announce.
        key_secret: what seals continuation keys; None for keys that anyone who holds them can read.
        topology_history: a store or a SQLite file that keeps each placement which was seen; None for memory.
    """

    seeds: tuple[Address, ...]
    tls: bool = False
    user: str | None = _option(_text, None)
    password: str | None = _option(_text, None, shown=False)
    tls_ca_file: str | None = _option(_text, None)
    tls_cert_file: str | None = _option(_text, None)
    tls_key_file: str | None = _option(_text, None)
    timeout: float = _option(_seconds, 10.0)
    slot_timeout: float = _option(_seconds, 60.0)
    address_map: Mapping[Address, Address] = field(default_factory=dict, metadata={"read": _addresses})
    key_secret: str | None = _option(_secret, None, shown=False)
    topology_history: str | None = _option(_place, None)


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The keys that are a table, and the form of their values. Plain values only."""

    keys_pattern: str = _option(_text, "*")
    key_column: str = _option(_text, "key")
    model: Kind = _option(_model, "hash")  # noqa: RUF009 - a field, as the others
    ttl_column: str | None = _option(_text, None)
    sample_keys: int = _option(_count, 1_000)
    infer_schema: bool = _option(_flag, False)
    mode: str = _option(_one_of("PERMISSIVE", FAIL_FAST), "PERMISSIVE")
    fail_on_torn_slots: bool = _option(_flag, True)
    max_slot_keys: int = _option(_count, 1_000_000)


Options = type[ClusterOptions] | type[TableOptions]


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace(".", "")


def _parsers(of: Options) -> dict[str, tuple[str, Parse]]:
    """Return the field and the parser of each option, by the option's plain name."""
    known = {_plain(each.name): (each.name, each.metadata["read"]) for each in fields(of) if each.metadata}
    return known | ({"auth": known["password"]} if "password" in known else {})


def _shown(of: Options) -> list[str]:
    words = (each.name.split("_") for each in fields(of) if each.metadata)
    return [first + "".join(word.capitalize() for word in rest) for first, *rest in words]


def read_options(given: Mapping[str, Any], *allowed: Options) -> list[dict[str, Any]]:
    """Return what options say of each of the things that they may be about, by the names of fields.

    Values may be texts; None is an option that was not given. Raises `InvalidOption`.
    """
    parsers = [_parsers(of) for of in allowed]
    read: list[dict[str, Any]] = [{} for _ in allowed]
    for name, value in given.items():
        number = next((at for at, known in enumerate(parsers) if _plain(name) in known), None)
        if number is None:
            names = [name for of in allowed for name in _shown(of)]
            raise InvalidOption(f"there is no option {name!r}{suggest(name, names)}", option=name)
        if value is not None:
            field_name, parse = parsers[number][_plain(name)]
            read[number][field_name] = parse(name, str(value))
    return read


def resolved(uri: str) -> str:
    """Return a URI or secret, also one that an environment variable holds."""
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
    if parts is None or seeds is None or "@" in parts.path or parts.query or parts.fragment:
        raise InvalidOption(
            "the URL must be redis://user:password@host:port,host:port/table; percent-encode the password",
            option="url",
        )
    user, has_password, password = login.partition(":")
    options = ClusterOptions(
        seeds,
        parts.scheme in ("rediss", "valkeys"),
        unquote(user) or None,
        unquote(password) if has_password else None,
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
