"""All sides, round after round: raw, ours, the peers, ours with CURVE, row by row.

Decides the order, so that what is divided was taken side by side: within a round every row is
measured on one side after the other, each round begins with another side, and every round has
processes of its own. A side that cannot be measured has a reason in place of figures, and the run
goes on. Decides no target: that is `table`. Called by `python -m bench messaging`.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench.messaging.child import Child, NotMeasuredError
from bench.messaging.environments import PEERS, NotAvailableError, Peer, interpreter_of
from bench.messaging.peer import free_port
from bench.messaging.raw import RAW_ROWS
from bench.messaging.table import CURVE, FLOOR, OFF, ON, OURS, RAW
from bench.processes import ROOT, clean_environment

REMOTE_ROWS = ("ask1", "ask64", "ask1024", "tell_100", "tell_1k", "tell_64k", "tell_1m")
LOCAL_ROWS = ("local_tell", "local_ask1", "local_ask64")
COST_ROWS = ("local_tell", "tell_100")
COST_TURNS = 4
SCRAPE_INTERVAL_S = 1.0
HTTP_TIMEOUT_S = 10.0
HTTP_LOOK_S = 0.02
PROBE_FOR = 3  # times as long as a row: its 99th percentile needs many samples
KEYGEN_TIMEOUT_S = 30.0
GREETING_TIMEOUT_S = 5.0
GREETING_BYTES = 64
ADDRESS = "127.0.0.1"

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured. `only` limits the rows (empty: all), for tests."""

    rounds: int
    for_s: float
    peers: tuple[str, ...] = ()
    environments: Path = Path()
    only: frozenset[str] = frozenset()

    def takes(self, row: str) -> bool:
        """True when the row is to be measured."""
        return not self.only or row in self.only


@dataclass
class Round:
    """The figures of one round, by side and row; a text says why there are none."""

    figures: dict[tuple[str, str], Figures | str] = field(default_factory=dict)

    def take(self, side: str, row: str, measure: Callable[[], Figures]) -> None:
        """Measure a row of a side, and keep whatever comes of it."""
        try:
            self.figures[side, row] = measure()
        except NotMeasuredError as reason:
            self.figures[side, row] = str(reason)

    def give_up(self, side: str, rows: Sequence[str], reason: str) -> None:
        """None of these rows can be measured."""
        for row in rows:
            self.figures.setdefault((side, row), reason)


@dataclass
class Bench:
    """A run of all rounds; `facts` tells of each side what its processes said of themselves."""

    plan: Plan
    say: Callable[[str], None]
    facts: dict[str, Any] = field(default_factory=dict)
    _interpreters: dict[str, Path | str] = field(default_factory=dict)
    _directory: Path = Path()
    _logs: int = 0

    def run(self) -> list[Round]:
        """All rounds."""
        self._prepare()
        rounds: list[Round] = []
        for number in range(self.plan.rounds):
            with tempfile.TemporaryDirectory(prefix="tenure-bench-") as directory:
                self._directory = Path(directory)
                self.say(f"round {number + 1} of {self.plan.rounds}")
                rounds.append(self._round(number))
        return rounds

    def _prepare(self) -> None:
        """The peers' environments, before any clock runs."""
        for name in self.plan.peers:
            self.say(f"environment of {name}")
            try:
                python = interpreter_of(PEERS[name], self.plan.environments)
            except NotAvailableError as error:
                self._interpreters[name] = f"not available: {error}"
                self.facts[name] = {"state": f"not available: {error}"}
                continue
            self._interpreters[name] = python
            self.facts[name] = {"packages": _packages(python)}

    def _round(self, number: int) -> Round:
        one = Round()
        with ExitStack() as stack:
            drivers = self._open_remote(one, stack)
            self._remote_rows(one, drivers, number)
            if OURS in drivers:
                self._probe(one, drivers[OURS])
        self._metrics_cost(one, number)
        self._local_rows(one, number)
        for name in self.plan.peers:
            if PEERS[name].alone:
                self._peer_alone(one, PEERS[name])
        return one

    # two processes

    def _open_remote(self, one: Round, stack: ExitStack) -> dict[str, _Pair]:
        """The driver of each side whose processes can lie idle while others are measured."""
        drivers: dict[str, _Pair] = {}
        rows = [row for row in REMOTE_ROWS if self.plan.takes(row)]
        sides: list[tuple[str, Callable[[], _Pair]]] = [(OURS, partial(self._pair, stack))]
        for name in self.plan.peers:
            peer = PEERS[name]
            if "receive" in peer.parts and not peer.alone:
                sides.append((name, partial(self._peer_pair, peer, stack)))
        sides.append((CURVE, partial(self._curve_pair, stack)))
        for side, open_pair in sides:
            try:
                drivers[side] = open_pair()
                self._note(side, drivers[side].facts)
            except NotMeasuredError as reason:
                one.give_up(side, rows, str(reason))
        return drivers

    def _remote_rows(self, one: Round, drivers: Mapping[str, _Pair], number: int) -> None:
        for_s = self.plan.for_s
        sides = [RAW, *drivers]
        turn = number % len(sides)
        for row in REMOTE_ROWS:
            if not self.plan.takes(row):
                continue
            for side in sides[turn:] + sides[:turn]:
                if side != RAW:
                    one.take(side, row, partial(drivers[side].driver.measure, row, for_s))
                elif row in RAW_ROWS:
                    one.take(RAW, row, partial(self._raw, row))
                    if (tuned := f"{row}_tuned") in RAW_ROWS:
                        one.take(RAW, tuned, partial(self._raw, tuned))

    def _raw(self, row: str) -> Figures:
        command = [sys.executable, "-m", "bench.messaging.raw", row, str(self.plan.for_s)]
        with Child(command, self._log("raw")) as child:
            return child.answer()

    def _pair(
        self, stack: ExitStack, *, port: int = 0, each: Sequence[Sequence[str]] = ((), ())
    ) -> _Pair:
        """Two members; `each` are the further flags of the receiver and of the driver."""
        receiver = self._member(stack, "receive", ["--port", str(port), "--found", *each[0]])
        address = receiver.answer()["address"]
        driver = self._member(stack, "drive", ["--port", "0", "--seed", address, *each[1]])
        return _Pair(driver, driver.answer()["ready"], address)

    def _member(self, stack: ExitStack, part: str, flags: Sequence[str]) -> Child:
        command = [sys.executable, "-m", "node", "--app", f"bench.messaging.ours:{part}"]
        command += ["--loop", "uvloop", "--log-level", "warning", *flags]
        child = Child(command, self._log(part))
        stack.callback(child.kill)
        return child

    def _curve_pair(self, stack: ExitStack) -> _Pair:
        port = free_port()
        homes = make_keys(self._directory, f"{ADDRESS}:{port}")
        pair = self._pair(stack, port=port, each=[["--keys", str(home)] for home in homes])
        for lane, lane_port in (("control", port), ("data", int(str(pair.facts["data_port"])))):
            if (found := mechanism_at(lane_port)) != "CURVE":
                raise NotMeasuredError(f"failed: its {lane} lane speaks {found}, not CURVE")
        return pair

    def _peer_pair(self, peer: Peer, stack: ExitStack) -> _Pair:
        """The receiver, if it is a process of its own to be started, and the driver."""
        port = free_port()
        if "receive" in peer.parts:
            receiver = stack.enter_context(self._peer(peer, "receive", port))
            receiver.answer()
        driver = stack.enter_context(self._peer(peer, "drive", port))
        return _Pair(driver, driver.answer()["ready"], f"{ADDRESS}:{port}")

    def _peer(self, peer: Peer, part: str, port: int = 0) -> Child:
        python = self._interpreters[peer.name]
        if isinstance(python, str):
            raise NotMeasuredError(python)
        command = [str(python), "-m", "bench.messaging.peer", peer.name, part, str(port)]
        return Child(command, self._log(f"{peer.name}-{part}"))

    def _peer_alone(self, one: Round, peer: Peer) -> None:
        rows = [row for row in peer.rows or REMOTE_ROWS if self.plan.takes(row)]
        if not rows:
            return
        with ExitStack() as stack:
            try:
                pair = self._peer_pair(peer, stack)
            except NotMeasuredError as reason:
                one.give_up(peer.name, rows, str(reason))
                return
            self._note(peer.name, pair.facts)
            for row in rows:
                one.take(peer.name, row, partial(pair.driver.measure, row, self.plan.for_s))

    # two members and somebody else

    def _probe(self, one: Round, ours: _Pair) -> None:
        """Bulk from the driver, pings from a third member, to one receiver at one time."""
        if not self.plan.takes("probe"):
            return
        for_s = self.plan.for_s * PROBE_FOR
        command = [sys.executable, "-m", "bench.messaging.probe", ours.address]
        with Child(command, self._log("probe")) as prober:

            def measure() -> Figures:
                prober.answer()
                ours.driver.order("tell_1m", for_s)
                prober.order("probe", for_s)
                one.take(OURS, "probe_bulk", lambda: ours.driver.answer(for_s + 60))
                figures = prober.answer(for_s + 60)
                if isinstance(bulk := one.figures[OURS, "probe_bulk"], str):
                    raise NotMeasuredError(f"without the load: {bulk}")
                return {**figures, "p99_ms": figures["p99_us"] / 1000}

            one.take(OURS, "probe", measure)

    def _metrics_cost(self, one: Round, number: int) -> None:
        """The same rows without and with HTTP, in short turns: one, other, other, one, and again.

        Both pairs are as young as each other, and the first turn of each is not counted. The means
        are kept, not the medians: a scrape falls into few turns, and is the cost.
        """
        rows = [row for row in COST_ROWS if self.plan.takes(f"cost_{row}")]
        if not rows:
            return
        order = (OFF, ON, ON, OFF) if number % 2 == 0 else (ON, OFF, OFF, ON)
        for_s = self.plan.for_s / COST_TURNS
        try:
            with ExitStack() as stack:
                http = [f"{ADDRESS}:{free_port()}" for _ in range(2)]
                children = {
                    OFF: self._pair(stack).driver,
                    ON: self._pair(stack, each=[["--http", address] for address in http]).driver,
                }
                stack.enter_context(scraping(http))
                for row in rows:
                    taken: dict[str, list[float]] = {OFF: [], ON: []}
                    for side in order[:2] + order * COST_TURNS:
                        taken[side].append(children[side].measure(row, for_s)["per_s"])
                    for side, values in taken.items():
                        one.figures[side, row] = {"per_s": statistics.fmean(values[1:])}
        except NotMeasuredError as reason:
            for side in (ON, OFF):
                one.figures.update({(side, row): str(reason) for row in rows})

    # one process

    def _local_rows(self, one: Round, number: int) -> None:
        if self.plan.takes("spawn"):
            with self._local_of_ours() as child:
                one.take(OURS, "spawn", partial(self._first, child, "spawn"))
        rows = [row for row in LOCAL_ROWS if self.plan.takes(row)]
        if not rows:
            return
        with ExitStack() as stack:
            children: dict[str, Child] = {}
            self._open_local(one, stack, children, OURS, self._local_of_ours)
            for name in self.plan.peers:
                if "local" in PEERS[name].parts:
                    start = partial(self._peer, PEERS[name], "local")
                    self._open_local(one, stack, children, name, start)
                    with contextlib.suppress(NotMeasuredError), start() as apart:
                        # While its memory is still its own.
                        one.take(name, "spawn", partial(self._first, apart, "spawn"))
            for_s = self.plan.for_s
            sides = [FLOOR, *children]
            turn = number % len(sides)
            for row in rows:
                for side in sides[turn:] + sides[:turn]:
                    if side != FLOOR:
                        one.take(side, row, partial(children[side].measure, row, for_s))
                    elif row == "local_tell" and OURS in children:
                        one.take(FLOOR, row, partial(children[OURS].measure, "floor", for_s))

    def _local_of_ours(self) -> Child:
        return Child([sys.executable, "-m", "bench.messaging.ours"], self._log("local"))

    def _first(self, child: Child, row: str) -> Figures:
        child.answer()
        return child.measure(row, self.plan.for_s)

    def _open_local(
        self,
        one: Round,
        stack: ExitStack,
        children: dict[str, Child],
        side: str,
        start: Callable[[], Child],
    ) -> None:
        try:
            child = stack.enter_context(start())
            self._note(side, child.answer()["ready"])
        except NotMeasuredError as reason:
            one.give_up(side, (*LOCAL_ROWS, "spawn"), str(reason))
        else:
            children[side] = child

    # small things

    def _log(self, name: str) -> Path:
        self._logs += 1
        return self._directory / f"{self._logs}-{name}.log"

    def _note(self, side: str, facts: Mapping[str, object]) -> None:
        known = self.facts.setdefault(side, {})
        known.update({key: facts[key] for key in ("python", "loop")})


@dataclass(frozen=True, slots=True)
class _Pair:
    """A driver that is ready, what it said of itself, and where its receiver is."""

    driver: Child
    facts: Mapping[str, object]
    address: str


def make_keys(directory: Path, receiver_address: str) -> tuple[Path, Path]:
    """Key directories of a receiver and a driver that trust each other.

    Raises `NotMeasuredError` when this version makes no keys.
    """
    homes = (directory / "receiver-keys", directory / "driver-keys")
    for home, flags in zip(homes, (["--address", receiver_address], []), strict=True):
        done = subprocess.run(
            [sys.executable, "-m", "node", "keygen", str(home), *flags],
            cwd=ROOT,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=KEYGEN_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            raise NotMeasuredError(f"not available: no keys could be made: {last}")
    lines = "".join((home / "public").read_text() for home in homes)
    for home in homes:
        (home / "trusted").write_text(lines)
    return homes


def mechanism_at(port: int) -> str:
    """The security mechanism that a ZeroMQ listener offers, read off its greeting (ZMTP 3)."""
    begin = b"\xff" + bytes(8) + b"\x7f\x03"  # it answers with the whole of its own greeting
    try:
        with socket.create_connection((ADDRESS, port), GREETING_TIMEOUT_S) as connection:
            connection.sendall(begin)
            answer = b""
            while len(answer) < GREETING_BYTES and (more := connection.recv(GREETING_BYTES)):
                answer += more
    except OSError as error:
        return f"nothing ({error})"
    return answer[12:32].rstrip(b"\0").decode(errors="replace") or "nothing"


@contextlib.contextmanager
def scraping(addresses: Sequence[str]) -> Iterator[None]:
    """Fetch `/metrics` of each address every second, from the first answers of all on.

    Raises `NotMeasuredError` when one does not answer: the cost of what is off is not known.
    """
    ended = threading.Event()

    def scrape_on() -> None:
        while not ended.wait(SCRAPE_INTERVAL_S):
            for address in addresses:
                _scrape(address)

    until = time.monotonic() + HTTP_TIMEOUT_S
    for address in addresses:
        while not _scrape(address):
            if time.monotonic() > until:
                raise NotMeasuredError(f"failed: {address} did not serve its metrics in time")
            time.sleep(HTTP_LOOK_S)
    thread = threading.Thread(target=scrape_on, name="scraping", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _scrape(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=HTTP_TIMEOUT_S) as answer:
            return bool(answer.read())
    except OSError:
        return False


def _packages(python: Path) -> list[str]:
    """What is installed in an environment, as `pip freeze` says it."""
    done = subprocess.run(
        [str(python), "-m", "pip", "freeze"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout.split()
