"""Continuation keys of scans of a cluster: sealed with a secret of the user's, else guarded by a checksum.

A cluster has no place for a secret of ours. Without one a key can be read and forged by anyone who holds it:
it says which keys to read, and the login is not part of it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import time

from elasticscan.backends.redis.options import resolved
from elasticscan.base.errors import ContinuationKeyError
from elasticscan.protocol import ContinuationKey, Sealer, pack, unpack

_PLAIN = b"\x00"
_SUM_BYTES = 8
_NEVER = 1 << 60


class ClusterSealer:
    """Seals and opens keys. `secret` is the user's text, or `env:` and the name of a variable."""

    def __init__(self, secret: str | None) -> None:
        self._sealer = None
        if secret is not None:
            self._sealer = Sealer("cluster", {1: hashlib.sha256(resolved(secret).encode()).digest()})

    def seal(self, key: ContinuationKey) -> str:
        if self._sealer is not None:
            return self._sealer.seal(key, _NEVER)
        packed = _PLAIN + pack(key, _NEVER)
        return base64.urlsafe_b64encode(packed + _sum(packed)).decode().rstrip("=")

    def open(self, text: str) -> ContinuationKey:
        """Open a key. Raises `ContinuationKeyError`."""
        if self._sealer is not None:
            return self._sealer.open(text, time.time())
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError, TypeError):
            raise _refusal("it is not URL-safe base64") from None
        packed, digest = raw[:-_SUM_BYTES], raw[-_SUM_BYTES:]
        if not packed.startswith(_PLAIN):
            raise _refusal("it was sealed with a secret; name it as keySecret")
        if _sum(packed) != digest:
            raise _refusal("it was altered or cut")
        return unpack(packed[1:])[0]


def _sum(packed: bytes) -> bytes:
    return hashlib.sha256(packed).digest()[:_SUM_BYTES]


def _refusal(why: str) -> ContinuationKeyError:
    return ContinuationKeyError(f"this continuation key cannot be used: {why}; start a new scan", why=why)
