"""The safety property of downing: whoever is marked down has had no contact since, by true time.

Several resolvers on a small network (`tests.downing.net`), their clocks within 1 %, with cuts,
pauses, crashes, leaves, orders, and with records of reachability that may say anything.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from downing.contact import Contact
from downing.machine import DowningMachine
from downing.messages import ContactAck
from gossip.membership import NodeId
from node.testkit.sabotage import sabotage
from tests.conftest import HowMany
from tests.downing.net import Breach, Net

KINDS = (
    "split", "split", "split", "mute", "heal", "pause", "nap", "order", "leave", "leader cut",
    "crash", "lie", "truth",
)  # fmt: skip
Step = tuple[float, str, str, str]


class Schedule:
    """What happens to one small cluster, drawn from a seed; `str` says all that is needed to play
    it again."""

    def __init__(self, seed: int) -> None:
        dice = self.dice = random.Random(f"schedule {seed}")
        self.seed = seed
        self.names = "abcde"[: dice.choice([3, 3, 4, 5])]
        self.strategy = dice.choice([
            *["keep-majority"] * 3,
            f"static-quorum:quorum_size={len(self.names) // 2 + 1}",
            "keep-oldest",
            "keep-oldest:down_if_alone=false",
            f"keep-referee:referee={self.names[0]}:25520",
        ])  # fmt: skip
        self.rates = [dice.choice([0.99, 1.0, 1.01]) for _ in self.names]
        self.delay_s = dice.choice([(0.001, 0.02), (0.04, 0.12)])
        self.steps: list[Step] = []
        at_s = 0.3 + 2.0 * dice.random()
        for _ in range(dice.randint(1, 4)):
            getattr(self, "_" + dice.choice(KINDS).replace(" ", "_"))(at_s)
            at_s += dice.choice([0.02, 0.2, 1.0, 1.4, 2.0])
        self.until_s = at_s + 3.5

    def play(self) -> tuple[Breach | None, Net]:
        """Run it; returns the first breach, if any."""
        net = Net(
            self.names,
            self.steps,
            seed=self.seed,
            strategy=self.strategy,
            rates=self.rates,
            delay_s=self.delay_s,
        )
        return net.run(self.until_s), net

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.names} {self.strategy} {self.rates} {self.steps}"

    def _sides(self) -> tuple[str, str]:
        side = self.dice.sample(self.names, self.dice.randint(1, len(self.names) - 1))
        return "".join(sorted(side)), "".join(n for n in self.names if n not in side)

    def _lost(self, at_s: float, observers: str, subjects: str, within_s: float) -> None:
        for one in observers:
            for other in subjects:
                self.steps.append((at_s + self.dice.uniform(0.05, within_s), "lose", one, other))

    def _cut(self, at_s: float, side: str, rest: str, within_s: float) -> None:
        self.steps.append((at_s, "cut", side, rest))
        self._lost(at_s, side, rest, within_s)
        self._lost(at_s, rest, side, within_s)

    def _split(self, at_s: float) -> None:
        self._cut(at_s, *self._sides(), self.dice.choice([0.1, 0.5, 2.0]))

    def _mute(self, at_s: float) -> None:
        side, rest = self._sides()
        self.steps.append((at_s, "mute", side, rest))
        self._lost(at_s, rest, side, self.dice.choice([0.1, 0.5, 2.0]))

    def _heal(self, at_s: float) -> None:
        self.steps.append((at_s, "heal", "", ""))
        for name in self.names:
            self.steps.append((at_s + 0.3 * self.dice.random(), "find", name, self.names))

    def _pause(self, at_s: float) -> None:
        who = self._sides()[0] if self.dice.random() < 0.3 else self.dice.choice(self.names)
        self.steps.append((at_s, "pause", who, str(self.dice.choice([2, 6, 15, 30]))))

    def _nap(self, at_s: float) -> None:
        """One is ordered down that falls asleep with answers on their way to it."""
        name = self.dice.choice(self.names)
        by = self.dice.choice([other for other in self.names if other != name])
        self.steps.append((at_s, "pause", name, "9"))
        self.steps.append((at_s + 0.1 * self.dice.random(), "down", by, name))

    def _order(self, at_s: float) -> None:
        name, by = self.dice.sample(self.names, 2)
        self.steps.append((at_s, "down", by, name))

    def _leave(self, at_s: float) -> None:
        self.steps.append((at_s, "leave", self.dice.choice(self.names), ""))

    def _leader_cut(self, at_s: float) -> None:
        """A cut falls on an action of the leader (D7)."""
        self.steps.append((at_s, "leave", self.dice.choice(self.names[1:]), ""))
        cut_at_s = at_s + self.dice.uniform(0.1, 0.4)
        self._cut(cut_at_s, self.names[0], self.names[1:], 0.5)

    def _crash(self, at_s: float) -> None:
        self.steps.append((at_s, "crash", self.dice.choice(self.names), ""))

    def _lie(self, at_s: float) -> None:
        self.steps.append((at_s, "lose", *self._sides()))

    def _truth(self, at_s: float) -> None:
        self.steps.append((at_s, "find", self.names, self.names))


def first_breach(seeds: range) -> str:
    """The schedule of the first one that breaks the rule, and how; empty when none does."""
    for seed in seeds:
        schedule = Schedule(seed)
        breach, _ = schedule.play()
        if breach is not None:
            return f"{breach}; {schedule}"
    return ""


def test_nobody_is_marked_down_who_may_still_act(how_many: HowMany) -> None:
    """I-88, I-89, review F1: by true time, at any clock rate within 1 %, whatever the detector
    says; and it is no empty word: in a good part of the runs somebody is marked down."""
    count = how_many(short=200, long=10_000)
    marked = 0
    for seed in range(count):
        schedule = Schedule(seed)
        breach, net = schedule.play()
        assert breach is None, f"{breach}; {schedule}"
        marked += bool(net.marks)
    assert marked > count / 4


@contextlib.contextmanager
def patched(owner: type, name: str, make: Callable[..., object]) -> Iterator[None]:
    """With one method made out of the present one."""
    before = vars(owner)[name]
    setattr(owner, name, make(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


def from_the_ack() -> AbstractContextManager[None]:
    """A grant is counted from the instant its answer came."""

    def make(answered: Callable[..., bool]) -> Callable[..., bool]:
        def late(self: Contact, sender: NodeId, ack: ContactAck, now: float) -> bool:
            if ack.seq in self._sent_at:
                self._sent_at[ack.seq] = now
            return answered(self, sender, ack, now)

        return late

    return patched(Contact, "answered", make)


def grants_after_a_promise() -> AbstractContextManager[None]:
    """Who has promised grants on."""

    def make(on_ping: Callable[..., None]) -> Callable[..., None]:
        def forgetful(self: DowningMachine, *args: object) -> None:
            made, self._promises.made = self._promises.made, {}
            on_ping(self, *args)
            self._promises.made = made

        return forgetful

    return patched(DowningMachine, "_on_ping", make)


FAULTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "no contact": lambda: sabotage("no-contact"),
    "no quiet": lambda: sabotage("no-quiet"),
    "no joint": lambda: sabotage("no-joint"),
    "from the ack": from_the_ack,
    "grants after a promise": grants_after_a_promise,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    """What would not be found without one of the rules does not guard it."""
    with FAULTS[fault]():
        assert first_breach(range(1000))
