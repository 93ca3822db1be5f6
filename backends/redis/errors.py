"""Errors of clusters, as those of the product: what cannot be waited for."""

from __future__ import annotations

from elasticscan.base.errors import (
    InvalidOption,
    LimitExceeded,
    NotReady,
    SchemaMismatch,
    ShardUnavailable,
    TableChanged,
)

ACL = (
    "+get +hmget +hscan +scan +exists +pttl +multi +exec +asking +ping +info +cluster|getkeysinslot "
    "+cluster|countkeysinslot +cluster|nodes"
)


def no_permission(error: Exception) -> ShardUnavailable:
    return ShardUnavailable(
        f"the user lacks a permission ({error}); grant it: ACL SETUSER name {ACL} %R~<table>:*", acl=ACL
    )


def unexpected(error: Exception) -> ShardUnavailable:
    if "unknown" in str(error):
        return ShardUnavailable(
            f"the server does not offer a command that scans need ({error!s:.200}); read another one: "
            "docs/redis.md names the services"
        )
    return ShardUnavailable(f"a server of the cluster answered {error!s:.200}; look at its log")


def slot_too_large(slot: int, count: int, most: int) -> LimitExceeded:
    return LimitExceeded(
        f"slot {slot} holds {count:,} keys and maxSlotKeys is {most:,}; raise it, or spread the keys",
        slot=slot,
        most=most,
    )


def wrong_type(name: bytes, kind: str) -> SchemaMismatch:
    form = "hash" if kind in ("hash", "sample") else "string"
    return SchemaMismatch(
        f"key {name.decode(errors='replace')!r} is no {form}; choose another model or a narrower keysPattern"
    )


def stays_refused(slots: str, seconds: float, reason: str) -> NotReady:
    return NotReady(
        f"slots {slots} could not be read for {seconds:,.0f} s ({reason}); run redis-cli --cluster check",
        kind="slots",
    )


def unreachable(place: str, error: Exception) -> ShardUnavailable:
    return ShardUnavailable(f"no node of the cluster answers at {place}: {error}; check url and addressMap")


def refused_login(error: Exception, place: str) -> ShardUnavailable:
    return ShardUnavailable(
        f"{place} refuses the login ({error!s:.200}); check user and password, which every node needs"
    )


def replaced() -> TableChanged:
    return TableChanged("the cluster was replaced by another one; begin another scan")


def not_a_cluster() -> InvalidOption:
    return InvalidOption("the server is not in cluster mode; start it with cluster-enabled yes", option="url")


def torn_slots(slots: str) -> ShardUnavailable:
    return ShardUnavailable(
        f"slots {slots} have keys at masters that do not serve them; run redis-cli --cluster fix, or read "
        "with failOnTornSlots=false",
        slots=slots,
    )
