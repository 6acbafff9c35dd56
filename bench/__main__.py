"""`python -m bench NAME --json FILE [--quick]`: runs a bench, writes its object, draws a table.

Exits 0 also when targets are missed, 1 when a count does not add up, 2 for a wrong call.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from bench import report, smoke


def main() -> int:
    """Run the bench that was named."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("bench", choices=["smoke"], help="smoke: start, join, failover, memory")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument("--quick", action="store_true", help="a smoke run for CI, not to be quoted")
    arguments = parser.parse_args()
    settings, rows = smoke.run(quick=arguments.quick)
    report.draw(arguments.bench, rows)
    if arguments.json is not None:
        report.write(arguments.json, report.report(arguments.bench, settings, rows))
        print(f"written to {arguments.json}")
    return 1 if any(row.error for row in rows) else 0


if __name__ == "__main__":
    # An exception, unlike the default, runs what ends the members.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
