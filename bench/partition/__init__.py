"""Bench of partitions: real members on hosts of their own, cut apart, paused, killed."""
