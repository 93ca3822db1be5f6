"""A store made again from its files, never in place.

rebuild   reads what is left, and makes the new store
plan      which files serve which slots, as pure functions over manifests
catalog   the same by the old catalog, where that is whole
trash     files in the trash of a root that are alive
"""
