"""`make demo-sharding`: carts by id on real processes, while one joins, one leaves, one is killed.

Decides the order of the acts and how they are shown. This process is a member too, one that hosts
nothing: it asks every cart again and again, so that what it says of pauses is what a customer saw.
Exits 0 when every ask of the graceful acts was answered and all carts answer in the end, 1 with the
members' logs when not, 130 on Ctrl-C; in every case none of its processes is left.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from bench.processes import Member, Members, NotSeenError
from examples.carts import SHARD_COUNT, AddItem
from node import ActorSystem, Entities, TenureError
from node.history import boottime_s

CARTS = 120
ROUND_S = 0.05  # each cart is asked so often
CALM_S = 1.5
POLL_S = 0.02
APP = "examples.carts:setup"
PROTECTION = ("--protection", "downing")
COLOURS = {"a": "cyan", "b": "magenta", "c": "yellow", "d": "green"}


@dataclass
class Act:
    """What the customer saw of one act."""

    asked: int = 0
    failed: int = 0
    longest_s: float = 0.0
    why: str = ""


@dataclass
class Customer:
    """Asks all carts in turn; `act` is what it writes its findings into."""

    carts: Entities[AddItem]
    act: Act = field(default_factory=Act)
    stopping: bool = False

    async def shop(self, number: int) -> None:
        """One cart, for ever: the next ask leaves when the last is answered."""
        cart_id = f"cart-{number}"
        while not self.stopping:
            act, began_s = self.act, boottime_s()
            act.asked += 1
            try:
                await self.carts.ask(AddItem(cart_id, "book"), timeout_s=5.0)
            except TenureError as error:
                act.failed += 1
                act.why = str(error)
            act.longest_s = max(act.longest_s, boottime_s() - began_s)
            await asyncio.sleep(ROUND_S)


class Stage:
    """Bars of shards per member, redrawn while something happens."""

    def __init__(self, members: Members, system: ActorSystem, console: Console, live: Live) -> None:
        self._members = members
        self._system = system
        self._console = console
        self._live = live
        self.shards_used = 0

    def say(self, text: str, style: str = "bold") -> None:
        """A line of the narrator."""
        self._console.print(Text(text, style))

    def show(self) -> None:
        """The bars as they are now, to stay."""
        self._console.print(self.bars())

    def counts(self) -> dict[str, int]:
        """Shards per member, by its name, as this process knows them."""
        (row,) = self._system.cluster.sharding.state()
        counts: dict[str, int] = row["counts"]
        names = {member.address: member.name for member in self._members.members}
        return {names.get(address, address): count for address, count in counts.items()}

    def bars(self) -> Text:
        """One bar per member: a block is a shard."""
        counts, text = self.counts(), Text()
        for member in self._members.members:
            count = counts.get(member.name, 0)
            colour = COLOURS[member.name]
            text.append(f"  {member.name} ", colour).append("█" * count, colour)
            text.append(f" {count}\n" if member.running else " gone\n", "dim")
        return text

    async def wait(self, what: str, fact: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Wait for a fact. Raises `NotSeenError`."""
        until = boottime_s() + timeout_s
        while not fact():
            if boottime_s() > until:
                raise NotSeenError(f"not seen: {what}\n{self._members.logs()}")
            self._live.update(self.bars())
            await asyncio.sleep(POLL_S)
        self._live.update(self.bars())

    async def calm(self) -> None:
        """Let the audience look."""
        until = boottime_s() + CALM_S
        await self.wait("time passes", lambda: boottime_s() > until)

    def is_even(self, names: str) -> bool:
        """All shards that have carts live at these members, spread evenly."""
        counts = self.counts()
        even = sum(counts.values()) == self.shards_used and sorted(counts) == sorted(names)
        return even and max(counts.values()) - min(counts.values()) <= 1


async def play(members: Members, console: Console, live: Live) -> bool:
    """The acts; True when everything was answered that had to be."""
    three = members.start_three(app=APP, arguments=PROTECTION)
    port, seed = members.free_ports(1)[0], three[0].address
    system = ActorSystem(port=port, seeds=[seed], protection="downing")
    async with system:
        carts = system.cluster.sharding.start_proxy(type_name="cart", shard_count=SHARD_COUNT)
        stage = Stage(members, system, console, live)
        stage.say(f"Three processes host carts: {SHARD_COUNT} shards, {CARTS} carts.")
        await system.cluster.up(4)
        customer = Customer(carts)
        stage.shards_used = len({carts[f"cart-{number}"].shard_id for number in range(CARTS)})
        shopping = [asyncio.create_task(customer.shop(number)) for number in range(CARTS)]
        await stage.wait("an even spread", lambda: stage.is_even("abc"))
        stage.show()
        calm = await joins(members, stage, customer, seed)
        calm &= await leaves(three[0], stage, customer)
        back = await killed(three[1], stage, customer)
        customer.stopping = True
        await asyncio.gather(*shopping)
    return calm and back


async def joins(members: Members, stage: Stage, customer: Customer, seed: str) -> bool:
    """A fourth process takes its part."""
    stage.say("A fourth process joins, and gets its part, a few shards at a time.")
    customer.act = act = Act()
    port = members.free_ports(1)[0]
    members.start("d", port=port, seeds=[seed], app=APP, arguments=PROTECTION)
    await stage.wait("the fourth has its part", lambda: stage.is_even("abcd"))
    await stage.calm()
    return told(stage, act)


async def leaves(member: Member, stage: Stage, customer: Customer) -> bool:
    """One is asked to leave: its shards go first."""
    stage.say(f"{member.name} is asked to leave (SIGTERM): its shards move, then it goes.")
    customer.act = act = Act()
    member.process.send_signal(signal.SIGTERM)
    await stage.wait(f"{member.name} ends", lambda: not member.running)
    await stage.wait("an even spread", lambda: stage.is_even("bcd"))
    await stage.calm()
    return told(stage, act) and member.process.returncode == 0


async def killed(member: Member, stage: Stage, customer: Customer) -> bool:
    """One is killed: what was on its way to it is lost, its carts are built elsewhere."""
    stage.say(f"kill -9 of {member.name}: its kernel proves the crash, its carts start elsewhere.")
    customer.act = act = Act()
    member.process.kill()
    await stage.wait("its shards live elsewhere", lambda: stage.is_even("cd"))
    await stage.calm()
    told(stage, act)
    customer.act = after = Act()
    await stage.calm()
    return after.asked > 0 and after.failed == 0


def told(stage: Stage, act: Act) -> bool:
    """Say what the customer saw; True when nothing failed."""
    lost = f"{act.failed} failed ({act.why})" if act.failed else "none failed"
    text = f"{act.asked} asks, {lost}; the longest took {act.longest_s * 1000:.0f} ms."
    stage.show()
    stage.say(text, "bold red" if act.failed else "bold green")
    return not act.failed


def main() -> int:
    """Run the demo; returns the exit code."""
    logging.getLogger().setLevel(logging.ERROR)
    console = Console()
    console = console if console.is_terminal else Console(width=120)
    with (
        tempfile.TemporaryDirectory(prefix="tenure-demo-") as directory,
        Members(Path(directory)) as members,
        Live(console=console, auto_refresh=console.is_terminal, transient=True) as live,
    ):
        try:
            is_well = asyncio.run(play(members, console, live))
        except NotSeenError as error:
            console.print(Text(str(error), "red"))
            return 1
        except KeyboardInterrupt:
            console.print("stopped; the members are ended")
            return 130
    return 0 if is_well else 1


if __name__ == "__main__":
    # An exception, unlike the default, runs what ends the members.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
