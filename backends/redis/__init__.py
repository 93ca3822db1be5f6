"""Redis and Valkey clusters, read while slots move between their masters.

names         names of keys: slots, a key for each slot, patterns
cluster_map   placements, from what nodes say
values        values as rows; columns, from a sample of keys
pages         the rule: which commands read a page, and what their answers say
connections   commands out, answers in
history       placements that were seen, as topologies
options       options and URLs
scan          a scan, as the embedded store's, with its placements and shards
store         a cluster and its tables, which Spark and the terminal read, too

All but `connections`, `history` and what is built on them is pure: it runs against a simulated cluster, too.
"""

from elasticscan.backends.redis.store import ClusterStore

__all__ = ["ClusterStore"]
