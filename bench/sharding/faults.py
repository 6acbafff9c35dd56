"""What befalls entities when nodes leave one after the other, die, or their coordinator loses its
lease.

Decides what is done, and what is read off the files that the entities wrote
(`bench.sharding.histories`). Nodes are at level downing, so that a step is begun under contact
alone; the customer hosts nothing and never ends. Called by `bench.sharding.command`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from typing import Any

from bench.failover.stores import SqliteFile
from bench.messaging.child import NotMeasuredError
from bench.sharding.fleet import SHARDS, Fleet, Process
from bench.sharding.histories import (
    first_step_s,
    handled,
    lives_of,
    longest_stillness_s,
    node_at,
    overlaps,
    proves_itself,
)
from bench.sharding.results import Results
from node.history import boottime_s
from sharding.settings import shard_of

DOWNING = ("--protection", "downing")
WARM_S = 2.0
REST_S = 1.0
WATCHED_S = 2.0
ANSWERS_S = 120.0
HOSTS_ASK = 0.1
NUMBERS_EACH = 10_000_000
"""Every asker has numbers of its own, so many."""


def _fleet(directory: Path, hosts: int, flags: tuple[str, ...] = DOWNING) -> Fleet:
    fleet = Fleet(directory, "walker", flags=flags)
    try:
        for _ in range(hosts):
            fleet.start_host()
        fleet.all_up()
    except BaseException:
        fleet.close()
        raise
    return fleet


def _shards(ids: int) -> set[int]:
    return {shard_of(f"w{number}", SHARDS) for number in range(ids)}


def _check(results: Results, fleet: Fleet, metric: str) -> None:
    """That no entity was in two places, by a checker that has just seen a planted one."""
    lines = fleet.lines()
    found = overlaps(lives_of(lines), fleet.killed)
    results.add(metric, len(found))
    for one in found[:3]:
        results.note(metric, f"{one.entity}: {one.older} and {one.younger} for {one.for_s:.3g} s")
    if not proves_itself(lines, fleet.killed):
        results.fail("the checker did not see a planted overlap", metric)


def rolling(
    directory: Path,
    *,
    hosts: int,
    ids: int,
    per_s: float,
    restarts: int,
    share: float,
    results: Results,
    one_more: Callable[[], None],
) -> None:
    """Each host in turn is replaced, under asks all the time: another one is started, and when
    everybody sees that up the old one leaves in order, so that there are never fewer. The next one
    leaves when the new one has so much of its even share.

    The customer asks at the rate that is wanted; the hosts themselves ask too, a tenth of it all
    together, each until it is told to leave.
    """
    with _fleet(directory, hosts) as fleet:
        answers = list[dict[str, Any]]()
        own_per_s = per_s * HOSTS_ASK / hosts
        fleet.first.ask("load", ids=ids, per_s=per_s)
        for number, host in enumerate(fleet.hosts, 1):
            host.ask("load", ids=ids, per_s=own_per_s, first=number * NUMBERS_EACH)
        time.sleep(WARM_S)
        fleet.settle(shards=len(_shards(ids)))
        enough = max(1, int(share * len(_shards(ids)) / hosts))
        begun_s = boottime_s()
        for number, old in enumerate(fleet.hosts[:restarts], hosts + 1):
            new = fleet.start_host()
            new.ask("load", ids=ids, per_s=own_per_s, first=number * NUMBERS_EACH)
            fleet.all_up()
            answers.append(old.ask("end_load"))
            fleet.leave(old)
            _wait_for_share(fleet, new, enough)
            one_more()
        time.sleep(REST_S)
        until_s = boottime_s()
        answers += [host.ask("end_load") for host in (fleet.first, *fleet.hosts)]
        _judge_rolling(results, fleet, answers, (begun_s, until_s))
        customer = answers[restarts]
        asked = sum(one["asked"] for one in answers)
        results.note(
            "rolling_restart_lost",
            f"{hosts} nodes, {restarts} restarts, {ids} ids; {asked} asks, of which the nodes "
            f"themselves {asked - customer['asked']}",
        )
        results.add("rolling_restart_hosts", customer["fewest_hosts"])
        if customer["fewest_hosts"] < hosts:
            results.fail(f"there were not always {hosts} hosts", "rolling_restart_hosts")
        results.add("rolling_restart_asks_per_s", customer["per_s"])
        results.note(
            "rolling_restart_asks_per_s",
            f"{per_s:g} wanted; late by {customer['late_s']:.2g} s at most",
        )


def _wait_for_share(fleet: Fleet, new: Process, enough: int) -> None:
    fleet.wait(
        f"{new.name} has {enough} shards at least", lambda: len(new.shards("walker")) >= enough
    )
    time.sleep(REST_S)


def _judge_rolling(
    results: Results,
    fleet: Fleet,
    answers: list[dict[str, Any]],
    during: tuple[float, float],
) -> None:
    lives = fleet.lives()
    times = handled(lives)
    lost = sum(one["asked"] - one["answered"] for one in answers)
    results.add("rolling_restart_lost", lost)
    for one in answers:
        if one["unanswered"]:
            results.note("rolling_restart_lost", f"{one['unanswered']} {one['examples']}")
    unhandled = sum(
        number not in times
        for one in answers
        for number in range(one["first"], one["first"] + one["asked"])
    )
    if unhandled > lost:
        results.fail(f"{unhandled} asks were handled nowhere", "rolling_restart_lost")
    results.add("rolling_restart_handled_twice", sum(many > 1 for many in times.values()))
    still = {entity: longest_stillness_s(own, *during) for entity, own in lives.items()}
    results.add("rolling_restart_pause_s", max(still.values()))
    results.add("rolling_restart_slowest_ask_s", max(one["slowest_s"] or 0.0 for one in answers))
    moves = sum(len(own) - 1 for own in lives.values())
    results.note("rolling_restart_pause_s", f"{moves} moves of entities")
    _check(results, fleet, "rolling_restart_overlaps")


def kill9(
    directory: Path,
    *,
    hosts: int,
    ids: int,
    per_s: float,
    rounds: int,
    results: Results,
    one_more: Callable[[], None],
) -> None:
    """A host is killed, in every other round the coordinator's; then there is a new one."""
    with _fleet(directory, hosts) as fleet:
        fleet.first.ask("load", ids=ids, per_s=per_s)
        for number in range(rounds):
            time.sleep(WARM_S)
            fleet.settle(shards=len(_shards(ids)))
            coordinator = fleet.coordinator()
            victims = [host for host in fleet.hosts if (host.address == coordinator) != number % 2]
            quiet_s = boottime_s()
            time.sleep(WATCHED_S)
            at_s = fleet.kill(victims[0])
            time.sleep(WATCHED_S)
            _judge_kill(results, fleet, victims[0], (quiet_s, at_s))
            fleet.start_host()
            one_more()
        answer = fleet.first.ask("end_load")
        note = f"{ids} ids, each asked every {ids / per_s * 1000:.0f} ms"
        for metric in ("kill9_others_pause_s", "kill9_undisturbed_pause_s"):
            results.note(metric, f"{note}, which is in it")
        lost = answer["asked"] - answer["answered"]
        results.note("kill9_entity_gap_s", f"{note}; {lost} of {answer['asked']} asks failed")
        _check(results, fleet, "kill9_overlaps")


def _judge_kill(
    results: Results, fleet: Fleet, victim: Process, times: tuple[float, float]
) -> None:
    quiet_s, at_s = times
    lives = fleet.lives()
    its = {name for name, own in lives.items() if node_at(own, at_s) == victim.address}
    gaps = []
    for name in sorted(its):
        first_s = first_step_s(lives[name], victim.address, at_s)
        if first_s is None:
            results.fail(f"{name} did not come back in {WATCHED_S:g} s", "kill9_entity_gap_s")
        else:
            gaps.append(first_s - at_s)
    if not gaps:
        raise NotMeasuredError(f"failed: {victim.name} had no entity that came back")
    others = [own for name, own in lives.items() if name not in its]
    results.add("kill9_entity_gap_s", max(gaps))
    results.add(
        "kill9_others_pause_s",
        max(longest_stillness_s(own, at_s, at_s + WATCHED_S) for own in others),
    )
    results.add(
        "kill9_undisturbed_pause_s",
        max(longest_stillness_s(own, quiet_s, at_s) for own in lives.values()),
    )


def lease_loss(
    directory: Path,
    *,
    hosts: int,
    ids: int,
    per_s: float,
    new_ids: int,
    ttl_s: float,
    lost_s: float,
    results: Results,
) -> None:
    """The store of the coordinator's lease takes no write until it was lost for `lost_s`."""
    store = SqliteFile(directory / "leases.db")
    flags = ("--protection", "downing+lease", "--lease", store.url, "--lease-ttl-s", f"{ttl_s:g}")
    known = _shards(ids)
    new = islice((f"w{n}" for n in count(ids) if shard_of(f"w{n}", SHARDS) not in known), new_ids)
    with _fleet(directory, hosts, flags) as fleet:
        customer = fleet.first
        customer.ask("load", ids=ids, per_s=per_s)
        time.sleep(WARM_S)
        fleet.settle(shards=len(known))
        begun_s = boottime_s()
        with store.outage():
            time.sleep(ttl_s)
            time.sleep(REST_S)
            customer.ask("ask_each", ids=list(new), first=1_000_000_000)
            time.sleep(lost_s - REST_S)
            explained = [host.ask("state")["walker"]["explain"] for host in fleet.hosts]
            back_s = boottime_s()
        served = customer.ask("answers", ANSWERS_S)
        time.sleep(REST_S)
        until_s = boottime_s()
        answer = customer.ask("end_load")
        lives = {name: own for name, own in fleet.lives().items() if int(name[1:]) < ids}
    lost = answer["asked"] - answer["answered"]
    results.add("lease_loss_failed_asks", lost)
    results.note(
        "lease_loss_failed_asks",
        f"{answer['asked']} asks; ttl {ttl_s:g} s, lost for {lost_s:g} s of an outage of "
        f"{back_s - begun_s:.1f} s",
    )
    if lost:
        results.note("lease_loss_failed_asks", f"{answer['unanswered']} {answer['examples']}")
    still = max(longest_stillness_s(own, begun_s, until_s) for own in lives.values())
    results.add("lease_loss_pause_s", still)
    results.note("lease_loss_pause_s", f"each asked every {ids / per_s * 1000:.0f} ms")
    answered: list[float] = served["answered"]
    early = sum(at_s < back_s for at_s in answered)
    results.add("lease_loss_new_served_early", early)
    if early:
        results.note("lease_loss_new_served_early", " | ".join(explained))
    results.add("lease_loss_new_unserved", new_ids - len(answered))
    results.note("lease_loss_new_unserved", f"{new_ids} asks")
    if served["failures"]:
        results.note("lease_loss_new_unserved", "; ".join(served["failures"][:3]))
    if answered:
        results.add("lease_loss_new_after_s", max(answered) - back_s)
