"""One holder for a name: the lease's contract, its machine, and stores to keep it in."""
