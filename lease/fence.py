"""What a resource does with fencing tokens: refuse whoever comes with an older one than was seen.

Decides that and nothing more. For resources that live in this process (a file, a device, a service
of your own); where a database is written to, compare in its own transaction instead: see
`examples/` and docs/leases.md. After M. Kleppmann, "How to do distributed locking" (2016).
"""

from __future__ import annotations

import threading

from lease.errors import LeaseError


class StaleTokenError(LeaseError):
    """The token is older than one that was seen: its holder has been replaced.

    `token` is the one refused, `highest` the one seen.
    """

    def __init__(self, name: str, token: int, highest: int) -> None:
        self.name = name
        self.token = token
        self.highest = highest
        super().__init__(
            f"token {token} of {name!r} is refused: a later holder with token {highest} was here. "
            "Whoever holds the older one has lost its lease: stop it"
        )


class Fence:
    """The highest token seen for each name. Safe to use from several threads.

    It forgets with its process: start it from what the resource itself has stored, if it has.
    """

    def __init__(self, highest: dict[str, int] | None = None) -> None:
        self._highest = dict(highest or {})
        self._lock = threading.Lock()

    def check(self, name: str, token: int | None) -> None:
        """Let this token pass, and no older one from now on.

        Raises `StaleTokenError` for one that is older than any before, ValueError for None, which
        is what there is without a lease, and TypeError for what is no number (a text would be
        compared letter by letter).
        """
        if token is None:
            raise ValueError(
                f"there is no token for {name!r}: it is not held, or there is no lease at all"
            )
        if isinstance(token, bool) or not isinstance(token, int):
            raise TypeError(
                f"token={token!r} of {name!r} is no whole number: give int(…) of what was handed on"
            )
        with self._lock:
            highest = self._highest.get(name, token)
            if token < highest:
                raise StaleTokenError(name, token, highest)
            self._highest[name] = token

    def highest(self, name: str) -> int | None:
        """The highest token seen; None when there was none."""
        return self._highest.get(name)
