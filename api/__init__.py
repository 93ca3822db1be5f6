"""Scans that return every row of one snapshot exactly once, while tablets move between shards."""
