"""The application of every process of the sharding bench: `--app bench.sharding.member:setup`.

Decides what an entity is here and how its steps are written down: the *entity itself* writes each
step it begins, one line and one `write` of the kernel, so that a SIGKILL loses nothing. Performs
the orders of the bench (one JSON object per line on standard input, answered on standard output);
judges nothing. Called by `bench.sharding.fleet`.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any

from bench.messaging.driver import Driver
from bench.messaging.ours import OurSide, Receiver, Where
from bench.messaging.session import facts, resident_bytes, say
from bench.sharding.histories import START, STEP, STOP
from gossip.membership import Status
from node import Actor, ActorRef, ActorSystem, Ask, message, on
from node.history import boottime_s
from node.sharding import Entities
from node.supervision import StopReason

TICK_S = 0.005
ASK_TIMEOUT_S = 5.0
LONG_TIMEOUT_S = 90.0
FAILURES_SHOWN = 3


@message("bench.sharding.step")
class Step(Ask[int]):
    """One step. `number` is another one for each ask."""

    number: int


@message("bench.sharding.touch")
class Touch(Ask[int]):
    """Be there."""


class Cart(Receiver):
    """An entity that counts what it gets, as the plain actor beside which it is measured."""

    def __init__(self, entity_id: str, plain: ActorRef[Any]) -> None:
        super().__init__()
        self._plain = plain

    @on(Where)
    def where(self, _msg: Where) -> ActorRef[Any]:
        """The plain actor of the same node."""
        return self._plain


class Idle(Actor):
    """An entity with one field of its own that waits for its next message."""

    def __init__(self, entity_id: str) -> None:
        self.count = 0

    @on(Touch)
    def touch(self, _msg: Touch) -> int:
        """Shows that it lives."""
        self.count += 1
        return self.count


class Walker(Actor):
    """An entity that writes down when it began, each step, and when it was over."""

    lives = itertools.count()

    def __init__(self, entity_id: str, node: str, file: int) -> None:
        life = f"{node}/{os.getpid()}/{next(self.lives)}"
        self._about = f"{node} {life} {entity_id}"
        self._file = file

    def pre_start(self) -> None:
        """It is alive from here on."""
        self._write(START)

    @on(Step)
    def step(self, msg: Step) -> int:
        """Act once."""
        self._write(STEP, msg.number)
        return msg.number

    def post_stop(self, _reason: StopReason) -> None:
        """It was alive until here."""
        self._write(STOP)

    def _write(self, kind: str, number: int | str = "-") -> None:
        os.write(self._file, f"{boottime_s():.6f} {self._about} {kind} {number}\n".encode())


class Load:
    """Asks at a steady rate, each id in turn, whatever becomes of those before; no retries. The
    asks are numbered from `first` on. `hosts` is counted all the while."""

    def __init__(
        self,
        refs: Sequence[ActorRef[Any]],
        per_s: float,
        timeout_s: float,
        first: int,
        hosts: Callable[[], int],
    ) -> None:
        self._first = first
        self._refs = refs
        self._per_s = per_s
        self._timeout_s = timeout_s
        self._asked = 0
        self._spans_s: list[float] = []
        self._failed: Counter[str] = Counter()
        self._examples: list[str] = []
        self._late_s = 0.0
        self._hosts = hosts
        self._fewest_hosts = hosts()
        self._ends = False
        self._under_way: set[asyncio.Task[None]] = set()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        begun_at = loop.time()
        while not self._ends:
            self._fewest_hosts = min(self._fewest_hosts, self._hosts())
            due = int((loop.time() - begun_at) * self._per_s)
            self._late_s = max(self._late_s, (due - self._asked) / self._per_s)
            while self._asked < due:
                task = loop.create_task(self._ask(self._first + self._asked))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
                self._asked += 1
            await asyncio.sleep(TICK_S)
        self._for_s = loop.time() - begun_at

    async def _ask(self, number: int) -> None:
        ref = self._refs[number % len(self._refs)]
        begun_at = perf_counter()
        try:
            answer = await ref.ask(Step(number), timeout_s=self._timeout_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, it was no answer
            self._failed[type(error).__name__] += 1
            if len(self._examples) < FAILURES_SHOWN:
                self._examples.append(f"{boottime_s():.3f} {ref.path}: {error}")
            return
        if answer != number:
            self._failed["another one's answer"] += 1
        self._spans_s.append(perf_counter() - begun_at)

    async def end(self) -> dict[str, object]:
        """Stop, wait for every answer, and say what came of it."""
        self._ends = True
        await self._task
        await asyncio.gather(*self._under_way)
        ordered = sorted(self._spans_s)
        return {
            "first": self._first,
            "asked": self._asked,
            "answered": len(ordered),
            "unanswered": dict(self._failed),
            "examples": self._examples,
            "per_s": self._asked / self._for_s,
            "p50_ms": ordered[len(ordered) // 2] * 1000 if ordered else None,
            "p99_ms": ordered[len(ordered) * 99 // 100] * 1000 if ordered else None,
            "slowest_s": ordered[-1] if ordered else None,
            "late_s": self._late_s,
            "fewest_hosts": self._fewest_hosts,
        }


class Member:
    """Performs orders: each is `{"row": NAME, …}`, and NAME one of the coroutines below."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._sharding = system.cluster.sharding
        self._node = system.cluster.self_id.address
        self._entities: dict[str, Entities[Any]] = {}
        self._drivers: dict[str, Driver] = {}
        self._role: str | None = None
        self._load: Load | None = None
        self._later: asyncio.Task[dict[str, object]] | None = None
        self._plain: ActorRef[Any] = system.spawn(Receiver, name="plain")
        self._task = asyncio.get_running_loop().create_task(self._serve())
        self._task.add_done_callback(self._ended)
        self._orders: dict[str, Callable[..., Awaitable[dict[str, object]]]] = {
            "host": self.host,
            "proxy": self.proxy,
            "state": self.state,
            "up": self.up,
            "drive": self.drive,
            "measure": self.measure,
            "fill": self.fill,
            "memory": self.memory,
            "load": self.load,
            "end_load": self.end_load,
            "ask_each": self.ask_each,
            "answers": self.answers,
        }

    async def _serve(self) -> None:
        lines = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        say(ready=facts() | {"address": self._node})
        while line := await lines.readline():
            order = json.loads(line)
            try:
                say(**await self._orders[order.pop("row")](**order))
            except Exception as error:  # noqa: BLE001 - the bench is told, whatever it is
                say(failed=f"{type(error).__name__}: {error}")
        os._exit(1)  # the bench is gone: whoever it did not end must not keep the machine busy

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            say(failed=f"{type(error).__name__}: {error}")

    # who hosts what

    async def host(
        self, type_name: str, shard_count: int, role: str | None, steps: str = ""
    ) -> dict[str, object]:
        """Host entities of a type; `steps` is the file of those that write."""
        kinds: dict[str, tuple[type[Actor], tuple[object, ...]]] = {
            "cart": (Cart, (self._plain,)),
            "idle": (Idle, ()),
        }
        if type_name == "walker":
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            kinds["walker"] = (Walker, (self._node, os.open(steps, flags, 0o644)))
        actor, args = kinds[type_name]
        self._role = role
        self._entities[type_name] = self._sharding.start(
            type_name=type_name,
            actor=actor,
            args=args,
            shard_count=shard_count,
            role=role,
            idle_s=None,
        )
        return {}

    async def proxy(self, type_name: str, shard_count: int, role: str | None) -> dict[str, object]:
        """Only send to a type."""
        self._role = role
        self._entities[type_name] = self._sharding.start_proxy(
            type_name=type_name, shard_count=shard_count, role=role
        )
        return {}

    async def state(self) -> dict[str, object]:
        """What sharding says of itself here, type by type."""
        return {one["type"]: one for one in self._sharding.state()}

    async def up(self, count: int) -> dict[str, object]:
        """Wait until so many members are up."""
        await asyncio.wait_for(self._system.cluster.up(count), LONG_TIMEOUT_S)
        return {}

    # speed

    async def drive(self, id_prefix: str, here: str, away: str) -> dict[str, object]:
        """Find an entity on this node and one on another, and a plain actor beside each; `here`
        and `away` are addresses."""
        carts = self._entities["cart"]
        nodes: dict[str, ActorRef[Any]] = {}
        for number in itertools.count():
            ref = carts[f"{id_prefix}{number}"]
            await ref.ask(Where(), timeout_s=LONG_TIMEOUT_S)
            homes: dict[str, list[int]] = self._sharding.state()[0]["homes"]
            [address] = [one for one, shards in homes.items() if ref.shard_id in shards]
            nodes.setdefault(address, ref)
            if {here, away} <= nodes.keys():
                break
        for side, address in (("here", here), ("away", away)):
            plain = await nodes[address].ask(Where(), timeout_s=LONG_TIMEOUT_S)
            self._drivers[f"entity {side}"] = Driver(OurSide(nodes[address]))
            self._drivers[f"plain {side}"] = Driver(OurSide(plain))
        return {}

    async def measure(self, side: str, load: str, for_s: float) -> dict[str, object]:
        """One row of `bench.messaging.driver` on a side."""
        return dict(await self._drivers[side].run(load, for_s))

    # memory

    async def fill(self, first: int, count: int, outstanding: int) -> dict[str, object]:
        """Build so many idle entities by a message to each; how many answered, and how fast."""
        entities = self._entities["idle"]
        numbers = iter(range(first, first + count))

        async def asker() -> int:
            answered = 0
            for number in numbers:
                await entities[f"e{number}"].ask(Touch(), timeout_s=LONG_TIMEOUT_S)
                answered += 1
            return answered

        begun_at = perf_counter()
        answered = sum(await asyncio.gather(*[asker() for _ in range(outstanding)]))
        return {"answered": answered, "per_s": answered / (perf_counter() - begun_at)}

    async def memory(self) -> dict[str, object]:
        """Resident bytes, once what is garbage is gone."""
        gc.collect()
        return {"bytes": resident_bytes()}

    # histories

    async def load(self, ids: int, per_s: float, first: int = 0) -> dict[str, object]:
        """Begin to ask so many ids in turn, with numbers from `first` on."""
        walkers = self._entities["walker"]
        refs = [walkers[f"w{number}"] for number in range(ids)]
        self._load = Load(refs, per_s, ASK_TIMEOUT_S, first, self._hosts)
        return {"at_s": boottime_s()}

    def _hosts(self) -> int:
        """Members that may host and are up, none of them on its way out, as this one knows."""
        view = self._system.cluster.view
        return sum(
            member.status is Status.UP and (self._role is None or self._role in member.roles)
            for member in (view.members if view is not None else ())
        )

    async def end_load(self) -> dict[str, object]:
        """No more; what came of it."""
        assert self._load is not None
        return await self._load.end()

    async def ask_each(self, ids: list[str], first: int) -> dict[str, object]:
        """Ask each of these once, with all patience; `answers` tells."""

        async def all_of_them() -> dict[str, object]:
            walkers = self._entities["walker"]
            answered: list[float] = []
            failed: list[str] = []

            async def one(number: int, entity_id: str) -> None:
                try:
                    await walkers[entity_id].ask(Step(number), timeout_s=LONG_TIMEOUT_S)
                    answered.append(boottime_s())
                except Exception as error:  # noqa: BLE001 - whatever it is, it was no answer
                    failed.append(f"{entity_id}: {error}")

            await asyncio.gather(*[one(*each) for each in enumerate(ids, first)])
            return {"answered": sorted(answered), "failures": failed}

        self._later = asyncio.get_running_loop().create_task(all_of_them())
        return {"at_s": boottime_s()}

    async def answers(self) -> dict[str, object]:
        """Wait for the answers that `ask_each` asked for."""
        assert self._later is not None
        return await self._later


def setup(system: ActorSystem) -> None:
    """Perform orders until the input ends."""
    Member(system)
