"""Redis and Valkey clusters, read while slots move between their masters.

names         names of keys: slots, a key for each slot, patterns
cluster_map   placements, from the answers of nodes
values        values as rows; columns, from a sample of keys
pages         the rule: the commands that read a page, and the meaning of their answers
connections   sending of commands, and reading of answers
history       observed placements, as topologies
options       options and URLs
scan          a scan with the interface of the embedded store, with its placements and shards
store         a cluster and its tables, for Python, Spark and the command line

The first four and `options` are pure: tests run `pages` against a simulated cluster.
"""

from elasticscan.backends.redis.store import ClusterStore

__all__ = ["ClusterStore"]
