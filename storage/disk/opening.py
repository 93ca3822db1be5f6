"""The choice of a disk by its root."""

from __future__ import annotations

from elasticscan.base.errors import InvalidOption
from elasticscan.base.redaction import shown
from elasticscan.storage.disk.local import LocalDisk
from elasticscan.storage.disk.protocol import Disk

OBJECT_SCHEMES = ("s3://", "s3a://")


def open_disk(root: str) -> Disk:
    """Return the disk for a root: a directory, or a prefix of an S3 bucket."""
    if root.lower().startswith(OBJECT_SCHEMES):
        try:
            from elasticscan.storage.disk.prefix import ObjectDisk  # noqa: PLC0415 - stands on an extra
        except ModuleNotFoundError as error:
            raise InvalidOption(
                f"shards in object storage need the package {error.name!r}, which is not installed here: "
                "pip install 'elasticscan[s3]'",
                option="shards",
            ) from error
        return ObjectDisk(root)
    if "://" in root:
        raise InvalidOption(
            f"{shown(root)} cannot be a shard's storage; name a directory, or write `s3://BUCKET/PREFIX` and "
            "set AWS_ENDPOINT_URL where each process runs",
            option="shards",
        )
    return LocalDisk(root)
