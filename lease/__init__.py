"""One holder for a name: lease contract, machine and stores. Empty so far: level none only."""
