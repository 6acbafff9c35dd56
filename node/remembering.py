"""Remembered entities of one region: read when a shard opens, written when they come and go.

Decides when an entity's coming or going is in the store, and that a shard is not given up before
what was written for it is settled: a late word of its former home must not undo what the next one
wrote. Does not decide which entities there are (`node.regions`) nor how they are stored
(`node.remembered`). A store that is away, or raises whatever else, is asked again and again; what
waits for it is held by the region, within its buffer. One that has lost what it had is told again
who lives here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from node.errors import EntityStoreFullError, EntityStoreUnavailableError

if TYPE_CHECKING:
    from node.remembered import EntityStore
    from node.runtime import Runtime

T = TypeVar("T")

RETRY_S, RETRY_MAX_S = 0.25, 5.0
LOOK_S = 5.0
"""So often the store is asked whether it still has what it had."""


class _Writes:
    """What one shard has still to write: id → whether it is to be remembered."""

    __slots__ = ("lost", "settled", "task", "then", "wanted")

    def __init__(self) -> None:
        self.lost = False  # whoever lives there is to be written again
        self.wanted: dict[str, bool] = {}
        self.then: list[Callable[[], None]] = []
        self.settled: list[Callable[[], None]] = []
        self.task: asyncio.Task[None] | None = None


class Remembering:
    """The store of one type, as its region uses it; everything happens on the loop's thread."""

    def __init__(self, runtime: Runtime, store: EntityStore, type_name: str) -> None:
        self.store = store
        self._runtime = runtime
        self._type_name = type_name
        self._loads: dict[int, asyncio.Task[None]] = {}
        self._writes: dict[int, _Writes] = {}
        self._living: dict[int, set[str]] = {}  # of each shard here, as it is to be in the store
        self._losses: int | None = None  # of the store, that were made up for
        self._watcher: asyncio.Task[None] | None = None
        self._settling: set[asyncio.Task[None]] = set()
        self._refused: dict[int, dict[str, None]] = {}  # who lives in a shard and does not fit in
        self._troubles: dict[tuple[str, int], str] = {}  # the newest last

    @property
    def troubles(self) -> tuple[str, ...]:
        """Why what is under way takes so long, and who is not remembered; of each kind the newest,
        and the newest kind first."""
        by_kind: dict[str, str] = {}
        for (kind, _), words in reversed(self._troubles.items()):
            by_kind.setdefault(kind, words)
        return tuple(dict.fromkeys(by_kind.values()))

    def load(self, shard: int, then: Callable[[frozenset[str]], None]) -> None:
        """Call `then` with the ids of the shard once they are known; `forget` ends it."""
        self._loads[shard] = self._runtime.loop.create_task(self._load(shard, then))
        if self._watcher is None:
            self._watcher = self._runtime.loop.create_task(self._watch())

    def forget(self, shard: int) -> bool:
        """Load it no longer. True when it was not loaded yet."""
        task = self._loads.pop(shard, None)
        if task is None:
            return False
        task.cancel()
        return True

    def write(self, shard: int, entity_id: str, *, lives: bool, then: Callable[[], None]) -> None:
        """Remember an entity, or do so no longer; `then` is called once that is in the store. Of
        two about one id the later counts."""
        living = self._living.setdefault(shard, set())
        (living.add if lives else living.discard)(entity_id)
        writes = self._writes_of(shard)
        writes.wanted.pop(entity_id, None)
        writes.wanted[entity_id] = lives
        writes.then.append(then)

    def settled(self, shard: int, then: Callable[[], None]) -> None:
        """Call `then` once all that was written for the shard is in the store, which is looked at
        for that. Nothing is written for it until it is loaded again."""
        task = self._runtime.loop.create_task(self._settle(shard, then))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    def close(self) -> None:
        """Ask and write nothing any more."""
        writers = (writes.task for writes in self._writes.values())
        for task in (*self._loads.values(), *writers, *self._settling, self._watcher):
            if task is not None:
                task.cancel()
        self._loads.clear()
        self._writes.clear()

    async def _load(self, shard: int, then: Callable[[frozenset[str]], None]) -> None:
        async def request() -> frozenset[str]:
            if self._losses is None:
                self._losses = await self.store.losses()
            return frozenset(await self.store.load(self._type_name, shard))

        ids = await self._answered("read", shard, request)
        self._loads.pop(shard, None)
        self._living[shard] = set(ids)
        self._runtime.isolate(then, ids)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._look()

    async def _look(self) -> None:
        """Write all again that lives here, if the store has lost it."""
        try:
            losses = await self.store.losses()
        except EntityStoreUnavailableError:
            return  # what is written tells, and the next look
        except Exception as error:  # noqa: BLE001 - anybody's store
            path = f"/sharding/{self._type_name}"
            self._runtime.log("the store of entities cannot be looked at", path, exc_info=error)
            return
        before, self._losses = self._losses, losses
        if before is not None and before != losses:
            self._write_again()

    def _write_again(self) -> None:
        self._runtime.count("sharding: entity store losses")
        words = "the store of entities has lost what it had, and what lives here is written again"
        path, store = f"/sharding/{self._type_name}", self.store.identity
        self._runtime.log(words, path, level=logging.ERROR, store=store)
        for shard in [shard for shard, living in self._living.items() if living]:
            self._writes_of(shard).lost = True
            self._troubles["lost", shard] = f"{words}: {store}"

    def _writes_of(self, shard: int) -> _Writes:
        """What is to be written for it; from now on somebody does."""
        writes = self._writes.setdefault(shard, _Writes())
        if writes.task is None:
            writes.task = self._runtime.loop.create_task(self._write(shard, writes))
        return writes

    async def _settle(self, shard: int, then: Callable[[], None]) -> None:
        await self._look()
        writes = self._writes.get(shard)
        if writes is None:
            self._given_up(shard)
            self._runtime.isolate(then)
        else:
            writes.settled.append(then)

    async def _write(self, shard: int, writes: _Writes) -> None:
        while writes.wanted or writes.lost:
            wanted, writes.wanted = writes.wanted, {}
            then, writes.then = writes.then, []
            lost, writes.lost = writes.lost, False
            if lost:
                wanted = dict.fromkeys(sorted(self._living[shard]), True) | wanted
            await self._write_all(shard, wanted)
            if lost and not writes.lost:
                self._troubles.pop(("lost", shard), None)
            for callback in then:
                self._runtime.isolate(callback)
        del self._writes[shard]
        if writes.settled:
            self._given_up(shard)
        for callback in writes.settled:
            self._runtime.isolate(callback)

    def _given_up(self, shard: int) -> None:
        self._living.pop(shard, None)
        self._refused.pop(shard, None)
        self._troubles.pop(("full", shard), None)

    async def _write_all(self, shard: int, wanted: dict[str, bool]) -> None:
        remove = [entity_id for entity_id, lives in wanted.items() if not lives]
        refused = {each: None for each in self._refused.get(shard, ()) if each not in wanted}
        add = [entity_id for entity_id, lives in wanted.items() if lives]
        add += islice(refused, len(remove))  # whoever goes makes room for one
        for entity_id in add:
            refused.pop(entity_id, None)
        error = await self._update(shard, add, remove)
        if error is not None:
            if remove:
                await self._update(shard, (), remove)
            left = await self._add_what_fits(shard, add, len(add) if remove else len(add) // 2)
            refused |= dict.fromkeys(left)
            self._is_full(shard, error, len(left))
        self._refused[shard] = refused
        if not refused:
            self._troubles.pop(("full", shard), None)

    async def _add_what_fits(self, shard: int, ids: Sequence[str], part: int) -> Sequence[str]:
        """Those that do not fit. So many are tried at once, then ever fewer."""
        while part and ids:
            if await self._update(shard, ids[:part], ()) is None:
                ids = ids[part:]
            else:
                part //= 2
        return ids

    async def _update(
        self, shard: int, add: Sequence[str], remove: Sequence[str]
    ) -> EntityStoreFullError | None:
        """Why it does not fit; None when it did."""

        async def request() -> EntityStoreFullError | None:
            try:
                await self.store.update(self._type_name, shard, add=add, remove=remove)
            except EntityStoreFullError as error:
                return error
            return None

        return await self._answered("written", shard, request)

    async def _answered(self, what: str, shard: int, request: Callable[[], Awaitable[T]]) -> T:
        """What the store answers, however often it must be asked."""
        pause_s = RETRY_S
        try:
            while True:
                try:
                    return await request()
                except asyncio.CancelledError as error:
                    if _is_cancelled():
                        raise
                    self._failed(what, shard, error)  # something inside the store was
                except Exception as error:  # noqa: BLE001 - anybody's store: taken as unavailable
                    self._failed(what, shard, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
        finally:
            self._troubles.pop((what, shard), None)

    def _is_full(self, shard: int, error: EntityStoreFullError, count: int) -> None:
        """Who is refused lives all the same; only nobody starts it again elsewhere."""
        if not count:
            return
        self._runtime.count("sharding: entities not remembered", count)
        words = "the store of entities is full, and who came last is not started again elsewhere"
        self._troubles.pop(("full", shard), None)
        self._troubles["full", shard] = f"{words}: {error}"
        path = f"/sharding/{self._type_name}"
        self._runtime.log(words, path, shard=shard, count=count, why=str(error))

    def _failed(self, what: str, shard: int, error: BaseException) -> None:
        self._runtime.count("sharding: entity store failures")
        path = f"/sharding/{self._type_name}"
        is_known = isinstance(error, EntityStoreUnavailableError)
        why = str(error) if is_known else f"{type(error).__name__}: {error}"
        words = f"the store of entities does not answer: {why}"
        if self._troubles.pop((what, shard), None) != words and not is_known:
            text = "the store of entities raised what is no error of a store; it is asked again"
            self._runtime.log(text, path, shard=shard, exc_info=error)
        self._troubles[what, shard] = words
        self._runtime.log(f"the store of entities cannot be {what} now", path, shard=shard, why=why)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
