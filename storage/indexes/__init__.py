"""Index files, each alongside the fragment whose rows it lists.

run       a file of entries, sorted by key or by hash: written, opened, searched
pages     the rows that entries point to, as pages; an entry counts only for the row's newest version
"""
