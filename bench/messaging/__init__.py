"""Messages per second and microseconds per answer: ours, the limits of the parts below, peers.

Light on purpose: a peer's own interpreter imports this package and finds none of our dependencies.
`rounds` runs everything, `driver` is the one load for all sides, `table` says what is judged.
"""
