"""`python -m bench lease`: what a lease costs, and what becomes of it when things fail.

Decides what is measured and how; the store is whatever `--store` names, and it has to run already.
Holder and successor are processes of their own (`bench.lease.contender`), stopped and killed by
real signals; what was handled, and when, is what the holder itself wrote.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import queue
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import pages, report
from bench.lease.outages import NotPossibleError, Outage, outage_of
from bench.report import Row
from lease import Lease, LeaseRecord, LeaseSettings, LeaseStore, from_url
from lease.host_clock import boot_time_s

PAGE = "lease.md"
INTRODUCTION = """\
# Leases, measured

Real processes and real stores on one machine. What was handled, and when, is what the holder itself
wrote. A section is replaced when its store is measured again; this is its command.
"""
PATIENCE_S = 60.0
HELD_TTLS = 4
AWAKE_S = 0.5
"""Seconds after SIGCONT in which a message that is handled would be seen."""
PAUSE_TTLS = 3
"""A pause lasts until another one has it, at most so long."""
QUICK_ROUNDS = 2

ACQUIRE_MS = {"sqlite": 2.0, "etcd": 5.0, "kubernetes": 12.0}
AFTER_EXPIRY_S = {"sqlite": 0.3, "etcd": 0.7, "kubernetes": 0.3}
AFTER_RELEASE_MS = {"sqlite": 50.0, "etcd": 50.0}
REQUESTS_PER_TTL = 4.0


class NotSeenError(AssertionError):
    """A process did not say in time what it was expected to say."""


@dataclass
class Samples:
    """What was measured, by metric."""

    asked: dict[str, int] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)
    stopped_in_commit: int = 0

    def ask(self, metric: str, count: int) -> None:
        self.asked[metric] = count

    def add(self, metric: str, value: float) -> None:
        self.values.setdefault(metric, []).append(value)

    def fail(self, metric: str, why: str) -> None:
        self.failures.setdefault(metric, []).append(why)


class Counting(LeaseStore):
    """Counts requests to the store behind, at the server where the store tells of them."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self._calls = 0

    @property
    def requests(self) -> int:
        own = getattr(self._store, "requests", None)
        return self._calls if own is None else int(own)

    async def read(self, name: str) -> LeaseRecord | None:
        self._calls += 1
        return await self._store.read(name)

    async def write(self, record: LeaseRecord, *, if_version: str | None) -> LeaseRecord:
        self._calls += 1
        return await self._store.write(record, if_version=if_version)

    def remaining_s(self, record: LeaseRecord) -> float | None:
        return self._store.remaining_s(record)


class Contender:
    """A process that contends; its facts, and what it handled."""

    def __init__(self, url: str, name: str, owner: str, ttl_s: float, folder: Path) -> None:
        self.file = folder / f"{owner}-{secrets.token_hex(4)}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.lease.contender", url, name, owner, str(ttl_s),
             str(self.file)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.valid_until = 0.0
        self._facts: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._follow, daemon=True).start()
        self.expect("ready")

    def _follow(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._facts.put(json.loads(line))
        self._facts.put(None)

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def expect(self, *events: str, within_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next of these facts; those before it are followed."""
        give_up_at = time.monotonic() + within_s
        while True:
            try:
                fact = self._facts.get(timeout=max(0.0, give_up_at - time.monotonic()))
            except queue.Empty:
                words = " or ".join(events)
                raise NotSeenError(f"{words} was not seen within {within_s:g} s") from None
            if fact is None:
                raise NotSeenError(f"the process ended, and {' or '.join(events)} was not seen")
            self.valid_until = fact.get("valid_until", self.valid_until)
            if fact["event"] in events:
                return fact

    def follow_to_the_end(self) -> None:
        """Take in what it said before it was killed, to the last line."""
        self.process.wait()
        while (fact := self._facts.get(timeout=PATIENCE_S)) is not None:
            self.valid_until = fact.get("valid_until", self.valid_until)

    def handled(self, since_s: float, until_s: float) -> int:
        """Messages that it wrote of in this time."""
        times = [float(line) for line in self.file.read_text().split()]
        return sum(since_s <= at < until_s for at in times)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this bench."""
    parser.add_argument(
        "--store", required=True, metavar="URL",
        help="for example sqlite:///tmp/l.db, etcd://127.0.0.1:2379, kubernetes://namespace?…",
    )  # fmt: skip
    parser.add_argument("--ttl-s", type=float, default=3.0, metavar="S", help="of the lease (3)")
    parser.add_argument("--rounds", type=int, default=50, metavar="N", help="of each fault (50)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help=f"and as a section of {PAGE} there"
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run, not to be quoted")


def run(arguments: argparse.Namespace) -> int:
    """Measure all; the exit code is 1 when counts do not add up."""
    try:
        from_url(arguments.store)
        LeaseSettings(name="bench", owner="bench", ttl_s=arguments.ttl_s)
    except ValueError as error:
        print(f"bench lease: {error}", file=sys.stderr)
        return 2
    rounds = QUICK_ROUNDS if arguments.quick else arguments.rounds
    samples = Samples()
    name = f"bench-{secrets.token_hex(4)}"
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as directory:
        folder = Path(directory)
        asyncio.run(_cost(arguments.store, name, arguments.ttl_s, rounds, samples))
        _rounds(_release, "takeover_after_release_ms", arguments, name, rounds, samples, folder)
        _rounds(_crash, "takeover_after_expiry_s", arguments, name, rounds, samples, folder)
        _rounds(_pause, "handled_after_pause", arguments, name, rounds, samples, folder)
        if samples.stopped_in_commit:
            notes.append(
                f"{samples.stopped_in_commit} x stopped within a commit of SQLite's: the file "
                "stayed locked until it went on, and nobody had the lease."
            )
        try:
            outage = outage_of(arguments.store)
        except NotPossibleError as error:
            notes.append(f"No outages: {error}.")
        else:
            notes.append(_outages(outage, arguments, name, min(rounds, 50), samples, folder))
    rows = _rows(samples, arguments.store, arguments.ttl_s)
    kind = arguments.store.partition(":")[0]
    report.draw(f"bench lease, {kind}, ttl {arguments.ttl_s:g} s", rows)
    print("\n".join(notes))
    settings = {"store": kind, "ttl_s": arguments.ttl_s, "rounds": rounds}
    if arguments.json is not None:
        report.write(arguments.json, report.report("lease", settings, rows))
        print(f"written to {arguments.json}")
    if arguments.results is not None:
        quick = " --quick" if arguments.quick else ""
        command = (
            f"python -m bench lease --store {kind}:… --ttl-s {arguments.ttl_s:g} --rounds "
            f"{rounds}{quick}"
        )
        cell = f"{kind}, ttl {arguments.ttl_s:g} s"
        page = pages.write_section(
            arguments.results / PAGE, INTRODUCTION, cell, command, rows, notes
        )
        print(f"written to {page}")
    return 1 if any(row.error for row in rows) else 0


async def _cost(url: str, name: str, ttl_s: float, rounds: int, samples: Samples) -> None:
    for metric in ("acquire_ms", "renew_ms"):
        samples.ask(metric, rounds)
    samples.ask("requests_per_ttl", 1)
    store = from_url(url)
    counting = Counting(store)
    lease = Lease(counting, LeaseSettings(name=name, owner="cost", ttl_s=ttl_s))
    try:
        for _ in range(rounds):
            begun_s = time.perf_counter()
            assert await lease.acquire()
            won_s = time.perf_counter()
            assert await lease.acquire()
            proven_s = time.perf_counter()
            samples.add("acquire_ms", (won_s - begun_s) * 1e3)
            samples.add("renew_ms", (proven_s - won_s) * 1e3)
            await lease.release()
        assert await lease.acquire()
        before = counting.requests
        await asyncio.sleep(HELD_TTLS * ttl_s)
        assert lease.check_alive()
        samples.add("requests_per_ttl", (counting.requests - before) / HELD_TTLS)
        await lease.release()
    except Exception as error:  # noqa: BLE001 - whatever it is, the rows say so
        for metric in ("acquire_ms", "renew_ms", "requests_per_ttl"):
            samples.fail(metric, f"{type(error).__name__}: {error}")
    finally:
        await lease.close()
        await store.close()


Round = Callable[["Pair", random.Random, Samples, float], None]


class Pair:
    """A holder, and a successor that watched from the start and wants it too."""

    def __init__(self, url: str, name: str, ttl_s: float, folder: Path) -> None:
        self._made = (url, name, ttl_s, folder)
        self.holder = Contender(url, name, "holder", ttl_s, folder)
        self.successor = Contender(url, name, "successor", ttl_s, folder)

    def replace_holder(self) -> None:
        """After its end."""
        url, name, ttl_s, folder = self._made
        self.holder.end()
        self.holder = Contender(url, name, "holder", ttl_s, folder)

    def settle(self) -> None:
        """The holder holds, the successor waits."""
        self.holder.tell("want")
        self.holder.expect("granted")
        self.successor.tell("want")

    def give_back(self) -> None:
        """The successor has it: it gives it back."""
        self.successor.tell("release")
        self.successor.expect("released")

    def end(self) -> None:
        self.holder.end()
        self.successor.end()


def _rounds(
    one: Round,
    metric: str,
    arguments: argparse.Namespace,
    name: str,
    rounds: int,
    samples: Samples,
    folder: Path,
) -> None:
    """So many rounds with one pair of processes; the phase of the renewals is another each time."""
    samples.ask(metric, rounds)
    dice = random.Random(f"{metric} of a lease")
    pair = Pair(arguments.store, name, arguments.ttl_s, folder)
    try:
        for _ in range(rounds):
            one(pair, dice, samples, arguments.ttl_s)
    except (NotSeenError, AssertionError, OSError) as error:
        samples.fail(metric, str(error).splitlines()[0])
    finally:
        pair.end()


def _release(pair: Pair, dice: random.Random, samples: Samples, ttl_s: float) -> None:
    pair.settle()
    time.sleep(0.2 + dice.uniform(0.0, ttl_s / 6))
    before_s = boot_time_s()
    pair.holder.tell("release")
    granted = pair.successor.expect("granted")
    pair.holder.expect("released")
    samples.add("takeover_after_release_ms", (granted["at_s"] - before_s) * 1e3)
    pair.give_back()


def _crash(pair: Pair, dice: random.Random, samples: Samples, ttl_s: float) -> None:
    pair.settle()
    time.sleep(dice.uniform(0.1, ttl_s * 0.8))
    pair.holder.signal(signal.SIGKILL)
    granted = pair.successor.expect("granted")
    pair.holder.follow_to_the_end()
    settings = LeaseSettings(name="x", owner="x", ttl_s=ttl_s)
    expires_at_s = pair.holder.valid_until + settings.margin_s
    samples.add("takeover_after_expiry_s", granted["at_s"] - expires_at_s)
    pair.give_back()
    pair.replace_holder()


def _pause(pair: Pair, dice: random.Random, samples: Samples, ttl_s: float) -> None:
    pair.settle()
    time.sleep(dice.uniform(0.1, ttl_s / 2))
    pair.holder.signal(signal.SIGSTOP)
    taken = True
    try:
        pair.successor.expect("granted", within_s=PAUSE_TTLS * ttl_s)
    except NotSeenError:
        # It was stopped within a commit, and keeps the file locked: nobody has the lease.
        taken = False
        samples.stopped_in_commit += 1
    time.sleep(dice.uniform(0.0, 0.2))
    awake_s = boot_time_s()
    pair.holder.signal(signal.SIGCONT)
    pair.holder.expect("lost")
    time.sleep(AWAKE_S)
    samples.add("handled_after_pause", pair.holder.handled(awake_s, boot_time_s()))
    if not taken:
        pair.successor.expect("granted")
    pair.give_back()


def _outages(
    outage: Outage,
    arguments: argparse.Namespace,
    name: str,
    rounds: int,
    samples: Samples,
    folder: Path,
) -> str:
    """Outages as long as a holder should survive; each that it survived counts 1."""
    settings = LeaseSettings(name=name, owner="x", ttl_s=arguments.ttl_s)
    outage_s = settings.ttl_s - settings.margin_s - settings.renewal_s - 1.0
    metric = "outages_survived"
    if outage_s <= 0:
        outage.close()
        return f"No outages: with a ttl of {settings.ttl_s:g} s there is none to be survived."
    samples.ask(metric, rounds)
    dice = random.Random("outages of a lease")
    holder = Contender(outage.url, name, "holder", settings.ttl_s, folder)
    try:
        holder.tell("want")
        token = holder.expect("granted")["token"]
        for _ in range(rounds):
            time.sleep(dice.uniform(0.0, settings.renewal_s))
            outage.begin()
            time.sleep(outage_s)
            outage.end()
            back_s = boot_time_s()
            fact = holder.expect("renewed", "lost")
            while fact["event"] == "renewed" and fact["at_s"] < back_s:
                fact = holder.expect("renewed", "lost")
            survived = fact["event"] == "renewed" and fact["token"] == token
            samples.add(metric, 1.0 if survived else 0.0)
            if not survived:
                holder.tell("want")
                token = holder.expect("granted")["token"]
        holder.tell("release")
        holder.expect("released")
    except (NotSeenError, OSError) as error:
        samples.fail(metric, str(error).splitlines()[0])
    finally:
        holder.end()
        outage.close()
    return f"An outage lasts {outage_s:.2f} s: ttl − margin − one renewal − 1 s."


def _rows(samples: Samples, url: str, ttl_s: float) -> list[Row]:
    kind = url.partition(":")[0]
    about = {
        "acquire_ms": ("ms", ACQUIRE_MS.get(kind), "free → held"),
        "renew_ms": ("ms", None, "a proof by a round trip"),
        "requests_per_ttl": ("", REQUESTS_PER_TTL, "while held"),
        "takeover_after_release_ms": (
            "ms", AFTER_RELEASE_MS.get(kind), "told to release → held by who waited",
        ),
        "takeover_after_expiry_s": (
            "s", AFTER_EXPIRY_S.get(kind), "end of the ttl of a killed holder → held by who waited",
        ),
        "handled_after_pause": ("", 0.0, f"messages after SIGCONT; in {AWAKE_S:g} s"),
        "outages_survived": ("", 1.0, "1 for each"),
    }  # fmt: skip
    rows = []
    for metric, expected in samples.asked.items():
        unit, target, note = about[metric]
        one = report.row(
            metric,
            unit,
            samples.values.get(metric, []),
            expected=expected,
            target=target,
            at_least=metric == "outages_survived",
            note=f"{note}; {kind}, ttl {ttl_s:g} s",
            failures=samples.failures.get(metric, ()),
        )
        rows.append(_judged_by_all(one))
    return rows


def _judged_by_all(one: Row) -> Row:
    """One message handled after a pause is one too many, and one outage not survived as well."""
    values = {name: getattr(one, name) for name in one.__slots__}
    if one.metric == "handled_after_pause" and one.max is not None:
        values["met"] = one.max <= 0
    if one.metric == "outages_survived" and one.min is not None:
        values["met"] = one.min >= 1
    return Row(**values)
