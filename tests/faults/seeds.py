"""Search seeds that find the planted faults, and store them.

    python -m tests.faults.seeds                      faults whose seed finds nothing any more
    python -m tests.faults.seeds no_second_look       a new fault, or another seed for one
    python -m tests.faults.seeds --from 5000 NAME     beginning with this seed

A seed's program changes with the code that it runs. So it means little if one seed does not find a fault;
if no seed finds it, the harness cannot find it any more.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.faults.harnesses import FAULTS, SEEDS_FILE, Fault, Harnesses, read_seeds

# The number of programs after which a harness has failed to find a fault.
MOST = {"simulation": 400, "cluster": 600, "scenarios": 1}
MOST_PROGRAMS = 100


def find_seed(harnesses: Harnesses, fault: Fault, first: int) -> int | None:
    """The first seed whose program fails with the fault and passes without it."""
    for seed in range(first, first + MOST.get(fault.harness, MOST_PROGRAMS)):
        if harnesses.notices(fault, seed):
            harnesses.passes(fault, seed)
            return seed
    return None


def _write(seeds: Mapping[str, int]) -> None:
    SEEDS_FILE.write_text(json.dumps(seeds, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Look for seeds that find the planted faults.")
    parser.add_argument("names", nargs="*", help="faults; by default those whose seed finds nothing")
    parser.add_argument("--from", dest="first", type=int, help="the first seed to try")
    options = parser.parse_args()
    unknown = set(options.names) - {fault.name for fault in FAULTS}
    if unknown:
        parser.error(f"no such faults: {', '.join(sorted(unknown))}")
    logging.disable()  # warnings of planted faults
    seeds = {name: seed for name, seed in read_seeds().items() if name in {fault.name for fault in FAULTS}}
    _write(seeds)  # without seeds of removed faults
    blind = []
    with tempfile.TemporaryDirectory() as directory:
        harnesses = Harnesses(Path(directory))
        for fault in FAULTS:
            if options.names and fault.name not in options.names:
                continue
            first = options.first or 0
            if not options.names and fault.name in seeds:
                if harnesses.notices(fault, seeds[fault.name]):
                    harnesses.passes(fault, seeds[fault.name])
                    continue
                first = options.first or seeds[fault.name]
            seed = find_seed(harnesses, fault, first)
            print(f"{fault.name}: {seed}", flush=True)  # noqa: T201
            if seed is None:
                blind.append(fault.name)
            else:
                seeds[fault.name] = seed
                _write(seeds)
        harnesses.close()
    return 1 if blind else 0


if __name__ == "__main__":
    sys.exit(main())
