"""Structured Streaming: offsets, micro-batches of a snapshot and of changes, leases, the sink."""
