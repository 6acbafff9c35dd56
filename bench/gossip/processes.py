"""`python -m bench gossip processes`: experiments with real processes."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its flags."""


def run(arguments: argparse.Namespace) -> int:
    """Run the experiments that were named; the exit code."""
    return 0
