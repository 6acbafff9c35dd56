"""Membership, measured: in virtual time with many machines, and with real processes."""
