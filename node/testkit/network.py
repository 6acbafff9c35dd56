"""The network between simulated processes: delays, losses, cuts, and what a kernel would answer.

Decides when a frame arrives, whether it does, and what a dial meets. Does not read frames. It
behaves like TCP seen from above: a link is dialled before its first frame, keeps its order, ends
when the process at its other end ends. Called by `node.testkit.transport` (a process' side of it)
and by `node.testkit.world` (faults). Budget: 3 us per frame from flush to inbox.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from node.environment import DialOutcome, Lane
from node.errors import AddressInUseError
from node.testkit.timeline import Timeline

if TYPE_CHECKING:
    from node.testkit.transport import Link, SimTransport

IntoCut = Literal["held", "lost"]

DELAY_S = (0.0002, 0.001)
LINK_LOST_AFTER_S = 0.0005
HEARTBEAT_S = (3.0, 4.0)
UNACKED_S = 10.0
_FIRST_CHOSEN_PORT = 40_000


@dataclass(slots=True, eq=False)
class Path:
    """One direction between two nodes: links dialled by `source` to `target` run over it.

    `delay_s` is the least and the greatest delay of a frame; `loss` and `duplicate` are chances per
    frame; with `reorder` a frame may overtake another one of its link. A cut path passes neither
    frames nor dials; links in the other direction live on, answers of the kernel on them included.
    """

    source: str
    target: str
    delay_s: tuple[float, float] = DELAY_S
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: bool = False
    cut_at: float = math.inf
    is_severed: bool = False  # what was on its way when it was cut goes into the cut as well
    links: dict[Link, None] = field(default_factory=dict)
    dialling: dict[Link, None] = field(default_factory=dict)
    held: list[tuple[Link, bytes]] = field(default_factory=list)

    @property
    def is_cut(self) -> bool:
        """True while nothing passes."""
        return self.cut_at < math.inf


class Place:
    """A node's seat on the network: it stays while processes come and go on it."""

    __slots__ = ("host", "name", "powered")

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.powered = True


class SimNetwork:
    """All paths and listeners of one world.

    `into_cut` decides what becomes of frames sent into a cut on an established link: `"held"`
    (delivered in order after the heal, however long that takes: TCP at its most patient) or
    `"lost"` (as when the connection is given up). A kept control link over a cut path, to a stopped
    process or to a host without power is reported lost by its heartbeat after HEARTBEAT_S; any
    other control link once a frame on it was not acknowledged for UNACKED_S (a stopped process'
    kernel acknowledges).
    """

    def __init__(
        self, timeline: Timeline, rng: random.Random, *, into_cut: IntoCut = "held"
    ) -> None:
        self.timeline = timeline
        self.into_cut: IntoCut = into_cut
        self.frames_sent = 0
        self.frames_delivered = 0
        self.frames_lost = 0
        self._rng = rng
        self._trace_frame = timeline.trace.frame
        self._places: dict[str, Place] = {}
        self._addresses: dict[tuple[str, int], Place] = {}
        self._listeners: dict[tuple[str, int], SimTransport] = {}
        self._paths: dict[tuple[str, str], Path] = {}
        self._next_port = _FIRST_CHOSEN_PORT

    # -- places and paths

    def place(self, name: str, host: str) -> Place:
        """The seat of node `name`, made at the first call."""
        if name not in self._places:
            self._places[name] = Place(name, host)
        return self._places[name]

    def path(self, source: str, target: str) -> Path:
        """The path from node to node; change its fields to make it slow or lossy."""
        key = (source, target)
        path = self._paths.get(key)
        if path is None:
            path = self._paths[key] = Path(source, target)
        return path

    def path_to(self, place: Place, host: str, port: int) -> Path:
        """The path to whatever sits at an address."""
        return self.path(place.name, self._at_address(host, port).name)

    def _at_address(self, host: str, port: int) -> Place:
        place = self._addresses.get((host, port))
        if place is not None:
            return place
        for candidate in self._places.values():
            if candidate.host == host:
                return candidate
        nowhere = self.place(host, host)  # nobody owns it: a host that is not there
        nowhere.powered = False
        return nowhere

    # -- faults

    def cut(self, source: str, target: str, *, severed: bool = False) -> None:
        """Let nothing pass on links that `source` dials to `target`; `severed`: nor arrive."""
        path = self.path(source, target)
        path.is_severed = severed
        if not path.is_cut:
            path.cut_at = self.timeline.now
            self._after_heartbeat(self._lose_cut_links, path, path.cut_at)

    def heal(self, source: str, target: str) -> None:
        """End a cut: held frames go out in order, dials are tried again."""
        path = self.path(source, target)
        if not path.is_cut:
            return
        path.cut_at = math.inf
        path.is_severed = False
        for link in path.links:
            link.unacked_since = math.inf
        held, path.held = path.held, []
        for link, frame in held:
            self._launch(link, frame)
        for link in list(path.dialling):
            self.knock(link)

    def heal_all(self) -> None:
        """End every cut."""
        for path in list(self._paths.values()):
            self.heal(path.source, path.target)

    def process_paused(self, transport: SimTransport, until: float) -> None:
        """A process is stopped: heartbeats on links to it go unanswered."""
        self._after_heartbeat(self._lose_links_to, transport, until)

    def _after_heartbeat(self, action: Callable[..., None], *args: object) -> None:
        least, greatest = HEARTBEAT_S
        after = least + (greatest - least) * self._rng.random()
        self.timeline.at(self.timeline.now + after, action, *args)

    def _lose_cut_links(self, path: Path, cut_at: float) -> None:
        if path.cut_at == cut_at:
            self._lose_beating_links(path.links)

    def _lose_links_to(self, transport: SimTransport, until: float) -> None:
        if self.timeline.now < until and not transport.ended:
            self._lose_beating_links(transport.incoming)

    def _lose_beating_links(self, links: Iterable[Link]) -> None:
        for link in list(links):
            if link.has_heartbeat and not link.ended:
                link.owner.interrupt(link.owner.lose, link)

    # -- listeners

    def bind(self, transport: SimTransport, port: int) -> int:
        """Give a port (0: a free one) to a process. Raises AddressInUseError."""
        host = transport.place.host
        if port == 0:
            port = self._next_port
            self._next_port += 1
        if (host, port) in self._listeners:
            raise AddressInUseError(
                f"{host}:{port} is taken by another process of this world: give the node another "
                f"port, or crash the process that has it first"
            )
        transport.place.powered = True
        self._listeners[host, port] = transport
        self._addresses[host, port] = transport.place
        return port

    def end_process(self, transport: SimTransport, *, silent: bool = False) -> None:
        """What kernels do when a process ends: its listeners close, its links end.

        Frames on the way still arrive, held ones after the heal: the kernel keeps what it took.
        `silent`: the whole host goes, so nobody is told and nothing held is left.
        """
        place = transport.place
        for address, owner in list(self._listeners.items()):
            if owner is transport:
                del self._listeners[address]
        if silent:
            place.powered = False
            for path in self._paths.values():
                path.held = [held for held in path.held if held[0].owner.place is not place]
            self._after_heartbeat(self._lose_beating_links, list(transport.incoming))
        else:
            for link in list(transport.incoming):
                if not link.path.is_cut:
                    self._announce_end(link)
        transport.incoming.clear()

    def _announce_end(self, link: Link) -> None:
        after = self._delay(link.path) + LINK_LOST_AFTER_S
        self.timeline.at(self.timeline.now + after, link.owner.interrupt, link.owner.lose, link)

    # -- links

    def _delay(self, path: Path) -> float:
        least, greatest = path.delay_s
        return least + (greatest - least) * self._rng.random()

    def knock(self, link: Link) -> None:
        """Dial: the owner hears `established` or `refused`, or nothing at all."""
        link.path.dialling[link] = None
        if not link.path.is_cut:
            self.timeline.at(self.timeline.now + self._delay(link.path), self._answer_knock, link)

    def _answer_knock(self, link: Link) -> None:
        if link not in link.path.dialling:
            return
        address = (link.peer.host, link.port)
        target = self._listeners.get(address)
        now, back = self.timeline.now, self.timeline.now + self._delay(link.path)
        if target is None:
            if self._at_address(*address).powered:
                del link.path.dialling[link]
                self.timeline.at(back, link.owner.interrupt, link.owner.refused, link)
        elif target.resumes_at > now:
            # Its kernel accepts, but nobody is there to shake hands.
            if target.resumes_at < math.inf:
                self.timeline.at(target.resumes_at, self._answer_knock, link)
        else:
            del link.path.dialling[link]
            self.timeline.at(back, link.owner.interrupt, link.owner.established, link, target)

    def transmit(self, link: Link, frame: bytes) -> None:
        """Put a frame on an established link."""
        self.frames_sent += 1
        link.flying += len(frame)
        path = link.path
        if path.is_cut:
            self._into_cut(link, frame)
            return
        self.note(link, "send", frame)
        self._launch(link, frame)

    def _into_cut(self, link: Link, frame: bytes) -> None:
        self._not_acknowledged(link)
        if self.into_cut == "held":
            self.note(link, "held", frame)
            link.path.held.append((link, frame))
        else:
            self._lose(link, frame)
            self._break(link)

    def _launch(self, link: Link, frame: bytes) -> None:
        path, random_ = link.path, self._rng.random
        if link.is_broken or (path.loss and random_() < path.loss):
            self._lose(link, frame)
            self._break(link)
            return
        timeline = self.timeline
        arrival = timeline.now + self._delay(path)
        keeps_order = not path.reorder or link.lane is Lane.DATA
        if keeps_order:
            arrival = link.last_arrival = max(arrival, link.last_arrival)
        timeline.at(arrival, self._arrive, link, frame)
        if path.duplicate and random_() < path.duplicate:
            link.flying += len(frame)
            arrival = max(timeline.now + self._delay(path), link.last_arrival)
            if keeps_order:
                link.last_arrival = arrival
            timeline.at(arrival, self._arrive, link, frame)

    def _not_acknowledged(self, link: Link) -> None:
        if link.lane is Lane.CONTROL and link.unacked_since == math.inf:
            now = link.unacked_since = self.timeline.now
            self.timeline.at(now + UNACKED_S, self._give_up, link, now)

    def _give_up(self, link: Link, unacked_since: float) -> None:
        if link.unacked_since == unacked_since and not link.ended:
            link.owner.interrupt(link.owner.lose, link)

    def _lose(self, link: Link, frame: bytes) -> None:
        self.frames_lost += 1
        link.flying -= len(frame)
        self.note(link, "lost", frame)

    def _break(self, link: Link) -> None:
        """A data link that lost a frame passes no other any more, as a TCP connection would; and
        as long as nothing is acknowledged its owner holds it to be good. (Control messages are
        made for a network that loses some: their links go on.)"""
        if link.lane is Lane.DATA and not link.is_broken:
            link.is_broken = True
            due = self.timeline.now + UNACKED_S
            self.timeline.at(due, link.owner.interrupt, link.owner.lose, link)

    def _arrive(self, link: Link, frame: bytes) -> None:
        target = link.target
        assert target is not None
        if link.path.is_severed:
            self._into_cut(link, frame)
        elif target.ended:
            self._lose(link, frame)
            if not target.place.powered:
                self._not_acknowledged(link)
            elif not link.path.is_cut:
                self._announce_end(link)
        else:
            target.interrupt(target.receive, link, frame)

    def note(self, link: Link, kind: str, frame: bytes) -> None:
        """Trace a frame of a link."""
        path = link.path
        self._trace_frame(self.timeline.now, path.source, kind, path.target, link.lane_name, frame)

    # -- bare dials

    def probe(
        self, transport: SimTransport, host: str, port: int, answer: Callable[[DialOutcome], None]
    ) -> None:
        """Dial and close at once; `answer` is not called when nothing comes back."""
        path = self.path_to(transport.place, host, port)
        if not path.is_cut:
            there = self.timeline.now + self._delay(path)
            self.timeline.at(there, self._answer_probe, transport, path, (host, port), answer)

    def _answer_probe(
        self,
        transport: SimTransport,
        path: Path,
        address: tuple[str, int],
        answer: Callable[[DialOutcome], None],
    ) -> None:
        if not self._at_address(*address).powered:
            return
        listener = self._listeners.get(address)
        if listener is None:
            outcome = DialOutcome.REFUSED
        elif listener.resumes_at > self.timeline.now:
            outcome = DialOutcome.ACCEPTED  # by its kernel
        else:
            outcome = DialOutcome.ANSWERED
        back = self.timeline.now + self._delay(path)
        self.timeline.at(back, transport.interrupt, answer, outcome)
