"""One module per peer: how its actors are made, reached and spawned, each by its own public API.

Decides nothing about the load. Each module runs in the peer's own environment (`environments`)
and offers what applies to it: `receive(port)` and `drive(port)` for two processes, `local()` for
one; all are asynchronous context managers, `drive` gives a `Side`, `local` a `Side` and a way to
spawn. Loaded by `bench.messaging.peer` alone.
"""
