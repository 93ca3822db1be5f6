"""Index files, each alongside the fragment whose rows it lists.

run       a file of entries, sorted by key or by hash: written, opened, searched
iterator  the way through the entries of many ranges and runs, in order
pages     the rows that entries point to, as pages; an entry counts only for the row's newest version
"""
