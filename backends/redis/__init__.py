"""Redis and Valkey clusters, read while slots move between their masters.

names         names of keys: slots, a key for each slot, patterns
cluster_map   placements, from what nodes say
values        values as rows
pages         the rule: which commands read a page, and what their answers say
connections   commands out, answers in
cluster       placements and shards of one scan
history       placements that were seen, as topologies
inference     columns, from a sample of keys
options       options and URLs
errors        errors of clusters, as those of the product
scan          a scan: pages with keys, a table, a stream
store         a cluster and its tables
backend       the same as a back end, for Spark and the terminal

All but `connections`, `history` and what is built on them is pure: it runs against a simulated cluster, too.
"""

from elasticscan.backends.redis.backend import RedisBackend, open_store
from elasticscan.backends.redis.store import ClusterStore, ClusterTable

__all__ = ["ClusterStore", "ClusterTable", "RedisBackend", "open_store"]
