"""The Python of Spark's workers, which is not the driver's unless it is configured.

A notebook may run the Python of an environment that is not activated. Spark then starts `python3` of the
path, which lacks elasticscan, and reports only that a module or a format was not found.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache

from pyspark.sql import SparkSession

from elasticscan.base.errors import InvalidOption

_FINDS_IT = "import sys, importlib.util as u; sys.exit(77 if u.find_spec('elasticscan') is None else 0)"
_MISSING, _SECONDS = 77, 60


def wrong_python(said: str, python: str | None) -> InvalidOption | None:
    """Return the error of a session whose workers run another Python than this one, without this package."""
    if "No module named 'elasticscan'" not in said:
        return None
    return _without_package(python)


def check_python_of(spark: SparkSession) -> None:
    """Refuse a session whose workers, on this machine, would not find this package.

    Raises:
        InvalidOption: they run a Python without it; what to set is said.
    """
    python = python_of(spark)
    if (
        python is not None
        and (spark.sparkContext.master or "").startswith("local")
        and _lacks_package(python)
    ):
        raise _without_package(python)


def python_of(spark: SparkSession) -> str | None:
    """Return the Python of a session's workers; None where only a server knows it."""
    return getattr(getattr(spark, "sparkContext", None), "pythonExec", None)


@cache
def _lacks_package(python: str) -> bool:
    """Return True if a Python certainly has no elasticscan; asked once, since its start takes some 50 ms."""
    found = shutil.which(python)
    if found is None or found == sys.executable:
        return False
    try:
        asked = subprocess.run([found, "-c", _FINDS_IT], capture_output=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == _MISSING


def _without_package(python: str | None) -> InvalidOption:
    return InvalidOption(
        f"Spark's workers run {python or 'another Python'} without elasticscan; set "
        f"PYSPARK_PYTHON={sys.executable} and start a new session",
        option="PYSPARK_PYTHON",
    )
