"""Every error a user can meet; `elasticscan.base.errors` draws the tree."""

from elasticscan.base.errors import *  # noqa: F403 - what its `__all__` lists
