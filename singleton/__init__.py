"""One actor in the cluster: who hosts it, and the proof that no other does. See `machine`."""
