"""The places of a shard's files: a directory, the objects of an S3 bucket, or memory.

What this folder promises of object storage:

- **An object is written once**, directly under its own name, in one request when it is small and in parts
  otherwise. It is seen when it is whole, and counts when the catalog's commit says so: nothing is renamed.
  What a writer that died has sent in parts is listed as `….unfinished`, and garbage collection ends it.
- **Few requests.** Opening a file is one, which brings its end with its size; reading fetches long blocks,
  the next one ahead of time, and of few columns those parts alone that hold them.
- **Memory is bounded**, whatever the objects' sizes: what was fetched stays there up to `BLOCK_CACHE_BYTES`.
- **No secret is kept.** A root is `s3://BUCKET/PREFIX` alone. Who asks, and where the server is, is what
  the environment of each process says.
- **Errors are retried or raised.** A request that a busy server or a broken connection refuses is retried ten
  times; a lasting problem is a typed error that names it.

protocol  disks and open files, of any kind; files in memory
errors    what an error of a disk means: which of ours it is, and what to do about it
local     a directory; which disk a root asks for
bucket    requests to a bucket, and what a server says no with, as errors of ours
objects   the files below a prefix of a bucket: what is fetched when, and what stays in memory

Object storage needs `botocore` (`pip install 'elasticscan[s3]'`), so it is imported only where a root asks
for it.
"""

from elasticscan.storage.disk.errors import MissingFile
from elasticscan.storage.disk.local import (
    OBJECT_SCHEMES,
    LocalDisk,
    flush_directory,
    keep_from_group,
    open_disk,
)
from elasticscan.storage.disk.protocol import AHEAD_BYTES, Disk, MemoryFile, OpenFile, batch_bytes
