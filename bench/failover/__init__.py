"""Failover, measured: each level of protection against each fault, with real processes."""
