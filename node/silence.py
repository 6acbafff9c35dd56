"""Why an ask of a singleton or an entity has no answer: the words of its `AskTimeoutError`.

Decides what people are told: who was asked, and whether the message was held here and for want of
what, or was sent to which node. Decides nothing else, and is asked only once an ask has expired.
Made by `node.system`; called by `node.ask` through the runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from node.core import COORDINATOR_PREFIX, NodeCore
from node.proxy import PREFIX as SINGLETONS
from node.regions import PREFIX as ENTITIES
from node.regions import unescaped
from singleton.machine import State

if TYPE_CHECKING:
    from node.ask import LocalAsk
    from node.cluster import Cluster
    from node.proxy import SingletonProxies, SingletonProxy
    from node.regions import Region, Regions
    from node.runtime import Runtime


class Silence:
    """Called with an ask that expired and the path that it went to: who did not answer, and why;
    None for what is neither a singleton nor an entity, which an address says all of."""

    def __init__(
        self,
        runtime: Runtime,
        core: NodeCore,
        cluster: Cluster,
        proxies: SingletonProxies,
        regions: Regions,
        clock: Callable[[], float],
    ) -> None:
        self._runtime = runtime
        self._core = core
        self._cluster = cluster
        self._proxies = proxies
        self._regions = regions
        self._clock = clock

    def __call__(self, ask: LocalAsk, path: str) -> tuple[str, str] | None:
        """See the class."""
        if path.startswith(SINGLETONS):
            proxy = self._proxies.find(path.removeprefix(SINGLETONS))
            if proxy is not None:
                return f"singleton {proxy.type_name}", _sent(ask) or self._of_singleton(proxy)
        elif path.startswith(ENTITIES):
            type_name, _, part = path.removeprefix(ENTITIES).partition("/")
            region = self._regions.by_type.get(type_name)
            if region is not None and part and "/" not in part:
                whom = f"entity {type_name}/{part}"
                return whom, _sent(ask) or self._of_entity(region, unescaped(part))
        return None

    def _of_singleton(self, proxy: SingletonProxy) -> str:
        why = proxy.why_held
        if why:
            return f"held here, {why}"
        state, words = self._cluster.explain_singleton(proxy.type_name)
        cell = self._runtime.cell_at(SINGLETONS + proxy.type_name, 0)
        if cell is None or state != State.RUNNING.value:
            return f"held here, {words}"
        return cell.silence

    def _of_entity(self, region: Region, entity_id: str) -> str:
        if region.here[region.shard_of(entity_id)] is not None:
            suspended = self._cluster.why_not_acting
            if suspended:
                return f"held here, and nothing acts here: {suspended}"
        return region.why_held(entity_id) or f"held here, {self._of_region(region.type_name)}"

    def _of_region(self, type_name: str) -> str:
        """Why a shard has no home that is known here."""
        machine = self._core.regions.get(type_name)
        if machine is None:
            return "the type was started here a moment ago"
        words = [machine.explain(), *self._regions.by_type[type_name].troubles()]
        coordinator = self._core.coordinators.get(type_name)
        if machine.coordinator is None:
            words.append(self._cluster.explain_singleton(COORDINATOR_PREFIX + type_name)[1])
        elif machine.coordinator == self._runtime.here and coordinator is not None:
            words.append(f"coordinator: {coordinator.explain(self._clock())}")
        return ": ".join(words)


def _sent(ask: LocalAsk) -> str:
    """Where it went, if it left this process and did not come back."""
    if not ask.corr or ask.node is None:
        return ""
    return f"sent to {ask.node.address}, from where no answer came"
