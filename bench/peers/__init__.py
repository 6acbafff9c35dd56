"""Adapters of other frameworks, one script each, for `python -m bench failover --peers NAME,…`.

A script runs in the environment of its peer alone and uses nothing of ours: `SCRIPT ROUNDS` prints
a JSON list, the seconds from SIGKILL of the process that has the actor to the first question that
is answered after it, one per round.
"""
