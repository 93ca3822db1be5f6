"""Peak memory of a scan, in a process of its own: `python memory.py STORE`; prints MB."""

from __future__ import annotations

import sys
from pathlib import Path

from elasticscan.store import Store


def peak_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    store = Store.open(sys.argv[1])
    before = peak_mb()
    rows = checksum = 0
    for page in store.table("t").scan():
        rows += page.rows.num_rows
        # Touch every byte: a mapped page that is not read would cost nothing.
        for column in page.rows.columns:
            for buffer in column.buffers():
                if buffer is not None:
                    checksum ^= hash(buffer.to_pybytes()[::4096])
    print(f"{rows} {peak_mb() - before:.1f}")


if __name__ == "__main__":
    main()
