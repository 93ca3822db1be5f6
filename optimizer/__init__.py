"""The choice of an access path: all rows, those with some primary keys, or the entries of one index.

`bind` turns a condition into key ranges of an index and the residual that is left to check; `bind_key` turns
it into slots and ranges of primary keys, so a scan reads no other slots whatever its path. `choose` estimates
how many rows that are, from statistics, counts entries of indexes, and takes the cheapest. A wrong estimate
costs time, never rows.

binding  a condition as ranges of an index or of primary keys, and its residual
choice   the cheapest path

Source: binding of indexes and the cost formula follow Hazelcast's distributed scan; changed here: value
sets take the place of the normal form, and entries are counted.
"""

from elasticscan.optimizer.binding import KeyCondition, bind, bind_key
from elasticscan.optimizer.choice import Choice, choose
