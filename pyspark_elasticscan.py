"""Lets Spark find the `elasticscan` source by itself: `spark.read.format("elasticscan")`.

Spark imports every top-level module whose name starts with `pyspark_` and registers the class
named `DefaultSource` that it finds there. A module that raises on import takes *all* such sources
of the Python environment down with it, also those of other projects. So this one keeps quiet when
the connector cannot be imported: it then has no `DefaultSource`, and Spark skips it. To see why,
run `python -c "import elasticscan.connector"`.
"""

import contextlib

with contextlib.suppress(Exception):
    from elasticscan.connector import DefaultSource

__all__ = ["DefaultSource"]
