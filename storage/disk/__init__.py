"""The storage of a shard's files: a directory, the objects of an S3 bucket, or memory.

Promises for object storage:

- **An object is written once**, directly under its own name, in one request if it is small and in parts
  otherwise. It is visible when it is complete, and used after the catalog's commit; nothing is renamed.
  If a writer dies, its parts are listed as `….unfinished`, and garbage collection aborts the upload.
- **Few requests.** Opening a file is one request, which returns its end and its size. Reading fetches large
  blocks and prefetches the next ones. If a scan reads few columns, only their blocks are fetched.
- **Memory is bounded**, whatever the sizes of objects: the cache has at most `BLOCK_CACHE_BYTES`.
- **No secret is stored.** A root is only `s3://BUCKET/PREFIX`. Credentials and the endpoint come from the
  environment of each process.
- **Errors are retried or raised.** A request that fails because of a busy server or a broken connection is
  tried ten times; a lasting problem raises a typed error that names it.

protocol  disks and open files of any kind; files in memory
errors    the translation of a disk's errors into errors of the package
local     a directory; `open_disk`, which returns the disk of a root
bucket    requests to a bucket, and the translation of their errors
objects   the files below a prefix of a bucket, with prefetching and a cache of blocks

Object storage needs `botocore` (`pip install 'elasticscan[s3]'`), which is imported only when a root is in
object storage.
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
