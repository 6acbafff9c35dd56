"""One holder for a name: the lease's contract, its machine, and stores to keep it in."""

from lease.errors import LeaseError, LeaseUnavailableError, WriteConflict
from lease.keeper import LeaseKeeper
from lease.machine import LeaseMachine
from lease.memory import MemoryStore
from lease.record import LeaseRecord
from lease.settings import LeaseSettings
from lease.sqlite import SqliteStore
from lease.store import LeaseStore
from lease.urls import from_url

__all__ = [
    "LeaseError",
    "LeaseKeeper",
    "LeaseMachine",
    "LeaseRecord",
    "LeaseSettings",
    "LeaseStore",
    "LeaseUnavailableError",
    "MemoryStore",
    "SqliteStore",
    "WriteConflict",
    "from_url",
]
