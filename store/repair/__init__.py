"""A store made again from its files, never in place.

rebuild  reads what is left, and makes the new store
plan     what its rows are in, by the old catalog, where that is whole, or by the files alone
"""
