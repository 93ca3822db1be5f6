"""Structured Streaming's source; the sink is in `connector/writing.py`.

reader    what Spark calls: offsets, partitions of a micro-batch, commits; the lease of a stream with a name
offsets   a stream's offsets, their check, and the changes between two of them
changes   micro-batches of the first snapshot and of the commits after it; batch reads of changes
"""
