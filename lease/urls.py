"""From a lease store's URL to the store."""

from __future__ import annotations

import time

from lease.memory import MemoryStore
from lease.sqlite import SqliteStore
from lease.store import LeaseStore

_KNOWN = "memory: (this process only), sqlite:///absolute/file or sqlite:relative/file"


def from_url(url: str) -> LeaseStore:
    """The store that `url` names; nothing is opened yet.

    `memory:` is another, empty store with each call: hand the object on to share it.
    `sqlite:///x` and `sqlite:////x` are the same absolute file, `sqlite:x` is relative to the
    working directory. Raises ValueError when there is no such store, or it cannot work.
    """
    scheme, colon, rest = url.partition(":")
    if not colon:
        raise ValueError(f"{url!r} is no URL of a lease store: there are {_KNOWN}")
    if scheme == "memory":
        if rest:
            raise ValueError(f"{url!r}: memory: has no name; hand the store itself on to share it")
        return MemoryStore(wall_clock=time.time)
    if scheme == "sqlite":
        return SqliteStore(_sqlite_path(url, rest))
    raise ValueError(f"{scheme!r} is no lease store that is known: there are {_KNOWN}")


def _sqlite_path(url: str, rest: str) -> str:
    if "?" in rest or "#" in rest:
        raise ValueError(f"{url!r}: sqlite takes a file and no parameters")
    path = rest
    if rest.startswith("//"):
        if not rest.startswith("///"):
            raise ValueError(
                f"{url!r} names a host: write sqlite:///{rest[2:]} for the absolute file, "
                f"or sqlite:{rest[2:]} for the relative one"
            )
        path = "/" + rest.lstrip("/")
    if not path.strip("/"):
        raise ValueError(f"{url!r} names no file: write sqlite:///var/lib/app/leases.db")
    return path
