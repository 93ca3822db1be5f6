"""Index files, each at the shard of the fragment whose rows it lists.

run       a file of entries, sorted by key or by hash: written, opened, searched
pages     pages of the rows that entries refer to; an entry counts only if its row is the newest version
"""
