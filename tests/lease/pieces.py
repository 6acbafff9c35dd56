"""Small means to write lease tests in: a machine that is spoken to in facts, and records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lease.effects import ReadStore, WatchRecord, WriteStore
from lease.events import (
    AcquireWanted,
    RecordRead,
    RecordWritten,
    ReleaseWanted,
    StoreAnswers,
    StoreFailed,
    WriteRefused,
)
from lease.machine import LeaseMachine
from lease.record import LeaseRecord
from lease.settings import LeaseSettings

NAME = "ledger"
TTL_S = 15.0
VALID_S = 12.5
RENEWAL_S = 5.0
DRAIN_S = 2.5


def settings(**fields: Any) -> LeaseSettings:
    """What is not named is as in `TTL_S`, `VALID_S`, `RENEWAL_S`."""
    return LeaseSettings(**dict[str, Any](name=NAME, owner="me", ttl_s=TTL_S) | fields)


def record(version: str, holder: str = "other#1", **fields: Any) -> LeaseRecord:
    """A record of another holder, unless named otherwise."""
    plain = LeaseRecord(
        name=NAME,
        holder=holder,
        token=int(version),
        ttl_s=TTL_S,
        write_id=f"w{version}",
        version=version,
    )
    return replace(plain, **fields)


class Desk:
    """A machine, and the store played by hand. `out` is what the last fact led to."""

    def __init__(self, **fields: Any) -> None:
        self.machine = LeaseMachine(settings(**fields), nonce="n1")
        self.out: list[object] = []
        self.order: ReadStore | WriteStore | None = None
        self.watched: str | None = None
        self.health: list[StoreAnswers] = []

    def tell(self, event: object, now: float) -> list[object]:
        """Feed a fact; returns the facts that came out, without orders to the store and what is
        said of its health."""
        return self._take(self.machine.handle(event, now))

    def tick(self, now: float) -> list[object]:
        """Let it do what is due."""
        return self._take(self.machine.tick(now))

    def want(self, now: float) -> list[object]:
        return self.tell(AcquireWanted(NAME), now)

    def unwant(self, now: float) -> list[object]:
        return self.tell(ReleaseWanted(NAME), now)

    def read(self, found: LeaseRecord | None, now: float, **fields: Any) -> list[object]:
        """Answer the read under way."""
        assert isinstance(self.order, ReadStore)
        return self.tell(RecordRead(NAME, self.order.attempt, found, **fields), now)

    def written(self, version: str, now: float) -> list[object]:
        """Confirm the write under way; a new token is the version."""
        return self.tell(RecordWritten(NAME, self.write().attempt, self.stored(version)), now)

    def stored(self, version: str, order: WriteStore | None = None) -> LeaseRecord:
        """What the store would keep of a write."""
        order = order or self.write()
        token = order.record.token
        return replace(
            order.record, version=version, token=int(version) if token is None else token
        )

    def refused(self, current: LeaseRecord | None, now: float) -> list[object]:
        """Answer the write under way with a conflict."""
        return self.tell(WriteRefused(NAME, self.write().attempt, current), now)

    def failed(self, now: float, why: str = "down") -> list[object]:
        """Answer whatever is under way with "unknown"."""
        assert self.order is not None
        return self.tell(StoreFailed(NAME, self.order.attempt, why), now)

    def hold(self, now: float = 0.0, version: str = "7") -> Desk:
        """Acquire it at once; the token is the version."""
        self.want(now)
        self.read(None, now)
        self.written(version, now)
        assert self.machine.held(now)
        return self

    @property
    def is_asking(self) -> bool:
        """A request is under way."""
        return self.machine._request is not None

    def write(self) -> WriteStore:
        """The write under way."""
        assert isinstance(self.order, WriteStore)
        return self.order

    def _take(self, effects: list[object]) -> list[object]:
        self.out = effects
        facts = []
        for effect in effects:
            if isinstance(effect, ReadStore | WriteStore):
                self.order = effect
            elif isinstance(effect, WatchRecord):
                self.watched = effect.version
            elif isinstance(effect, StoreAnswers):
                self.health.append(effect)
            else:
                facts.append(effect)
        return facts
