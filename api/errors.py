"""Every error a user can meet, as `elasticscan.base.errors` sorts them."""

from elasticscan.base.errors import *  # noqa: F403 - what its `__all__` lists
