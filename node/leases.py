"""The leases of one system: whose stores they are in, and what becomes of them in the end.

Decides which store a name means, that one process opens each store once, and that what is still
held when the system has ended is released (`spec` L5). Does not decide when a lease is wanted.
Made by `node.system`; reached as `system.lease(…)`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from node.environment import Environment
from node.errors import SettingsError
from node.logs import wall_time
from node.settings import refused_store

if TYPE_CHECKING:
    from lease import Lease, LeaseSettings, LeaseStore
    from node.crash_guard import Report
    from node.settings import Settings

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 2.0


class Leases:
    """`owner` is what stands in the records for people; `report` tells a supervisor of each lease,
    before it is asked for."""

    def __init__(
        self,
        settings: Settings,
        environment: Environment,
        owner: Callable[[], str],
        report: Report | None = None,
    ) -> None:
        self._report = report
        self._settings = settings
        self._environment = environment
        self._owner = owner
        self._stores: dict[str, LeaseStore] = {}
        self._leases: list[Lease] = []
        self._past: Counter[str] = Counter()  # of those that were closed
        self._said_silent: set[str] = set()  # the stores of which the log says so
        self.releases_at_close = True
        """False: something may act yet, so what is held is left to its ttl."""

    def store(self, url: str | None = None) -> LeaseStore:
        """The store that `url` names, or the system's (`Settings.lease`); opened once.

        Raises `SettingsError` when there is none, or it cannot work.
        """
        chosen = url or self._settings.lease
        if chosen is None:
            raise SettingsError(
                "there is no lease store: start the members with --lease URL (lease=… in code), "
                "or give this lease a store of its own"
            )
        found = self._stores.get(chosen)
        if found is None:
            try:
                found = self._environment.open_store(chosen)
            except ValueError as error:
                raise refused_store(chosen, error) from error
            self._stores[chosen] = found
        return found

    def settings_of(self, name: str, ttl_s: float | None = None) -> LeaseSettings:
        """Name, owner and times of a lease of this system. Raises `SettingsError`."""
        from lease import LeaseSettings

        settings = self._settings
        try:
            return LeaseSettings(
                name=name,
                owner=self._owner(),
                ttl_s=settings.lease_ttl_s if ttl_s is None else ttl_s,
                acquire_retry_interval_s=settings.acquire_retry_interval_s,
            )
        except ValueError as error:
            raise SettingsError(f"lease {name!r}: {error}") from error

    def lease(
        self,
        name: str,
        *,
        ttl_s: float | None = None,
        store: str | LeaseStore | None = None,
    ) -> Lease:
        """See `ActorSystem.lease`."""
        from lease import Lease

        self._forget_closed()
        environment = self._environment
        made = Lease(
            self.store(store) if store is None or isinstance(store, str) else store,
            self.settings_of(name, ttl_s),
            clock=environment.clock,
            wall_clock=environment.wall_clock,
            nonce=f"{environment.rng.getrandbits(64):016x}",
        )
        self._add(made)
        url = store if isinstance(store, str) else self._settings.lease if store is None else None
        if self._report is not None and url is not None:
            self._report.add(url, made)
        return made

    def adopt(self, lease: Lease) -> None:
        """Show, release and close one that was made elsewhere as if it had been made here."""
        if lease not in self._leases:
            self._add(lease)

    def _add(self, lease: Lease) -> None:
        self._leases.append(lease)
        lease.follow(self._told)

    def _told(self, fact: object) -> None:
        """Log once that a store does not answer, and once that it does again to all leases here."""
        from lease.events import StoreAnswers

        if not isinstance(fact, StoreAnswers):
            return
        silent = {*self.silent_stores()}
        for store in sorted(silent - self._said_silent):
            extra = {"store": store, "lease": fact.name, "error": fact.why}
            logger.warning("a lease store does not answer", extra=extra)
        for store in sorted(self._said_silent - silent):
            logger.info("a lease store answers again", extra={"store": store})
        self._said_silent = silent

    def _forget_closed(self) -> None:
        for lease in [lease for lease in self._leases if lease.closed]:
            self._leases.remove(lease)
            self._past.update(lease.counts)

    async def close(self) -> None:
        """Release what is held, within `CLOSE_TIMEOUT_S`; close the stores that were opened here.
        Nothing acts any more."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                if self.releases_at_close:
                    await asyncio.gather(*(lease.release() for lease in self._leases))
        except Exception as error:  # noqa: BLE001 - of any store; the ttl ends it as well
            held = [lease.settings.name for lease in self._leases if lease.check_alive()]
            logger.warning(
                "a lease could not be released; its ttl ends it",
                extra={"leases": held, "error": f"{type(error).__name__}: {error}"},
            )
        for lease in self._leases:
            await lease.close()
        for store in self._stores.values():
            await store.close()

    # -- for people

    def state(self) -> list[dict[str, Any]]:
        """What `/leases` shows."""
        self._forget_closed()
        rows = []
        for lease in self._leases:
            record = lease.record
            held, seen = lease.check_alive(), lease.seen_ago_s
            token = lease.token if held else record.token if record is not None else None
            since = record.acquired_at_wall_s if record is not None else None
            rows.append(
                {
                    "name": lease.settings.name,
                    "store": lease.store.identity,
                    "holder": record.owner if record is not None and not record.free else None,
                    "since": None if since is None else wall_time(since),
                    "held_by_us": held,
                    "token": None if token is None else str(token),
                    "valid_for_s": round(lease.remaining_s(), 3) if held else None,
                    "at_risk": lease.is_at_risk,
                    "store_answers": lease.store_answers,
                    "seen_ago_s": None if seen is None else round(seen, 3),
                    "explain": lease.explain(),
                }
            )
        return sorted(rows, key=lambda row: str(row["name"]))

    def silent_stores(self) -> tuple[str, ...]:
        """The stores that do not answer this node now, as far as a lease here has asked."""
        self._forget_closed()
        silent = {lease.store.identity for lease in self._leases if lease.store_answers is False}
        return tuple(sorted(silent))

    def counters(self) -> Counter[str]:
        """What happened to all of them, by name."""
        self._forget_closed()
        counts = Counter(self._past)
        for lease in self._leases:
            counts.update(lease.counts)
        return Counter({f"lease: {name}": count for name, count in counts.items()})

    def by_name(self) -> dict[str, list[Lease]]:
        """Those that are not closed; of one name there may be several holders."""
        self._forget_closed()
        found: dict[str, list[Lease]] = {}
        for lease in self._leases:
            found.setdefault(lease.settings.name, []).append(lease)
        return found
