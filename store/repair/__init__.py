"""Repair: a new store from the files of a damaged one, which is only read.

rebuild  reads the files and makes the new store
plan     decides which files have the newest rows: by the old catalog if it is intact, else by the files
"""
