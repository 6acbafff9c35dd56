"""The node's numbers in Prometheus' text form.

Decides names: a counter `x` is `tenure_x_total`, what may fall is a gauge without that ending.
Does not count anything itself. Called by `node.management`, which nobody loads without `--http`:
prometheus_client is imported inside the functions.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client import Metric

    from node.system import ActorSystem

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(system: ActorSystem) -> bytes:
    """All counters and gauges of `system` at this instant, and those of the process.

    Uses a registry of its own: what the application registers globally stays its own business.
    """
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
    from prometheus_client.registry import Collector

    class Snapshot(Collector):
        def collect(self) -> Iterable[Metric]:
            yield from _counters(system.counters())
            yield from _gauges(system)

    registry = CollectorRegistry()
    registry.register(Snapshot())
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def metric_name(counter: str) -> str:
    """`dead_letters` → `tenure_dead_letters`; what Prometheus does not allow becomes `_`."""
    return "tenure_" + re.sub(r"\W+", "_", counter.strip(), flags=re.ASCII).lower()


def _counters(counters: Mapping[str, float]) -> Iterable[Metric]:
    from prometheus_client.core import CounterMetricFamily

    for name, value in sorted(counters.items()):
        text = f"{name.replace('_', ' ')}, since this process started"
        yield CounterMetricFamily(metric_name(name), text, value=value)


def _gauges(system: ActorSystem) -> Iterable[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    def gauge(name: str, text: str, value: float) -> Metric:
        return GaugeMetricFamily(f"tenure_{name}", text, value=value)

    state: dict[str, Any] = system.cluster.state()
    members = state["members"]
    by_status = GaugeMetricFamily("tenure_members", "members by status", labels=["status"])
    for status, count in sorted(Counter(member["status"] for member in members).items()):
        by_status.add_metric([status], count)
    yield by_status
    unreachable = sum(not member["reachable"] for member in members)
    suspects = sum(member["suspect"] for member in members)
    yield gauge("members_suspect", "members that this one suspects", suspects)
    silent = sum(member["unresponsive"] for member in members)
    yield gauge("members_unresponsive", "suspects whose process still greets", silent)
    yield gauge("local_health_score", "0: this member seems well to itself", state["local_health"])
    yield gauge("members_unreachable", "members somebody holds unreachable", unreachable)
    yield gauge(
        "converged", "1 when all members that count hold one view", bool(state["converged"])
    )
    links = sum(
        lane["lane"] == "control" and lane["state"] == "up" for lane in state.get("lanes", ())
    )
    yield gauge("control_links_open", "outgoing control links that are established", links)
    yield gauge("ready", "1 when /health/ready answers 200", system.ready()[0])
    downing = state["downing"]
    if downing is not None:
        yield gauge("downing_doomed", "members that will be down", len(downing["doomed"]))
        contact = downing["contact"]
        if contact is not None:
            yield gauge("contact_wanted", "1 while something unique runs here", contact["asked"])
            yield gauge("contact_held", "1 while what is unique here may act", contact["held"])
            for_s = math.inf if contact["for_s"] is None else contact["for_s"]
            yield gauge("contact_remaining_s", "for so long without new grants", for_s)
    running = GaugeMetricFamily(
        "tenure_singleton_running", "1 where the instance runs on this node", labels=["singleton"]
    )
    unproven = GaugeMetricFamily(
        "tenure_singleton_unproven",
        "members that may be running an instance beside the one of this node",
        labels=["singleton"],
    )
    for row in system.cluster.singletons_state():
        running.add_metric([row["name"]], row["instance_id"] is not None)
        unproven.add_metric([row["name"]], len(row["unproven"]))
    yield running
    yield unproven
    yield from _sharding(system)
    yield from _leases(system)


def _sharding(system: ActorSystem) -> Iterable[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    shards = GaugeMetricFamily("tenure_shards", "shards that live on this node", labels=["type"])
    entities = GaugeMetricFamily("tenure_entities", "entities on this node", labels=["type"])
    held = GaugeMetricFamily(
        "tenure_shard_messages_held", "messages that wait here for a home", labels=["type"]
    )
    for row in system.cluster.sharding.state():
        shards.add_metric([row["type"]], len(row["here"]))
        entities.add_metric([row["type"]], row["entities_here"])
        held.add_metric([row["type"]], row["held"])
    yield shards
    yield entities
    yield held


def _leases(system: ActorSystem) -> Iterable[Metric]:
    from prometheus_client.core import GaugeMetricFamily, SummaryMetricFamily

    held = GaugeMetricFamily("tenure_lease_held", "1 while it is held here", labels=["lease"])
    remaining = GaugeMetricFamily(
        "tenure_lease_remaining_s", "until its deadline, unless it is renewed", labels=["lease"]
    )
    took = SummaryMetricFamily(
        "tenure_lease_acquire_s", "from wanted to held, in seconds", labels=["lease"]
    )
    for name, leases in sorted(system.leases.by_name().items()):
        held.add_metric([name], any(lease.check_alive() for lease in leases))
        remaining.add_metric([name], max(lease.remaining_s() for lease in leases))
        grants = sum(lease.counts["grants"] for lease in leases)
        took.add_metric([name], grants, sum(lease.acquire_s_sum for lease in leases))
    yield held
    yield remaining
    yield took
