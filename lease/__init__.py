"""One holder for a name: the lease's contract, its machine, and stores to keep it in.

Names are loaded when they are first used: a member without a lease loads neither a store nor the
machine's shell.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_HOME_OF = {
    "Fence": "lease.fence",
    "Lease": "lease.lease",
    "LeaseError": "lease.errors",
    "LeaseKeeper": "lease.keeper",
    "LeaseLost": "lease.events",
    "LeaseMachine": "lease.machine",
    "LeaseRecord": "lease.record",
    "LeaseSettings": "lease.settings",
    "LeaseStore": "lease.store",
    "LeaseUnavailableError": "lease.errors",
    "MemoryStore": "lease.memory",
    "SqliteStore": "lease.sqlite",
    "StaleTokenError": "lease.fence",
    "WriteConflict": "lease.errors",
    "from_url": "lease.urls",
}

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


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
