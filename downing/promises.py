"""Promises: how a side makes sure that whom it downs has fallen silent before.

Decides: whether a member promises, whom the decider asks, when a process may be marked down. Does
not decide who is to be downed. Part of `downing.machine`.

A promise is for ever: whoever gave it never grants that process contact again. It tells how long
the process has had no grant of the promiser (`quiet_s`), so that in the usual case, where a view
was stable for longer than a grant lasts, one round trip is enough. Promises outlive the decider:
whoever made one tells the next one, who carries it out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from downing.messages import PromiseDown, ProposeDown
from downing.settings import DowningSettings
from gossip.effects import Send
from gossip.membership import NodeId

DIRECT_TRIES = 1
"""So often a proposal goes straight only; then through others as well."""


@dataclass(slots=True)
class _Promiser:
    tries: int = 0
    ready_at: dict[NodeId, float] = field(default_factory=dict)  # per process promised about


class Round:
    """One proposal of a decider: these go down.

    number: unique for this decider. send: takes the effects.
    """

    def __init__(
        self,
        number: int,
        subjects: frozenset[NodeId],
        settings: DowningSettings,
        send: Callable[[Send], None],
    ) -> None:
        self.number = number
        self.subjects = subjects
        self._settings = settings
        self._send = send
        self._proposal = ProposeDown(number, tuple(sorted(subjects)))
        self._asked: dict[NodeId, _Promiser] = {}
        self._resend_at = math.inf

    def due(self, now: float) -> float:
        """The next instant at which somebody is asked again, or a promise is old enough."""
        waits = (at for asked in self._asked.values() for at in asked.ready_at.values())
        return min([self._resend_at, *(at for at in waits if at > now)])

    def ask(self, members: Iterable[NodeId], helpers: list[NodeId], now: float) -> None:
        """Ask those that were not asked yet, and again those that have not answered."""
        asked = set(members)
        for node in [node for node in self._asked if node not in asked]:
            del self._asked[node]
        fresh = sorted(asked - self._asked.keys())
        for node in fresh:
            self._asked[node] = _Promiser(tries=1)
            self._send(Send(node, self._proposal))
        if now >= self._resend_at:
            for node in sorted(asked - set(fresh)):
                promiser = self._asked[node]
                if self._has_answered(node, promiser):
                    continue
                promiser.tries += 1
                self._send(Send(node, self._proposal))
                if promiser.tries > DIRECT_TRIES:
                    through = [helper for helper in helpers if helper != node]
                    for nth in range(min(self._settings.helpers, len(through))):
                        helper = through[(promiser.tries + nth) % len(through)]
                        self._send(Send(node, self._proposal, via=helper))
        if fresh or now >= self._resend_at:
            self._resend_at = now + self._settings.ack_timeout_s
        if not self._asked or not self.silent:
            self._resend_at = math.inf

    def promised(
        self, sender: NodeId, promises: Iterable[tuple[NodeId, float]], now: float
    ) -> bool:
        """A member promised; False when it was not asked."""
        promiser = self._asked.get(sender)
        if promiser is None:
            return False
        for subject, quiet_s in promises:
            if subject in self.subjects and quiet_s >= 0.0:
                ready_at = now + max(0.0, self._settings.quiet_needed_s - quiet_s)
                promiser.ready_at.setdefault(subject, ready_at)
        return True

    @property
    def silent(self) -> list[NodeId]:
        """Who has not promised all it was asked for, sorted."""
        return sorted(n for n, asked in self._asked.items() if not self._has_answered(n, asked))

    def _has_answered(self, node: NodeId, promiser: _Promiser) -> bool:
        return promiser.ready_at.keys() >= self.subjects - {node}

    def may_mark(
        self,
        own: Mapping[NodeId, float],
        survives: Callable[[Collection[NodeId]], bool],
        now: float,
    ) -> list[NodeId]:
        """The subjects that all the others of our side have promised about, for long enough.

        own: when our own promise about each of them is old enough.
        """
        marked = []
        for subject in sorted(self.subjects):
            others = {node: asked for node, asked in self._asked.items() if node != subject}
            ready = [asked.ready_at.get(subject, math.inf) for asked in others.values()]
            if max([own.get(subject, math.inf), *ready]) <= now and survives(others.keys()):
                marked.append(subject)
        return marked


class Promises:
    """What this member has promised. `made` maps each process to the instant at which the last
    grant that we gave it is over."""

    def __init__(self, settings: DowningSettings) -> None:
        self.made: dict[NodeId, float] = {}
        self._settings = settings

    def promise(
        self, subjects: Iterable[NodeId], given: Mapping[NodeId, float], now: float
    ) -> None:
        """Never again grant these."""
        for subject in subjects:
            if subject not in self.made and len(self.made) < self._settings.subjects_max:
                given_at = given.get(subject, -math.inf)
                self.made[subject] = max(now, given_at + self._settings.quiet_needed_s)

    def as_told(
        self, round_: int, subjects: Iterable[NodeId], given: Mapping[NodeId, float], now: float
    ) -> PromiseDown:
        """The promises about these, as a message."""
        longest_s = 2 * self._settings.quiet_needed_s
        return PromiseDown(
            round_,
            tuple(
                (subject, min(longest_s, now - given.get(subject, -math.inf)))
                for subject in subjects
                if subject in self.made
            ),
        )

    def due(self, now: float) -> float:
        """When the last grant given to one of them is over."""
        return min((at for at in self.made.values() if at > now), default=math.inf)

    def forget(self, gone: Collection[NodeId]) -> None:
        """Drop promises about processes that are down or removed: those get no grant anyway."""
        for node in [node for node in self.made if node in gone]:
            del self.made[node]
