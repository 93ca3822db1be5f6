"""The choice of an access path: all rows, those with some primary keys, or the entries of one index.

`bind` turns a condition into key ranges of an index and the residual that is left to check; `bind_key` turns
it into slots and ranges of primary keys, so a scan reads no other slots whatever its path. `estimates` says
about how many rows that are, from statistics; entries of indexes are counted. `choose` takes the cheapest. A
wrong estimate costs time, never rows.

keys       a condition as slots and ranges of primary keys
binding    a condition as ranges of an index, and its residual
estimates  rows, from statistics
choice     the cheapest path

Source: binding of indexes and the cost formula follow Hazelcast's distributed scan; changed here: value
sets take the place of the normal form, and entries are counted.
"""

from elasticscan.optimizer.binding import IndexCondition, bind
from elasticscan.optimizer.choice import Candidate, Choice, choose
from elasticscan.optimizer.keys import KeyCondition, bind_key
