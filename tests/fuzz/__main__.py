"""Run many cases of every kind, and print the faults: ``nox -s fuzz``."""

from __future__ import annotations

import argparse
import sys

from tests.fuzz.kinds import KINDS
from tests.fuzz.run import run


def main() -> int:
    """Run the chosen kinds; return 1 if a case found a fault or too few got past the first parser."""
    parser = argparse.ArgumentParser(prog="nox -s fuzz --")
    parser.add_argument(
        "kinds", nargs="*", metavar="KIND", help=f"default: {' '.join(kind.name for kind in KINDS)}"
    )
    parser.add_argument(
        "--cases", type=int, default=10_000, help="that get past the first parser (default: %(default)s)"
    )
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first case, which chooses its changes"
    )
    args = parser.parse_args()
    failed = False
    for kind in KINDS:
        if args.kinds and kind.name not in args.kinds:
            continue
        result = run(kind, args.cases, first=args.first)
        failed |= bool(result.faults) or result.parsed < args.cases
        counts = f"{result.cases} cases, {result.parsed} past the first parser, {result.seconds:.0f} s"
        print(f"{kind.name}: {counts}", flush=True)
        for fault, number in result.faults.items():
            print(f"  case {number}: {fault}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
