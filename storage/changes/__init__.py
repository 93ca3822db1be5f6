"""The changes of commits, derived from the versions that fragments keep.

histories   the versions of each row in a range of commits, with the one before
events      inserts, updates and deletes, from two versions each
pages       pages of changed rows, as a scan reads them
"""
