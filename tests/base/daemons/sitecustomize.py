"""Imports what Spark's Python workers need in the daemons that fork them, so that each worker has it.

Python imports this where it is on the path: the fixture `spark` puts it there for processes of its session.
"""

from __future__ import annotations

import sys

if "pyspark.daemon" in sys.orig_argv:
    import pandas  # noqa: F401
    import pyspark.sql.pandas.types  # noqa: F401

    import elasticscan.connector  # noqa: F401
