"""The source of Structured Streaming; the sink is in `connector/writing.py`.

reader    the methods that Spark calls: offsets, partitions of a micro-batch; the lease of a named stream
offsets   the offsets of a stream, their check, and the changes between two offsets
changes   tasks of a micro-batch: of the first snapshot, or of commits; batch reads of changes
"""
