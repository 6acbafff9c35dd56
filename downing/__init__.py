"""Which side of a split lives: strategies and the resolver. Empty so far: level none only."""
