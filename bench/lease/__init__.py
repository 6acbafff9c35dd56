"""Leases, measured: what they cost, how long a takeover takes, what a pause and an outage do."""
