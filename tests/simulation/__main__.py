"""Run programs by their seeds; if one fails, print the fewest steps that still fail.

python -m tests.simulation 0-99                       each seed's own style
python -m tests.simulation --style keepers 17 40-60   a style, or several
python -m tests.simulation --log 0-99                 programs of logs
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import product
from pathlib import Path

from tests.catalog.programs import STYLES as OF_LOGS
from tests.catalog.programs import LogPrograms
from tests.seeds import named_seeds
from tests.simulation.faults import FAULTS
from tests.simulation.programs import FAULTY, Programs
from tests.simulation.tables import STYLES, STYLES_BY_NAME

HANGS_AFTER_SECONDS = 200


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Run programs.")
    styles = [*STYLES, *STYLES_BY_NAME, FAULTY, *FAULTS, *filter(None, OF_LOGS)]
    parser.add_argument("--style", choices=styles, metavar="STYLE", action="append", default=[])
    parser.add_argument("--log", action="store_true", help="run programs of logs")
    parser.add_argument("--outcomes", action="store_true", help="say what came of all steps")
    parser.add_argument("seeds", nargs="+", help="such as 7 or 0-99")
    options = parser.parse_args()
    faulthandler.enable()
    began, failed = time.monotonic(), 0
    seeds = [seed for text in options.seeds for seed in named_seeds(text)]
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        place = Path(directory)
        programs = LogPrograms(place) if options.log else stack.enter_context(Programs(place))
        runs = list(product(options.style or [None], seeds))
        for style, seed in runs:
            sys.stderr.write(f"{style or ''} {seed}\n")  # printed first, because the process may crash
            faulthandler.dump_traceback_later(HANGS_AFTER_SECONDS, exit=True)
            found = programs.explain(seed, style)
            if found is not None:
                failed += 1
                sys.stdout.write(f"{style or 'seed'} {seed} fails, by {found}\n")
        for name, count in sorted(programs.outcomes.items()) if options.outcomes else ():
            sys.stdout.write(f"{count:6} {name}\n")
        faulthandler.cancel_dump_traceback_later()
    minutes = (time.monotonic() - began) / 60
    sys.stdout.write(f"{failed} of {len(runs)} programs failed, {len(runs) / minutes:.0f} a minute\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
