"""The continuation key: everything a scan needs to go on elsewhere, as one sealed text.

Sealed, because a key holds row values (its positions) and says what may be read: only the
store can read or make one. AES-256-GCM; the header and the store's id are bound as
associated data, so a key of another store, a cut key and an altered key all fail the same way.
A key says itself when its time is up. The format is described byte for byte in `docs/formats.md`.
"""

from __future__ import annotations

import base64
import hmac
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, fields, replace

import msgpack
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from elasticscan.base.errors import ContinuationKeyError, LimitExceeded, SnapshotExpired
from elasticscan.base.limits import MAX_KEY_CHARS
from elasticscan.protocol.cursors import Cursor, Cursors, Segment, Segments, restrict
from elasticscan.topology import SlotSet

KEY_VERSION = 1
_HEADER_BYTES = 3
_NONCE_BYTES, _TAG_BYTES = 12, 16
_BODY = _HEADER_BYTES + _NONCE_BYTES
_NEVER = 1 << 62
_MAC_CHARS = 16


@dataclass(frozen=True, slots=True)
class ContinuationKey:
    """The state of a scan after a page. The order of its fields is that of a sealed key.

    Attributes:
        table: the table's id; a table that was dropped and made again has another.
        snapshot: the commit number the scan reads at.
        base_topology: number of the topology that the scan started from.
        slots: all slots of the scan, done or not.
        cursors: the slots that are not done, and how far they were read.
        columns, filter: what the scan returns; the filter as SQL text.
        page_rows, page_bytes: limits of a page.
        lease: the lease that keeps the snapshot readable.
        index: id of the index that it reads through; None for a direct scan.
        descending: from the index's highest key to the lowest.
        merged: all shards in one order, instead of one shard after another.
        segments: of a scan of changes, what is left to read, one after another: `cursors` stand in the
            first one. None for a scan of a snapshot.
        feed: rows say what changed, in which commit, and when.
        limit: how many rows are still to be given; None for all.
        by_key: it reads only ranges of primary keys, which follow from its filter.
        definition: the number of the table's definition when it began, which names and types its columns.
        plan: what the back end needs besides, which it alone understands; nothing at the embedded store.
    """

    table: int
    snapshot: int
    base_topology: int
    slots: SlotSet
    cursors: Cursors
    columns: tuple[str, ...]
    filter: str | None
    page_rows: int
    page_bytes: int
    lease: str
    index: int | None = None
    descending: bool = False
    merged: bool = False
    segments: Segments | None = None
    feed: bool = False
    limit: int | None = None
    by_key: bool = False
    definition: int = 1
    plan: bytes = b""

    def restrict_to(self, slots: SlotSet) -> ContinuationKey:
        """Return the scan over `slots` alone, as one of the tasks that a scan is divided among reads it."""
        if self.segments:
            # Of a slot in no cursor a part of the first segment was read: the key does not say how much.
            assert self == self.begin(self.segments), "a scan of changes is divided before it has begun"
            return replace(self, slots=slots).begin(self.segments)
        return replace(self, slots=slots, cursors=restrict(self.cursors, slots))

    def advance(self, cursors: Cursors, upto: int | None = None) -> ContinuationKey:
        """Return the state after a page; without cursors the changes up to commit `upto` are read."""
        if cursors or not self.segments:
            return replace(self, cursors=cursors)
        assert upto is not None, "changes are read up to some commit"
        first, *rest = self.segments
        return self.begin((replace(first, after=upto), *rest) if upto < first.upto else tuple(rest))

    def begin(self, segments: Segments) -> ContinuationKey:
        """Return the state before the first segment with slots of this scan; complete if there is none."""
        for number, segment in enumerate(segments):
            if here := self.slots & segment.slots:
                return replace(self, segments=segments[number:], cursors=(Cursor(here),))
        return replace(self, segments=(), cursors=())


def pack(key: ContinuationKey, expires_at: int) -> bytes:
    """msgpack of a flat list: when the key's time is up, then all fields in their order."""
    plain = {
        "slots": _flat(key.slots),
        "cursors": [(_flat(cursor.slots), cursor.position) for cursor in key.cursors],
        "segments": key.segments and [astuple(segment) for segment in key.segments],
        "lease": bytes.fromhex(key.lease),
    }
    values = (plain.get(name, getattr(key, name)) for name in _FIELDS)
    return bytes(msgpack.packb([expires_at, *values]))


def unpack(packed: bytes) -> tuple[ContinuationKey, int]:
    """Return the inverse of `pack`. Only we can have sealed it, so its form is known."""
    try:
        expires_at, *values = msgpack.unpackb(packed, max_ext_len=0, max_map_len=0)
        plain = dict(zip(_FIELDS, values, strict=True))
        plain["slots"], plain["columns"] = _slots(plain["slots"]), tuple(plain["columns"])
        plain["cursors"] = tuple(Cursor(_slots(flat), position) for flat, position in plain["cursors"])
        plain["lease"] = plain["lease"].hex()
        if plain["segments"] is not None:
            plain["segments"] = tuple(Segment(*each) for each in plain["segments"])
        return ContinuationKey(**plain), expires_at
    except (ValueError, TypeError, AttributeError, AssertionError, msgpack.UnpackException) as error:
        raise _refusal("its content has another form than this release writes") from error


def _flat(slots: SlotSet) -> list[int]:
    return [bound for start_end in slots for bound in start_end]


def _slots(flat: list[int]) -> SlotSet:
    return SlotSet.of(zip(flat[::2], flat[1::2], strict=True))


_FIELDS = [each.name for each in fields(ContinuationKey)]


class Sealer:
    """Seals and opens keys of one store.

    Args:
        store_id: the store's id, bound into every key.
        secrets: 32-byte keys by their number. The highest seals, all open, so that a secret can
            be replaced while scans are under way.
    """

    def __init__(self, store_id: str, secrets: Mapping[int, bytes]) -> None:
        self._store_id = store_id.encode()
        self._ciphers = {number: AESGCM(secret) for number, secret in secrets.items()}
        self._newest = max(secrets)

    def seal(self, key: ContinuationKey, expires_at: float = _NEVER) -> str:
        """Raise `LimitExceeded` for one that `open` would refuse."""
        header = bytes([KEY_VERSION]) + self._newest.to_bytes(2, "big")
        nonce = os.urandom(_NONCE_BYTES)
        packed = pack(key, min(math.ceil(expires_at), _NEVER))
        sealed = self._ciphers[self._newest].encrypt(nonce, packed, header + self._store_id)
        text = base64.urlsafe_b64encode(header + nonce + sealed).decode().rstrip("=")
        if len(text) > MAX_KEY_CHARS:
            raise LimitExceeded(
                f"the continuation key would have {len(text):,} characters, more than {MAX_KEY_CHARS:,}; "
                "name fewer columns, or use a shorter filter",
                chars=len(text),
                most=MAX_KEY_CHARS,
            )
        return text

    def open(self, text: object, now: float) -> ContinuationKey:
        """Return the key that was sealed.

        Raises:
            ContinuationKeyError: it is none; the reason says no more than the sender may know.
            SnapshotExpired: its time is up.
        """
        raw = _raw(text)
        header, nonce, sealed = raw[:_HEADER_BYTES], raw[_HEADER_BYTES:_BODY], raw[_BODY:]
        cipher = self._ciphers.get(int.from_bytes(header[1:], "big"))
        try:
            if cipher is None:
                raise InvalidTag
            packed = cipher.decrypt(nonce, sealed, header + self._store_id)
        except InvalidTag as error:
            raise _refusal(
                "it was altered, belongs to another store, or its secret was replaced and is gone"
            ) from error
        key, expires_at = unpack(packed)
        if now >= expires_at:
            raise SnapshotExpired(
                f"this continuation key expired {now - expires_at:,.0f} s ago; start a new scan",
                expired_at=expires_at,
                kind="key",
            )
        return key


def _raw(text: object) -> bytes:
    """Return a key's bytes, checked for length and version."""
    if text is None:
        raise _refusal("it is None, the key after a scan's last page: all rows were returned")
    raw = b""
    if isinstance(text, str) and len(text) <= MAX_KEY_CHARS:
        with suppress(ValueError):  # it is not URL-safe base64
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if len(raw) < _BODY + _TAG_BYTES:
        raise _refusal("it is not the text of one, or was cut")
    if raw[0] != KEY_VERSION:
        raise _refusal(f"it is of version {raw[0]}, this release reads version {KEY_VERSION}")
    return raw


def _refusal(why: str) -> ContinuationKeyError:
    return ContinuationKeyError(f"this continuation key cannot be used: {why}; start a new scan", why=why)


class Macs:
    """Message authentication codes of a store for the offsets of streams, and for nothing else.

    Args:
        secrets: the store's secrets by their number. The newest signs, all verify, so that a
            secret can be replaced while streams run.
    """

    def __init__(self, secrets: Mapping[int, bytes]) -> None:
        newest_first = [secret for _, secret in sorted(secrets.items(), reverse=True)]
        self._keys = [hmac.digest(secret, b"elasticscan stream offset", "sha256") for secret in newest_first]

    def of(self, text: str) -> str:
        return self._all(text)[0]

    def verify(self, text: str, mac: str) -> bool:
        return any(hmac.compare_digest(each.encode(), mac.encode()) for each in self._all(text))

    def _all(self, text: str) -> list[str]:
        return [hmac.digest(key, text.encode(), "sha256").hex()[:_MAC_CHARS] for key in self._keys]
