"""The continuation key: everything that is needed to resume a scan in another process, as one sealed text.

A key contains row values (its positions) and authorizes a read, so only the store can make or read one. It is
sealed with AES-256-GCM. The header and the store's id are associated data, so a key of another
store, a truncated key and an altered key all fail the same way. A key contains its expiry time.
`docs/formats.md` describes the format byte for byte.
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
    """The state of a scan after a page. A sealed key has the fields in this order.

    Attributes:
        table: the table's id. A table that was dropped and created again has a new id.
        snapshot: the commit number of the snapshot that the scan reads.
        base_topology: the number of the topology that the scan started from.
        slots: all slots of the scan, finished or not.
        cursors: the unfinished slots, and how far they were read.
        columns, filter: the columns that the scan returns; the filter as SQL text.
        page_rows, page_bytes: limits of a page.
        lease: the lease that keeps the snapshot readable.
        index: the id of the index that the scan uses; None for a direct scan.
        descending: read from the index's highest key to the lowest.
        merged: return the rows of all shards in one order, instead of one shard after another.
        segments: for a scan of changes, the segments that are left to read, in order; `cursors` belong to
            the first one. None for a scan of a snapshot.
        feed: add the type, commit and time of each change to its row.
        limit: how many more rows the scan may return; None for no limit.
        by_key: read only ranges of primary keys, which are derived from the filter.
        definition: the number of the table's definition when the scan began: its column names and types.
        plan: state of the back end, opaque to all others; empty for the embedded store.
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
        """Return the scan restricted to `slots`: the part of one task."""
        if self.segments:
            # A slot without a cursor was read for a part of the first segment; the key does not know which.
            assert self == self.begin(self.segments), "a scan of changes is divided before it begins"
            return replace(self, slots=slots).begin(self.segments)
        return replace(self, slots=slots, cursors=restrict(self.cursors, slots))

    def advance(self, cursors: Cursors, upto: int | None = None) -> ContinuationKey:
        """Return the state after a page. Without cursors, the changes up to commit `upto` have been read."""
        if cursors or not self.segments:
            return replace(self, cursors=cursors)
        assert upto is not None, "a finished part of a segment has a last commit"
        first, *rest = self.segments
        return self.begin((replace(first, after=upto), *rest) if upto < first.upto else tuple(rest))

    def begin(self, segments: Segments) -> ContinuationKey:
        """Return the state before the first segment that has slots of this scan; finished if none has."""
        for number, segment in enumerate(segments):
            if slots := self.slots & segment.slots:
                return replace(self, segments=segments[number:], cursors=(Cursor(slots),))
        return replace(self, segments=(), cursors=())


def pack(key: ContinuationKey, expires_at: int) -> bytes:
    """Return a flat list as msgpack: the expiry time (seconds since 1970), then all fields in order."""
    plain = {
        "slots": _flat(key.slots),
        "cursors": [(_flat(cursor.slots), cursor.position) for cursor in key.cursors],
        "segments": key.segments and [astuple(segment) for segment in key.segments],
        "lease": bytes.fromhex(key.lease),
    }
    values = (plain.get(name, getattr(key, name)) for name in _FIELDS)
    return bytes(msgpack.packb([expires_at, *values]))


def unpack(packed: bytes) -> tuple[ContinuationKey, int]:
    """Return the key and the expiry time from `pack`. The bytes were sealed, so they are not hostile."""
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

    `secrets` are 32 bytes each, by number. The one with the highest number seals and all of them open, so a
    secret can be replaced while scans run.
    """

    def __init__(self, store_id: str, secrets: Mapping[int, bytes]) -> None:
        self._store_id = store_id.encode()
        self._ciphers = {number: AESGCM(secret) for number, secret in secrets.items()}
        self._newest = max(secrets)

    def seal(self, key: ContinuationKey, expires_at: float = _NEVER) -> str:
        """Return the sealed text; raises `LimitExceeded` if it is too long for `open`."""
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
        """Return the key of a sealed text.

        Raises:
            ContinuationKeyError: it is not a key of this store; the reason reveals nothing secret.
            SnapshotExpired: the key has expired.
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
    """Return the bytes of a key, after checks of its length and version."""
    if text is None:
        raise _refusal("it is None, the key after a scan's last page: all rows were returned")
    raw = b""
    if isinstance(text, str) and len(text) <= MAX_KEY_CHARS:
        with suppress(ValueError):  # it is not URL-safe base64
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if len(raw) < _BODY + _TAG_BYTES:
        raise _refusal("it is not the text of a key, or was cut")
    if raw[0] != KEY_VERSION:
        raise _refusal(f"it is of version {raw[0]}, this release reads version {KEY_VERSION}")
    return raw


def _refusal(why: str) -> ContinuationKeyError:
    return ContinuationKeyError(f"this continuation key cannot be used: {why}; start a new scan", why=why)


class Macs:
    """Message authentication codes of a store. Only the offsets of streams use them.

    The newest of the `secrets` (by number) signs and all of them verify, so a secret can be replaced while
    streams run.
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
