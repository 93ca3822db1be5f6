"""The kind of a file by its name, and what to do about names of other kinds."""

from __future__ import annotations

from pathlib import PurePosixPath

from elasticscan.base.errors import InvalidOption
from elasticscan.store.rows.iceberg import ICEBERG

KINDS = {
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".orc": "orc",
}
DELTA = "delta"
FORMATS = (*dict.fromkeys(KINDS.values()), DELTA, ICEBERG)
TEXT = ("csv", "json")
_PACKED = (".gz", ".bz2", ".zst")
_KNOWN = ".csv, .json or .jsonl (also with .gz), .parquet, .arrow or .orc"
_TABS = (
    "; fields with tabs between are read so: format='csv', delimiter='\\t' (--format csv --delimiter '\\t')"
)
_FRAME = "; a frame that another library reads of it is written by create_table(name, frame, primary_key)"
_UNPACK = "; unpack it first"
STREAM = "it is a stream and no file; save it to one, or write its rows in Python (upsert)"
_TOLD = {
    **dict.fromkeys((".tsv", ".tab"), _TABS),
    **dict.fromkeys((".xlsx", ".xls", ".ods", ".avro", ".xml", ".pkl", ".db", ".sqlite", ".duckdb"), _FRAME),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".xz"), _UNPACK),
}


def kind_of(path: str) -> str:
    """`csv`, `json`, `parquet`, `arrow` or `orc`, by the name."""
    name = PurePosixPath(path.lower())
    packed = name.suffix in _PACKED
    kind = KINDS.get((name.with_suffix("") if packed else name).suffix)
    if kind is None or (packed and kind not in TEXT):
        raise InvalidOption(
            f"{path} is of no kind that is known by its name: use {_KNOWN}, or say which it is: "
            f"format= or --format, one of {', '.join(FORMATS)}{_told(name)}",
            file=path,
        )
    return kind


def _told(name: PurePosixPath) -> str:
    """A note about a kind that loads do not take, with what to do; none for most."""
    return _TOLD.get((name.with_suffix("") if name.suffix in _PACKED else name).suffix, "")
