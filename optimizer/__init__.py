"""The choice of an access path: all rows, rows with certain primary keys, or the entries of one index.

`bind` turns a condition into key ranges of an index and a residual, which is checked for each entry.
`bind_key` turns it into slots and ranges of primary keys; a scan by any path reads only these slots. `choose`
estimates the rows of each path from statistics, counts entries of indexes, and chooses the cheapest path. A
wrong estimate costs time, never rows.

binding  a condition as ranges of an index or of primary keys, and its residual
choice   the cheapest path

Source: the binding of indexes and the cost formula follow Hazelcast's distributed scan. Two things differ:
value sets replace the normal form, and entries are counted.
"""

from elasticscan.optimizer.binding import KeyCondition, bind, bind_key
from elasticscan.optimizer.choice import Choice, choose
