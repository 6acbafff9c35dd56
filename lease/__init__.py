"""One holder for a name: the lease's contract, its machine, and stores to keep it in."""

from lease.errors import LeaseError, LeaseUnavailableError, WriteConflict
from lease.events import LeaseLost
from lease.fence import Fence, StaleTokenError
from lease.keeper import LeaseKeeper
from lease.lease import Lease
from lease.machine import LeaseMachine
from lease.memory import MemoryStore
from lease.record import LeaseRecord
from lease.settings import LeaseSettings
from lease.sqlite import SqliteStore
from lease.store import LeaseStore
from lease.urls import from_url

__all__ = [
    "Fence",
    "Lease",
    "LeaseError",
    "LeaseKeeper",
    "LeaseLost",
    "LeaseMachine",
    "LeaseRecord",
    "LeaseSettings",
    "LeaseStore",
    "LeaseUnavailableError",
    "MemoryStore",
    "SqliteStore",
    "StaleTokenError",
    "WriteConflict",
    "from_url",
]
