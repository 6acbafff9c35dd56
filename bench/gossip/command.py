"""`python -m bench gossip simulate|processes`: the two ways to measure membership.

simulate drives the product's own `GossipMachine`s in virtual time, processes starts real members.
Both exit 0 also when targets are missed, 1 when counts do not add up, 2 for a wrong call.
"""

from __future__ import annotations

import argparse

from bench.gossip import simulate

PARTS = (
    ("simulate", "many machines of membership in virtual time: S1 to S10"),
    ("processes", "real processes on this machine: R1 to R7"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two sub-commands with their flags."""
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for name, text in PARTS:
        one = parts.add_parser(name, help=text)
        if name == "simulate":
            simulate.add_arguments(one)
        else:
            # It needs packages of the extra `bench`; who simulates does not.
            from bench.gossip import processes

            processes.add_arguments(one)


def run(arguments: argparse.Namespace) -> int:
    """Run the part that was named; the exit code."""
    if arguments.part == "simulate":
        return simulate.run(arguments)
    from bench.gossip import processes

    return processes.run(arguments)
