"""TPC-H queries 1, 6, 12 and 14 through `catalog.sql` and through Spark on Parquet, by turns.

python benchmarks/tpch.py [--scale 0.1] [--rounds 5] [--keep DIR]

The data is the official one, of `tpchgen-cli` (pip install tpchgen-cli); at scale 1 the answers are compared
with the published ones, too. Wall time, since a query is waited for: medians, and ratios of them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from spark_session import start_spark

from elasticscan.connector import attach
from elasticscan.store import Store

KEYS = {
    "lineitem": ["l_orderkey", "l_linenumber"],
    "orders": ["o_orderkey"],
    "part": ["p_partkey"],
}
# As the specification words them, with the parameters that it validates answers with.
QUERIES = {
    "1": """
select l_returnflag, l_linestatus, sum(l_quantity) as sum_qty, sum(l_extendedprice) as sum_base_price,
    sum(l_extendedprice * (1 - l_discount)) as sum_disc_price,
    sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) as sum_charge, avg(l_quantity) as avg_qty,
    avg(l_extendedprice) as avg_price, avg(l_discount) as avg_disc, count(*) as count_order
from lineitem where l_shipdate <= date '1998-12-01' - interval '90' day
group by l_returnflag, l_linestatus order by l_returnflag, l_linestatus""",
    "6": """
select sum(l_extendedprice * l_discount) as revenue from lineitem
where l_shipdate >= date '1994-01-01' and l_shipdate < date '1994-01-01' + interval '1' year
    and l_discount between .06 - 0.01 and .06 + 0.01 and l_quantity < 24""",
    "12": """
select l_shipmode, sum(case when o_orderpriority = '1-URGENT' or o_orderpriority = '2-HIGH' then 1 else 0 end)
    as high_line_count, sum(case when o_orderpriority <> '1-URGENT' and o_orderpriority <> '2-HIGH' then 1
    else 0 end) as low_line_count
from orders, lineitem where o_orderkey = l_orderkey and l_shipmode in ('MAIL', 'SHIP')
    and l_commitdate < l_receiptdate and l_shipdate < l_commitdate and l_receiptdate >= date '1994-01-01'
    and l_receiptdate < date '1994-01-01' + interval '1' year
group by l_shipmode order by l_shipmode""",
    "14": """
select 100.00 * sum(case when p_type like 'PROMO%' then l_extendedprice * (1 - l_discount) else 0 end)
    / sum(l_extendedprice * (1 - l_discount)) as promo_revenue
from lineitem, part where l_partkey = p_partkey and l_shipdate >= date '1995-09-01'
    and l_shipdate < date '1995-09-01' + interval '1' month""",
}
# The published answers at scale 1, with the places that they have there.
PUBLISHED: dict[str, list[tuple[str, ...]]] = {
    "1": [
        ("A", "F", "37734107.00", "56586554400.73", "53758257134.87", "55909065222.83", "25.52", "38273.13",
         "0.05", "1478493"),
        ("N", "F", "991417.00", "1487504710.38", "1413082168.05", "1469649223.19", "25.52", "38284.47",
         "0.05", "38854"),
        ("N", "O", "74476040.00", "111701729697.74", "106118230307.61", "110367043872.50", "25.50",
         "38249.12", "0.05", "2920374"),
        ("R", "F", "37719753.00", "56568041380.90", "53741292684.60", "55889619119.83", "25.51", "38250.85",
         "0.05", "1478870"),
    ],
    "6": [("123141078.23",)],
    "12": [("MAIL", "6202", "9324"), ("SHIP", "6200", "9262")],
    "14": [("16.38",)],
}  # fmt: skip


def generate(place: Path, scale: float) -> None:
    """Make the three tables as Parquet, once."""
    tool = shutil.which("tpchgen-cli") or shutil.which("tpchgen-cli", path=str(Path(sys.executable).parent))
    if tool is None:
        sys.exit("tpchgen-cli makes the data, and is not on the PATH; pip install tpchgen-cli")
    place.mkdir(parents=True, exist_ok=True)
    tables = f"--tables={','.join(KEYS)}"
    subprocess.run([tool, "parquet", "-s", f"{scale:g}", tables, f"--output-dir={place}", "-q"], check=True)


def rows_of(file: Path) -> Iterator[pa.Table]:
    """Rows as Spark reads them: texts and binary values have one representation."""
    source = pq.ParquetFile(file)
    for batch in source.iter_batches(1 << 20):
        fields = [
            field.with_type(pa.string()) if pa.types.is_string_view(field.type) else field
            for field in batch.schema
        ]
        yield pa.Table.from_batches([batch]).cast(pa.schema(fields)).replace_schema_metadata()


def load(source: Path, place: Path) -> None:
    with Store.create(place, ["s1", "s2"], upkeep="off") as store:
        for name, key in KEYS.items():
            pages = rows_of(source / f"{name}.parquet")
            first = next(pages)
            schema = pa.schema([field.remove_metadata() for field in first.schema])
            table = store.create_table(name, schema, key)
            table.upsert(first.cast(schema))
            for rows in pages:
                table.upsert(rows.cast(schema))
            table.compact()


def collected(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.collect()]


def published(name: str, rows: list[tuple[Any, ...]]) -> bool:
    """Return whether rows are the published ones, rounded to their places."""

    def same(value: Any, text: str) -> bool:
        if isinstance(value, Decimal):
            return value.quantize(Decimal(text)) == Decimal(text)
        return str(value) == text

    expected = PUBLISHED[name]
    return len(rows) == len(expected) and all(
        all(map(same, row, texts)) for row, texts in zip(rows, expected, strict=True)
    )


def compare(work: Path, scale: float, rounds: int, only: str | None) -> list[dict[str, object]]:
    spark = start_spark()
    catalog = attach(spark, str(work / "store"))
    other = spark.newSession()
    for name in KEYS:
        other.read.parquet(str(work / "source" / f"{name}.parquet")).createOrReplaceTempView(name)
    results: list[dict[str, object]] = []
    for name, text in QUERIES.items():
        if only and name not in only.split(","):
            continue
        times: dict[str, list[float]] = {"ours": [], "parquet": []}
        for turn in range(rounds + 2):
            answers = {}
            for way, ask in (("ours", catalog.sql), ("parquet", other.sql)):
                start = time.perf_counter()
                answers[way] = collected(ask(text))
                if turn > 1:
                    times[way].append(time.perf_counter() - start)
            if answers["ours"] != answers["parquet"]:
                sys.exit(f"query {name}: {answers['ours']}, Spark on Parquet {answers['parquet']}")
            if scale == 1 and not published(name, answers["ours"]):
                sys.exit(f"query {name}: {answers['ours']} is not the published answer")
        ours, parquet = (statistics.median(times[way]) for way in ("ours", "parquet"))
        folded = "folded" if "  folded " in catalog.explain(text) else "rows"
        results.append({"query": name, "seconds": ours, "parquet": parquet, "ratio": parquet / ours})
        print(
            f"query {name:>2}: {ours:.3f} s ({folded}), Parquet {parquet:.3f} s, ratio {parquet / ours:.2f}",
            flush=True,
        )
    spark.stop()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", metavar="1,6", help="these queries alone")
    parser.add_argument("--keep", type=Path, help="a directory for the data, used again if it is there")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = (asked.keep or Path(scratch)) / f"tpch-{asked.scale:g}"
        if not (work / "source" / "part.parquet").exists():
            generate(work / "source", asked.scale)
        if not (work / "store").exists():
            started = time.perf_counter()
            load(work / "source", work / "store")
            print(f"loaded in {time.perf_counter() - started:.1f} s", flush=True)
        results = compare(work, asked.scale, asked.rounds, asked.only)
    checked = " and the published ones" if asked.scale == 1 else ""
    print(f"every answer is that of Spark on Parquet{checked}")
    if asked.json is not None:
        asked.json.write_text(json.dumps({"scale": asked.scale, "queries": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
