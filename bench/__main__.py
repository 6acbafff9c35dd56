"""`python -m bench NAME --json FILE [--quick]`: runs a bench, writes its object, draws a table.

smoke exits 0 also when targets are missed, 1 when a count does not add up. messaging exits 0 when
all targets are met, 1 when one is missed, 3 when something has no figure. gossip (simulate or
processes), partition, lease, failover and sharding exit as smoke does. 2 is a wrong call.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from bench import report, smoke
from bench.failover import command as failover
from bench.gossip import command as gossip
from bench.lease import command as lease
from bench.messaging import command as messaging
from bench.partition import command as partition
from bench.sharding import command as sharding


def main() -> int:
    """Run the bench that was named."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    benches = parser.add_subparsers(dest="bench", required=True, metavar="NAME")
    for name, text in (
        ("smoke", "start, join, failover, memory"),
        ("messaging", "tells, asks and bulk, in one process and between two"),
    ):
        one = benches.add_parser(name, help=text)
        one.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
        one.add_argument(
            "--quick", action="store_true", help="a smoke run for CI, not to be quoted"
        )
        if name == "messaging":
            messaging.add_arguments(one)
    gossip.add_arguments(benches.add_parser("gossip", help="membership, simulated and real"))
    partition.add_arguments(
        benches.add_parser("partition", help="members cut apart, paused, killed: one side lives")
    )
    lease.add_arguments(
        benches.add_parser("lease", help="a lease: its cost, takeovers, pauses, outages")
    )
    failover.add_arguments(
        benches.add_parser("failover", help="each level of protection against each fault")
    )
    sharding.add_arguments(
        benches.add_parser("sharding", help="entities: their cost, restarts, kills, a lost lease")
    )
    arguments = parser.parse_args()
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        parser.error(f"--json {arguments.json}: there is no directory {arguments.json.parent}")
    if arguments.bench == "messaging":
        return messaging.run(arguments)
    if arguments.bench == "gossip":
        return gossip.run(arguments)
    if arguments.bench == "partition":
        return partition.run(arguments)
    if arguments.bench == "failover":
        return failover.run(arguments)
    if arguments.bench == "lease":
        return lease.run(arguments)
    if arguments.bench == "sharding":
        return sharding.run(arguments)
    settings, rows = smoke.run(quick=arguments.quick)
    report.draw(f"bench {arguments.bench}", rows)
    if arguments.json is not None:
        report.write(arguments.json, report.report(arguments.bench, settings, rows))
        print(f"written to {arguments.json}")
    return 1 if any(row.error for row in rows) else 0


if __name__ == "__main__":
    # An exception, unlike the default, runs what ends the members.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
