"""A witness of membership: what each node published of each process, against what is true.

Decides when a verdict is a mistake: from outside, by the processes that the world runs and the
faults that a test ordered, never by what a machine says of itself. Used by the stories.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gossip.membership import Cause, MembershipView, NodeId, Status
from node.testkit import CheckFailedError, SimNode, World


@dataclass(frozen=True, slots=True)
class Span:
    """For how long a node held a process unreachable; `ended_s` is None while it does."""

    observer: str
    subject: str
    began_s: float
    ended_s: float | None

    def duration_s(self, now: float) -> float:
        """How long, up to now when it has not ended."""
        return (now if self.ended_s is None else self.ended_s) - self.began_s


@dataclass(frozen=True, slots=True)
class Removal:
    """A node came to hold a process as down or removed, at `at_s`.

    `was_wrong`: both were up, the process runs, and nobody had told it to leave.
    """

    observer: str
    subject: str
    cause: Cause
    at_s: float
    was_wrong: bool


@dataclass(frozen=True, slots=True)
class End:
    """A process that was up ended itself, and nobody had told it to leave.

    `was_known`: it was a member in the view of another node. A part that no other knows of has to
    stop when they meet, for nothing of it can be merged.
    """

    node: str
    exit_code: int
    reason: str
    at_s: float
    was_known: bool


class Witness:
    """Looks on after each step of a world, from its making on.

    `spans`, `removals` and `ends` have what was seen, in order.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.removals: list[Removal] = []
        self.ends: list[End] = []
        self.spans: list[Span] = []
        self._open: dict[tuple[str, str], tuple[float, NodeId]] = {}
        self._seats: dict[NodeId, tuple[SimNode, int]] = {}
        self._were_up: set[NodeId] = set()
        self._leavers: set[tuple[str, int]] = set()
        self._views: dict[str, MembershipView | None] = {}
        self._gone: dict[str, dict[NodeId, Cause]] = {}
        self._ran: list[SimNode] = []
        self._beheaded = False
        world.timeline.watchers.append(self.look)

    # what a test tells it

    def leaves(self, name: str) -> None:
        """The process now on this node was told to leave."""
        self._leavers.add((name, self.world[name].starts))

    def all_up_restart(self) -> None:
        """Every member that is up is restarted at this instant: those that were joining go on in
        their cluster, the restarted ones found another, and the smaller one stops."""
        self._beheaded = True

    # what it says

    @property
    def wrong(self) -> list[Removal]:
        """Removals of processes that ran on."""
        return [removal for removal in self.removals if removal.was_wrong]

    def unreachable_max_s(self, *, of: Iterable[str], at: Iterable[str]) -> float:
        """The longest time for which one of `at` held one of `of` unreachable."""
        observers, subjects = set(at), set(of)
        spans = [*self.spans, *(self._open_span(key) for key in self._open)]
        return max(
            (
                span.duration_s(self.world.now)
                for span in spans
                if span.observer in observers and span.subject in subjects
            ),
            default=0.0,
        )

    def check(self) -> None:
        """Raise CheckFailedError when a process that ran was removed, or stopped by itself."""
        words = [f"{removal}" for removal in self.wrong]
        words += [f"{end}" for end in self.ends if end.was_known and not self._may_stop(end)]
        if words:
            text = "members that did not end were taken out:\n  " + "\n  ".join(words)
            raise CheckFailedError(self.world.timeline.report(text))

    def _may_stop(self, end: End) -> bool:
        return self._beheaded and end.reason.startswith("two clusters are named")

    # looking

    def look(self) -> None:
        """Compare what is published with what it was at the last step."""
        running = self.world.running
        if running != self._ran:
            for node in self._ran:
                if not node.running:
                    self._ended(node)
            self._ran = running
        for node in running:
            view = node.view
            if view is not None and view is not self._views.get(node.name):
                self._changed(node, view)
                self._views[node.name] = view

    def _ended(self, node: SimNode) -> None:
        view = self._views.pop(node.name, None)
        self._gone.pop(node.name, None)
        for key in [key for key in self._open if key[0] == node.name]:
            self._close(key)
        ended = node.ended
        was_up = view is not None and view.self_id in self._were_up
        if ended is not None and was_up and (node.name, node.starts) not in self._leavers:
            assert view is not None
            others = [other.view for other in self.world.running]
            was_known = any(other is not None and view.self_id in other.by_id for other in others)
            end = End(node.name, ended.exit_code, ended.reason, self.world.now, was_known)
            self.ends.append(end)

    def _changed(self, node: SimNode, view: MembershipView) -> None:
        self._seats[view.self_id] = (node, node.starts)
        before = self._views.get(node.name)
        for member in view.members:
            if member.status is Status.DOWN:
                known = before.by_id.get(member.id) if before is not None else None
                if known is not None and known.status is not Status.DOWN:
                    self._removed(node, view.self_id, member.id, member.cause)
            elif member.counts:
                self._were_up.add(member.id)
        gone = self._gone.get(node.name)
        if view.gone is not gone:
            for subject, cause in view.gone.items():
                if gone is not None and subject not in gone:
                    self._removed(node, view.self_id, subject, cause)
            self._gone[node.name] = view.gone
        self._follow_reachability(node, view)

    def _removed(self, node: SimNode, observer: NodeId, subject: NodeId, cause: Cause) -> None:
        seat = self._seats.get(subject)
        name = seat[0].name if seat is not None else f"{subject}"
        runs = seat is not None and seat[0].running and seat[0].starts == seat[1]
        wrong = (
            runs
            and subject in self._were_up
            and observer in self._were_up
            and seat is not None
            and (name, seat[1]) not in self._leavers
        )
        self.removals.append(Removal(node.name, name, cause, self.world.now, wrong))

    def _follow_reachability(self, node: SimNode, view: MembershipView) -> None:
        now_unreachable = {
            (node.name, self._seats[subject][0].name): subject
            for subject in view.unreachable
            if subject in self._seats
        }
        for key in [key for key in self._open if key[0] == node.name]:
            if now_unreachable.get(key) != self._open[key][1]:
                self._close(key)
        for key, subject in now_unreachable.items():
            self._open.setdefault(key, (self.world.now, subject))

    def _open_span(self, key: tuple[str, str]) -> Span:
        return Span(*key, self._open[key][0], None)

    def _close(self, key: tuple[str, str]) -> None:
        began_s, _ = self._open.pop(key)
        self.spans.append(Span(*key, began_s, self.world.now))
