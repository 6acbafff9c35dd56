"""Keys: who may connect, and who may speak for whom, on real sockets and in real processes."""
