"""When what is unique in the cluster may act: the node's gate, and what an actor knows of it.

Decides: whether user code of a gated actor may begin a step now, and that whoever had to wait goes
on in order. Does not decide how long the node may act (the shell sets that, from contact with the
other members) nor what waits and what is lost: that is `node.cell` and `node.pipe`.

A step is what user code runs without giving the loop its turn. The gate is asked with one look at
the clock before each of them, and needs no event to close: it is closed once `until` has passed,
also while the process stood still.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from node.errors import AuthorityLost, AuthorityTooShortError

if TYPE_CHECKING:
    from lease import Lease

LOSSES_MAX = 3  # `AuthorityLost` into one coroutine; then, if it still goes on, it is abandoned


class Gate:
    """Open until `until` (seconds on `clock`; `math.inf`, the start, is no gate at all).

    `ready` is the runtime's: it gives a function a turn. `count` adds one to a counter. `longest_s`
    is for how long fresh proof opens it.
    """

    __slots__ = ("_count", "_held", "_ready", "_waiting", "clock", "longest_s", "until")

    def __init__(
        self,
        clock: Callable[[], float],
        ready: Callable[[Callable[[], None]], None],
        count: Callable[[str], None],
    ) -> None:
        self.clock = clock
        self.until = math.inf
        self.longest_s = math.inf
        self._waiting: list[tuple[float, asyncio.Future[None]]] = []
        self._ready = ready
        self._count = count
        self._held: dict[Callable[[], None], None] = {}

    def extend(self, until: float) -> None:
        """Let actors act until then; an instant that is past closes at once.

        When that opens the gate, all that was held gets a turn, in the order in which it was held.
        """
        self.until = until
        if self._waiting:
            self._waiting = [each for each in self._waiting if not self._tell(*each)]
        if self._held and self.is_open(self.clock()):
            held, self._held = self._held, {}
            for resume in held:
                self._ready(resume)

    async def reaches(self, until: float) -> None:
        """Return once it is open up to that instant at least; it may never be."""
        if self.until >= until:
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((until, waiting))
        try:
            await waiting
        finally:
            self._waiting = [each for each in self._waiting if each[1] is not waiting]

    def _tell(self, until: float, waiting: asyncio.Future[None]) -> bool:
        if self.until >= until and not waiting.done():
            waiting.set_result(None)
        return waiting.done()

    def is_open(self, now: float) -> bool:
        """True while user code may begin a step."""
        return now < self.until

    @property
    def is_open_now(self) -> bool:
        """`is_open`, with a look at the clock; without one where there is no gate."""
        until = self.until
        return until == math.inf or self.clock() < until

    def hold(self, resume: Callable[[], None]) -> None:
        """Give `resume` a turn once the gate is open; twice the same is held once. It has to ask
        the gate again: it may be closed by then."""
        self._held[resume] = None
        self._count("authority: holds")

    def forget(self, resume: Callable[[], None]) -> None:
        """Hold it no longer; what is not held is ignored."""
        self._held.pop(resume, None)

    @property
    def held_count(self) -> int:
        """Who waits for it to open."""
        return len(self._held)


class Authority:
    """What an actor may rely on while it acts, as `self.context.authority`.

    An actor of which the cluster runs one, and all below it, act only while the node can rule out
    that another one does. Others have an authority that is always held (`gate` None).
    """

    __slots__ = ("_gate",)

    def __init__(self, gate: Gate | None = None) -> None:
        self._gate = gate

    @property
    def token(self) -> int | None:
        """A number that grows with each holder, for stores that refuse older ones; None without a
        lease."""
        return None

    @property
    def valid_until(self) -> float:
        """The instant, on the clock of `Context.now`, from which it is not held unless it is
        renewed before; `math.inf` when it never ends."""
        return math.inf if self._gate is None else self._gate.until

    @property
    def held(self) -> bool:
        """True while this actor may act. Within one step it can become False."""
        gate = self._gate
        return gate is None or gate.is_open_now

    @property
    def open_until(self) -> float:
        """Until when the runtime begins steps; `valid_until`, unless it is unguarded."""
        return self.valid_until

    @property
    def is_open(self) -> bool:
        """True while the runtime begins steps; `held`, unless it is unguarded."""
        return self.held

    def remaining_s(self) -> float:
        """Seconds for which it is held without being renewed: 0.0 when it is not held."""
        gate = self._gate
        return math.inf if gate is None else max(0.0, gate.until - gate.clock())

    def check(self) -> None:
        """Raise `AuthorityLost` when it is not held: call it before what must not happen twice,
        in a step that has run for a while."""
        if not self.held:
            raise lost("")

    async def prove(self) -> None:
        """Return once it was proven by a round trip that began after this call: ask for it before
        what can not be taken back.

        Raises `AuthorityTooShortError` when nobody can prove it now. While there is no contact it
        waits, as the actor does.
        """
        if self._gate is not None:
            await self._gate.reaches(self._gate.clock() + self._gate.longest_s)

    def at_least(self, seconds: float) -> AtLeast:
        """`async with authority.at_least(2.0):` begins only what can end in time.

        Where less than `seconds` are left it is proven anew first. Raises
        `AuthorityTooShortError` when that is not enough: nothing of the block has run then. What
        runs longer than it said is not interrupted by this.
        """
        return AtLeast(self, seconds)

    @property
    def longest_s(self) -> float:
        """For how long it is held after fresh proof; `math.inf` when it never ends."""
        return math.inf if self._gate is None else self._gate.longest_s

    def hold(self, resume: Callable[[], None]) -> None:
        """As `Gate.hold`. Called by cells and pipes."""
        if self._gate is not None:
            self._gate.hold(resume)

    def forget(self, resume: Callable[[], None]) -> None:
        """As `Gate.forget`. Called by cells and pipes."""
        if self._gate is not None:
            self._gate.forget(resume)


class AtLeast:
    """What `Authority.at_least` returns."""

    __slots__ = ("_authority", "_seconds")

    def __init__(self, authority: Authority, seconds: float) -> None:
        self._authority = authority
        self._seconds = seconds

    async def __aenter__(self) -> Authority:
        """Prove it if there is too little left; see `Authority.at_least`."""
        authority, seconds = self._authority, self._seconds
        if seconds > authority.longest_s:
            raise AuthorityTooShortError(
                f"{seconds:g} s were asked for, and authority is held for "
                f"{authority.longest_s:g} s at most without new proof: do it in shorter parts, or "
                "raise contact_s or the lease's ttl"
            )
        if authority.remaining_s() < seconds:
            await authority.prove()
        left_s = authority.remaining_s()
        if left_s < seconds:
            raise AuthorityTooShortError(
                f"{seconds:g} s were asked for, and {left_s:.2f} s are left: the proof took too "
                "long. Try again"
            )
        return authority

    async def __aexit__(self, *_: object) -> None:
        """Nothing to do."""


class LeasedAuthority(Authority):
    """While the node has contact (`contact` is open) and `lease` is held; `gate` joins the two."""

    __slots__ = ("_contact", "_is_unguarded", "_lease")

    def __init__(self, gate: Gate, lease: Lease, contact: Gate) -> None:
        super().__init__(gate)
        self._lease = lease
        self._contact = contact
        self._is_unguarded = False

    def unguard(self) -> None:
        """From now on steps begin also without the lease, as long as the node has contact.

        For an instance that is to stop and to handle first what it has (`on_lease_lost="drain"`).
        It does not hold anything: another one may be acting.
        """
        self._is_unguarded = True

    @property
    def open_until(self) -> float:
        """That of contact alone once it is unguarded."""
        return self._contact.until if self._is_unguarded else self.valid_until

    @property
    def is_open(self) -> bool:
        """As `open_until` says."""
        return self._contact.is_open_now if self._is_unguarded else self.held

    @property
    def token(self) -> int | None:
        """That of the lease; None while it is not held."""
        return self._lease.token

    @property
    def valid_until(self) -> float:
        """Also over at once when this machine may have been frozen; see `Lease.check_alive`."""
        assert self._gate is not None
        return self._gate.until if self._lease.check_alive() else -math.inf

    @property
    def held(self) -> bool:
        """True while this actor may act."""
        assert self._gate is not None
        return self._gate.is_open_now and self._lease.check_alive()

    def remaining_s(self) -> float:
        """Seconds for which it is held without being renewed: 0.0 when it is not held."""
        assert self._gate is not None
        return max(0.0, self.valid_until - self._gate.clock())

    @property
    def longest_s(self) -> float:
        """That of contact or of the lease, whichever ends first."""
        return min(super().longest_s, self._lease.settings.valid_s)

    async def prove(self) -> None:
        """As `Authority.prove`, by the store and by contact."""
        from lease import LeaseUnavailableError  # it is loaded where there is a lease

        try:
            proven = await self._lease.acquire()
        except LeaseUnavailableError as error:
            raise AuthorityTooShortError(f"its lease can not be proven now: {error}") from error
        if not proven:
            raise lost("")
        assert self._gate is not None
        contact_s = super().longest_s
        if contact_s < math.inf:
            until = min(self._gate.clock() + contact_s, self._lease.valid_until)
            await self._gate.reaches(until)


ALWAYS = Authority()
"""Of actors that are not gated."""


def lost(path: str) -> AuthorityLost:
    """What is raised in user code that has no authority any more."""
    return AuthorityLost(
        f"{path or 'this actor'} has no authority any more: its node has been without contact, and "
        f"another may act in its place. End this step without acting; await nothing"
    )


def is_loss(error: BaseException) -> bool:
    """True for `AuthorityLost`, and for a group of nothing else, as a `TaskGroup` makes it."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(AuthorityLost)[1] is None
    return isinstance(error, AuthorityLost)
