"""Shards in object storage: their files as the objects of an S3 bucket.

What this folder promises:

- **An object is written once**, directly under its own name, in one request when it is small and in parts
  otherwise. It is seen when it is whole, and counts when the catalog's commit says so: nothing is renamed.
  What a writer that died has sent in parts is listed as `….unfinished`, and garbage collection ends it.
- **Few requests.** Opening a file is one, which brings its end with its size; reading fetches long ranges,
  the next one ahead of time, and of few columns those parts alone that hold them. What was fetched is kept on
  the local disk.
- **Memory is bounded**, whatever the object's size: ranges of 12 MB go to the local disk, two of them ahead
  of time; where that is not possible, 24 MB are remembered.
- **No secret is kept.** A root is `s3://BUCKET/PREFIX` alone. Who asks, and where the server is, is what
  the environment of each process says.
- **Errors are retried or raised.** A request that a busy server or a broken connection refuses is retried for
  a minute; a lasting problem is a typed error that names it.

refusals  what a server says no with, as errors of ours
bucket    requests to a bucket, tried again
copies    copies on the local disk, up to a bound
reading   open objects: what is fetched when, and what ahead of time
prefix    a shard's files below a prefix

It needs `botocore` (`pip install 'elasticscan[s3]'`), so it is imported only where a root asks for it.
"""
