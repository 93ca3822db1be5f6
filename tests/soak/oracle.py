"""What two streams wrote, compared with the source table: nothing is missing, repeated or altered.

Each commit writes a value of its own. The changes of a key, in the order of their commits, are therefore a
chain in which each change names the value before it: `insert 7`, `update 7 → 9`, `delete 9`, `insert 12`. A
change that is missing, repeated or altered breaks its chain, and each chain ends with the key's row in the
source.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlparse

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.soak.programs import names

# The kinds in the order of a commit: the first two end the value that a key had, the others begin one.
KINDS = pa.array(["delete", "update_preimage", "insert", "update_postimage"])
_DELETE, _BEFORE, _INSERT, _AFTER = range(4)
_SHOWN = 12


def feed_written(place: Path) -> pa.Table:
    """The feed as it came out in Parquet."""
    return pa.concat_tables([pq.read_table(path) for path in committed_files(place)])


def committed_files(place: Path) -> list[Path]:
    """The files that Spark's file sink has committed; others are of micro-batches that died."""
    log = place / "_spark_metadata"
    batches = {path.name: path for path in log.iterdir() if not path.name.startswith(".")}
    merged = max((int(name.split(".")[0]) for name in batches if name.endswith(".compact")), default=-1)
    read = [batches[f"{merged}.compact"]] if merged >= 0 else []
    read += [batches[name] for name in sorted(batches, key=len) if name.isdigit() and int(name) > merged]
    lines = [line for path in read for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return [Path(unquote(urlparse(json.loads(line)["path"]).path)) for line in lines]


def broken_chains(feed: pa.Table, source: pa.Table) -> list[str]:
    """What is wrong with the changes of a feed that ends with a table; empty if all is well.

    Args:
        feed: `id`, `v` and the columns of a change feed, whose snapshot are inserts.
        source: the table with the last of its commits.
    """
    kinds = pc.index_in(feed["_change_type"], KINDS).fill_null(-1).to_numpy()
    keys, values, commits = (feed[name].to_numpy() for name in ("id", "v", "_commit_version"))
    order = np.lexsort([kinds, commits, keys])
    keys, values, commits, kinds = keys[order], values[order], commits[order], kinds[order]
    begins = kinds >= _INSERT
    first, last = np.ones(len(keys), bool), np.ones(len(keys), bool)
    first[1:] = last[:-1] = keys[1:] != keys[:-1]
    follows = np.where(first, begins, begins != np.roll(begins, 1))  # beginnings and ends take turns
    named = first | begins | (values == np.roll(values, 1))
    together = (commits == np.roll(commits, -1)) & ~last  # with the next change of the key
    paired = np.roll(together, 1)
    wanted = np.where(begins, np.where(paired, _AFTER, _INSERT), np.where(together, _BEFORE, _DELETE))
    wrong = [
        _shown("have a kind that fits no chain", ~follows | (kinds != wanted), keys, commits),
        _shown("name another value than the change before them", follows & ~named, keys, commits),
        *differences("the end of the feed", _rows(keys, values, last & begins), source),
    ]
    return [text for text in wrong if text]


def _shown(problem: str, which: np.ndarray, keys: np.ndarray, commits: np.ndarray) -> str:
    places = list(zip(keys[which].tolist(), commits[which].tolist(), strict=True))
    return f"{len(places):,} changes {problem}: (key, commit) {places[:_SHOWN]}" if places else ""


def _rows(keys: np.ndarray, values: np.ndarray, which: np.ndarray) -> pa.Table:
    ids, of_ids = pa.array(keys[which]), pa.array(values[which])
    return pa.table({"id": ids, "v": of_ids, "name": names(ids, of_ids)})


def differences(what: str, found: pa.Table, wanted: pa.Table) -> list[str]:
    """The rows that one of two tables has and the other lacks; empty if they are equal."""
    wrong = []
    if pc.count_distinct(found["id"]).as_py() != found.num_rows:
        wrong.append(f"{what}: keys are there twice")
    for problem, rows, others in (("too many", found, wanted), ("missing", wanted, found)):
        more = rows.join(others, ["id", "v", "name"], join_type="left anti").sort_by("id")
        if more.num_rows:
            wrong.append(f"{what}: {more.num_rows:,} rows are {problem}: {more.slice(0, _SHOWN).to_pylist()}")
    return wrong
