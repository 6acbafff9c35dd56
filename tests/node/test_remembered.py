"""What every store of remembered entities promises, asked of all three; then each where it differs.

The store in etcd is asked with `--etcd` only; what it does where nobody answers, always.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio

from bench.etcd import EtcdCluster
from bench.ports import free_ports
from lease import sqlite_file
from node import remembered, remembered_etcd, remembered_sqlite
from node.errors import (
    EntityStoreFullError,
    EntityStoreUnavailableError,
    SettingsError,
    TenureError,
)
from node.remembered import EntityStore, MemoryEntityStore, entity_store_of
from node.remembered_etcd import EtcdEntityStore
from node.remembered_sqlite import SqliteEntityStore
from node.settings import Settings
from tests.conftest import HowMany

ROOT = Path(__file__).resolve().parent.parent.parent
KIND, SHARD = "shop.carts:Cart", 7

ODD_IDS = [
    *("a", "A", " ", "a ", "\n", "/", "//", "a/b", "../a", "%", "%2F", "%00", "*", "'; --", "\\"),
    *("\0", "\0\0", "a\0", "a\0b", "\x7f", "\u00e9", "e\u0301", "ÿ", "\uffff", "\U0010ffff"),
    *("😀", "👩‍👩‍👧", "שלום", "\ud800", "\udfff\ud800", "\ud83d\ude00", "\ufeff", "x" * 256),
    *("😀" * 256, "\ud800" * 256, "0", "7", "7/a", "null", '{"a": 1}'),
]
"""The grinning face stands there as one character, and as two that some would make one of."""

PLACES = [
    ("a", 1, "2/x"),
    ("a/1", 2, "x"),
    ("a", 12, "x"),
    ("1:a", 1, "x"),
    ("a/1/2", 1, "y"),
    ("A", 1, "x"),
    ("a\0", 1, "x"),
    ("\ud800" * 256, remembered.SHARD_MAX, "😀" * 256),
]


class EntityStoreContract:
    """`new_store` gives another client of the same store with each call."""

    module: ModuleType
    folder: Path

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def new_store(self) -> EntityStore:
        raise NotImplementedError

    @pytest_asyncio.fixture
    async def store(self) -> AsyncIterator[EntityStore]:
        made = self.new_store()
        yield made
        await made.close()

    @pytest_asyncio.fixture
    async def other(self) -> AsyncIterator[EntityStore]:
        made = self.new_store()
        yield made
        await made.close()

    async def test_of_an_unknown_shard_nothing_is_remembered(self, store: EntityStore) -> None:
        assert await store.load(KIND, SHARD) == frozenset()
        await store.update(KIND, SHARD, remove=["a"])
        await store.update(KIND, SHARD)
        assert await store.load(KIND, SHARD) == frozenset()
        assert await store.losses() == 0

    async def test_odd_ids_come_back_as_they_were(
        self, store: EntityStore, other: EntityStore
    ) -> None:
        assert len(set(ODD_IDS)) == len(ODD_IDS)
        await store.update(KIND, SHARD, add=ODD_IDS)
        assert await other.load(KIND, SHARD) == set(ODD_IDS)
        kept = set(ODD_IDS)
        for each in ODD_IDS[::2]:
            await other.update(KIND, SHARD, remove=[each])
            kept.remove(each)
        assert await store.load(KIND, SHARD) == kept

    async def test_shards_and_types_are_kept_apart(self, store: EntityStore) -> None:
        for kind, shard, entity_id in PLACES:
            await store.update(kind, shard, add=[entity_id])
        for kind, shard, entity_id in PLACES:
            assert await store.load(kind, shard) == {entity_id}
        kind, shard, entity_id = PLACES[0]
        await store.update(kind, shard, remove=[entity_id])
        for kind, shard, entity_id in PLACES[1:]:
            assert await store.load(kind, shard) == {entity_id}

    async def test_an_update_can_be_repeated(self, store: EntityStore) -> None:
        await store.update(KIND, SHARD, add=["a", "b"])
        for _ in range(3):
            await store.update(KIND, SHARD, add=["b", "c", "c"], remove=["a", "never there"])
        assert await store.load(KIND, SHARD) == {"b", "c"}

    async def test_two_write_at_once_and_lose_nothing(
        self, store: EntityStore, other: EntityStore
    ) -> None:
        """Neither overwrites what the other one has added meanwhile."""

        async def write(client: EntityStore, name: str) -> None:
            for number in range(40):
                gone = [f"{name}{number - 1}"] if number % 2 else []
                await client.update(KIND, SHARD, add=[f"{name}{number}"], remove=gone)

        await asyncio.gather(write(store, "a"), write(other, "b"), write(store, "c"))
        expected = {f"{name}{number}" for name in "abc" for number in range(1, 40, 2)}
        assert await store.load(KIND, SHARD) == expected == await other.load(KIND, SHARD)

    async def test_a_large_shard_comes_back_whole(
        self, store: EntityStore, other: EntityStore, how_many: HowMany
    ) -> None:
        ids = [f"customer/{number}" for number in range(how_many(short=10_000, long=100_000))]
        await store.update(KIND, SHARD, add=ids)
        await store.update(KIND, SHARD + 1, add=["next door"])
        assert await other.load(KIND, SHARD) == set(ids)
        await other.update(KIND, SHARD, remove=ids[:-3])
        assert await store.load(KIND, SHARD) == set(ids[-3:])
        assert await store.load(KIND, SHARD + 1) == {"next door"}

    async def test_a_full_shard_takes_no_more_and_goes_on(
        self, store: EntityStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(self.module, "IDS_MAX", 5)
        await store.update(KIND, SHARD, add=["abcd"])
        await store.update(KIND, SHARD, add=list("abc"), remove=["abcd"])
        with pytest.raises(EntityStoreFullError, match=r"shard 7 of 'shop\.carts:Cart' .*more sh"):
            await store.update(KIND, SHARD, add=list("def"), remove=["never there"])
        assert await store.load(KIND, SHARD) == set("abc")
        await store.update(KIND, SHARD, add=list("de"))
        await store.update(KIND, SHARD, add=list("abcde"))
        await store.update(KIND, SHARD, add=["f"], remove=["a"])
        assert await store.load(KIND, SHARD) == set("bcdef")
        await store.update(KIND, SHARD + 1, add=list("abcde"))

    @pytest.mark.parametrize(
        ("add", "remove", "says"),
        [
            (["x" * 257], [], "has 257 characters: give it 1 to 256"),
            ([], [""], "has 0 characters"),
            (["a", "b"], ["b"], "'b' is both added and removed"),
            ("abc", [], r"write add=\[entity_id\]"),
        ],
    )
    async def test_what_cannot_be_kept_is_refused(
        self, store: EntityStore, add: Collection[str], remove: list[str], says: str
    ) -> None:
        await store.update(KIND, SHARD, add=["there"])
        with pytest.raises(ValueError, match=says):
            await store.update(KIND, SHARD, add=add, remove=remove)
        assert await store.load(KIND, SHARD) == {"there"}
        for kind, shard in (("", 0), ("x" * 257, 0), (KIND, -1), (KIND, 2**31)):
            with pytest.raises(ValueError, match=r"shard -?\d+ must|characters: give it 1 to 256"):
                await store.load(kind, shard)

    async def test_what_was_confirmed_outlives_its_clients(self, store: EntityStore) -> None:
        await store.update(KIND, SHARD, add=ODD_IDS)
        await store.close()
        await store.close()
        later = self.new_store()
        assert later.identity == store.identity
        assert await later.load(KIND, SHARD) == set(ODD_IDS)
        await later.close()


class TestMemoryEntityStore(EntityStoreContract):
    module = remembered
    shared: MemoryEntityStore | None = None

    def new_store(self) -> EntityStore:
        self.shared = self.shared or MemoryEntityStore()
        return self.shared

    async def test_while_it_is_down_nothing_is_known_and_nothing_done(self) -> None:
        store = MemoryEntityStore()
        await store.update(KIND, SHARD, add=["a"])
        store.is_down = True
        with pytest.raises(EntityStoreUnavailableError, match="is down"):
            await store.update(KIND, SHARD, add=["b"])
        with pytest.raises(EntityStoreUnavailableError):
            await store.load(KIND, SHARD)
        store.is_down = False
        assert await store.load(KIND, SHARD) == {"a"}


class TestSqliteEntityStore(EntityStoreContract):
    module = remembered_sqlite

    def new_store(self) -> EntityStore:
        return SqliteEntityStore(self.folder / "entities.db")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.mark.etcd
class TestEtcdEntityStore(EntityStoreContract):
    module = remembered_etcd
    cluster: EtcdCluster

    @pytest.fixture(autouse=True)
    def _server(self, etcd: EtcdCluster) -> None:
        self.cluster = etcd

    def new_store(self) -> EtcdEntityStore:
        # Tests share the server: each has a prefix of its own.
        store = entity_store_of(f"{self.cluster.store_url}/{self.folder.name}")
        assert isinstance(store, EtcdEntityStore)
        return store

    async def test_closed_it_is_unavailable(self) -> None:
        store = self.new_store()
        await store.update(KIND, SHARD, add=["a"])
        await store.close()
        with pytest.raises(EntityStoreUnavailableError, match="was closed here"):
            await store.load(KIND, SHARD)

    async def test_it_survives_a_restart_of_the_server(self) -> None:
        store = self.new_store()
        await store.update(KIND, SHARD, add=ODD_IDS)
        await asyncio.get_running_loop().run_in_executor(None, self.cluster.restart)
        assert await store.load(KIND, SHARD) == set(ODD_IDS)
        await store.close()

    @pytest.mark.parametrize("how_often", [1, 3])
    async def test_a_compaction_between_two_pages_begins_the_read_anew(
        self, how_often: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is read was there at one instant, or it is not known."""
        monkeypatch.setattr(remembered_etcd, "PAGE_KEYS", 4)
        store, writer = self.new_store(), self.new_store()
        await store.update(KIND, SHARD, add=list("abcdefghi"))
        call, left = store._client.call, how_often

        async def compacted_after_a_page(
            path: str, body: Mapping[str, Any], *, refusals: Collection[int] = ()
        ) -> dict[str, Any]:
            nonlocal left
            answer = await call(path, body, refusals=refusals)
            if left and answer.get("more"):
                left -= 1
                await writer.update(KIND, SHARD, add=[f"z{left}"])
                revision = (await call("kv/range", {"key": "AA=="}))["header"]["revision"]
                await call("kv/compaction", {"revision": revision, "physical": True})
            return answer

        monkeypatch.setattr(store._client, "call", compacted_after_a_page)
        if how_often == 3:
            with pytest.raises(EntityStoreUnavailableError, match="compacted during each of 3"):
                await store.load(KIND, SHARD)
        else:
            assert await store.load(KIND, SHARD) == {*"abcdefghi", "z0"}
        await store.close()
        await writer.close()

    async def test_pages_are_of_one_instant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An entity that moves behind the reader's back is seen once: here, or there."""
        monkeypatch.setattr(remembered_etcd, "PAGE_KEYS", 2)
        store, writer = self.new_store(), self.new_store()
        await store.update(KIND, SHARD, add=list("bcdefg"))

        async def move() -> None:
            while True:
                await writer.update(KIND, SHARD, add=["a"], remove=["z"])
                await writer.update(KIND, SHARD, add=["z"], remove=["a"])

        await writer.update(KIND, SHARD, add=["z"])
        moving = asyncio.create_task(move())
        try:
            for _ in range(30):
                assert len(await store.load(KIND, SHARD)) == 7
        finally:
            moving.cancel()
            await asyncio.wait([moving])
            await store.close()
            await writer.close()

    async def test_an_id_that_is_no_text_is_named(self) -> None:
        store = self.new_store()
        key = store._start(KIND, SHARD) + b"\xff"
        await store._client.call("kv/put", {"key": base64.b64encode(key).decode()})
        with pytest.raises(EntityStoreUnavailableError, match="somebody else wrote there"):
            await store.load(KIND, SHARD)
        await store.close()


# -- SQLite: processes, the lock, hands in the file

_WRITER = """
import asyncio, sys
from node.remembered_sqlite import SqliteEntityStore

async def main():
    store = SqliteEntityStore(sys.argv[1])
    batch = lambda turn: [f"{turn}/{number}" for number in range(2000)]
    turn = 0
    while True:
        turn += 1
        await store.update("t", 0, add=batch(turn), remove=batch(turn - 1))
        print(turn, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("turns", range(1, 6))
def test_a_killed_process_leaves_whole_updates(turns: int, tmp_path: Path) -> None:
    """SIGKILL somewhere in an update: it happened, or it did not; what was confirmed did."""
    file = tmp_path / "entities.db"
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(file)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        for _ in range(turns):
            writer.stdout.readline()
        writer.kill()
        confirmed = [turns, *(int(line) for line in writer.stdout)][-1]

    async def load() -> frozenset[str]:
        store = SqliteEntityStore(file)
        try:
            return await store.load("t", 0)
        finally:
            await store.close()

    found = asyncio.run(load())
    assert len(found) == 2000
    (turn,) = {int(each.partition("/")[0]) for each in found}
    assert turn in (confirmed, confirmed + 1)


async def test_a_failure_in_the_middle_of_an_update_undoes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteEntityStore(tmp_path / "entities.db")
    await store.update(KIND, SHARD, add=["a"])
    monkeypatch.setattr(remembered_sqlite, "_DELETE", "DELETE FROM no_such_table")
    with pytest.raises(EntityStoreUnavailableError, match="no_such_table"):
        await store.update(KIND, SHARD, add=["b"], remove=["a"])
    assert await store.load(KIND, SHARD) == {"a"}
    await store.close()


async def test_a_file_that_somebody_locks_is_unknown_in_time_and_can_be_read(
    tmp_path: Path,
) -> None:
    file = tmp_path / "entities.db"
    store = SqliteEntityStore(file, request_timeout_s=0.3)
    await store.update(KIND, SHARD, add=["a"])
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as lock:
        lock.execute("BEGIN IMMEDIATE")
        async with asyncio.timeout(3.0):
            with pytest.raises(EntityStoreUnavailableError, match=r"entities\.db"):
                await store.update(KIND, SHARD, add=["b"])
        lock.execute("ROLLBACK")
    await store.update(KIND, SHARD, add=["c"])
    assert await store.load(KIND, SHARD) - {"b"} == {"a", "c"}
    await store.close()
    with pytest.raises(EntityStoreUnavailableError, match="was closed by this process"):
        await store.load(KIND, SHARD)


def delete(file: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{file}{suffix}").unlink(missing_ok=True)


async def test_a_file_that_was_replaced_is_opened_anew(tmp_path: Path) -> None:
    file = tmp_path / "entities.db"
    store = SqliteEntityStore(file)
    await store.update(KIND, SHARD, add=["a"])
    delete(file)
    assert await store.load(KIND, SHARD) == frozenset()
    await store.update(KIND, SHARD, add=["b"])
    other = SqliteEntityStore(file)
    assert await other.load(KIND, SHARD) == {"b"}
    assert (await store.losses(), await other.losses()) == (1, 0)
    await other.close()
    await store.close()


async def test_a_file_that_was_lost_is_counted_once_by_each(tmp_path: Path) -> None:
    """Deleted, renamed, emptied, or an older copy in its place; noticed without a request."""
    file, older = tmp_path / "entities.db", tmp_path / "older.db"
    stores = [SqliteEntityStore(file) for _ in range(3)]

    async def losses() -> list[int]:
        return [await store.losses() for store in stores]

    assert await losses() == [0, 0, 0]
    for store in stores:
        await store.update(KIND, SHARD, add=["a"])
    assert await losses() == [0, 0, 0]
    with contextlib.closing(sqlite3.connect(file)) as hand, hand:
        hand.execute(f"VACUUM INTO '{older}'")
    file.rename(tmp_path / "elsewhere.db")
    assert await losses() == await losses() == [1, 1, 1]
    await stores[0].update(KIND, SHARD, add=["a"])
    await stores[1].load(KIND, SHARD)
    assert await losses() == await losses() == [1, 1, 1]
    delete(file)
    older.rename(file)
    await stores[2].load(KIND, SHARD)
    assert await losses() == await losses() == [2, 2, 1]  # the last had not opened the one between
    for store in stores:
        await store.load(KIND, SHARD)
    await stores[0].close()
    await stores[1].close()
    with contextlib.closing(sqlite3.connect(file)) as hand, hand:
        for table in ("", "_counts", "_format"):
            hand.execute(f"DROP TABLE tenure_entities{table}")
    with contextlib.suppress(EntityStoreUnavailableError):
        await stores[2].load(KIND, SHARD)
    assert await stores[2].load(KIND, SHARD) == frozenset()
    assert await stores[2].losses() == 2
    await stores[2].close()


async def test_hands_in_the_file_are_named(tmp_path: Path) -> None:
    """No id is made up from what is none, and no other format is guessed at."""
    file = tmp_path / "entities.db"
    store = SqliteEntityStore(file)
    await store.update(KIND, SHARD, add=["a"])
    with contextlib.closing(sqlite3.connect(file)) as hand, hand:
        hand.execute("INSERT INTO tenure_entities SELECT type, shard, x'ff' FROM tenure_entities")
    with pytest.raises(EntityStoreUnavailableError, match="which is no id"):
        await store.load(KIND, SHARD)
    await store.close()
    with contextlib.closing(sqlite3.connect(file)) as hand, hand:
        hand.execute("UPDATE tenure_entities_format SET format = 2")
    store = SqliteEntityStore(file)
    with pytest.raises(EntityStoreUnavailableError, match="its format is 2"):
        await store.update(KIND, SHARD, add=["b"])
    await store.close()
    store = SqliteEntityStore(tmp_path / "x.db")
    (tmp_path / "x.db").write_bytes(b"no database" * 1000)
    with pytest.raises(EntityStoreUnavailableError, match="not a database"):
        await store.load(KIND, SHARD)
    await store.close()


async def test_what_was_deleted_by_hand_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number that is kept beside the ids is not what decides in the end."""
    monkeypatch.setattr(remembered_sqlite, "IDS_MAX", 3)
    file = tmp_path / "entities.db"
    store = SqliteEntityStore(file)
    await store.update(KIND, SHARD, add=list("abc"))
    with pytest.raises(EntityStoreFullError):
        await store.update(KIND, SHARD, add=["d"])
    with contextlib.closing(sqlite3.connect(file)) as hand, hand:
        hand.execute("DELETE FROM tenure_entities WHERE id = x'61'")
    await store.update(KIND, SHARD, add=["d"])
    assert await store.load(KIND, SHARD) == set("bcd")
    with pytest.raises(EntityStoreFullError):
        await store.update(KIND, SHARD, add=["a"])
    await store.close()


async def test_it_may_lie_in_the_file_of_the_leases(tmp_path: Path) -> None:
    from lease import LeaseRecord, SqliteStore

    file = tmp_path / "tenure.db"
    leases, entities = SqliteStore(file), SqliteEntityStore(file)
    wish = LeaseRecord(name="x", holder="o#1", token=None, ttl_s=15.0, write_id="w")
    stored = await leases.write(wish, if_version=None)
    await entities.update(KIND, SHARD, add=["a"])
    assert await leases.read("x") == stored
    assert await entities.load(KIND, SHARD) == {"a"}
    await entities.close()
    await leases.close()


# -- etcd, where nobody answers


async def fails_in_time(store: EntityStore) -> str:
    """Both requests do, with the same words."""
    async with asyncio.timeout(5.0):
        with pytest.raises(EntityStoreUnavailableError) as update:
            await store.update(KIND, SHARD, add=["a"], remove=["b"])
        with pytest.raises(EntityStoreUnavailableError) as load:
            await store.load(KIND, SHARD)
    assert isinstance(update.value, TenureError)
    await store.close()
    assert str(update.value) == str(load.value)
    return str(load.value)


async def test_where_nobody_listens_it_is_unavailable() -> None:
    port, other = free_ports(2)
    said = await fails_in_time(entity_store_of(f"etcd://127.0.0.1:{port},127.0.0.1:{other}/shop"))
    assert said.startswith("the entity store etcd://127.0.0.1:")
    assert "/shop failed: http://127.0.0.1:" in said


async def test_a_server_that_is_silent_is_unavailable_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        said = await fails_in_time(EtcdEntityStore([endpoint], request_timeout_s=0.3))
    assert "no answer within 0.3 s" in said


async def test_an_answer_in_many_pieces_is_read_to_its_end() -> None:
    """Also a large one: of more than the client's buffer, with pauses."""
    ids = [f"entity {number}" for number in range(3_000)]
    start = EtcdEntityStore(["http://h:1"])._start(KIND, SHARD)
    body = json.dumps(
        {
            "header": {"revision": "5"},
            "kvs": [{"key": base64.b64encode(start + each.encode()).decode()} for each in ids],
        }
    ).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
        for begin in range(0, len(body), 50_000):
            writer.write(body[begin : begin + 50_000])
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.close()
        await writer.wait_closed()
        served.set()

    served = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        store = EtcdEntityStore([f"http://127.0.0.1:{port}"])
        try:
            assert await store.load(KIND, SHARD) == set(ids)
        finally:
            await store.close()
        await served.wait()


# -- URLs


def test_a_url_names_a_store(tmp_path: Path) -> None:
    first, second = entity_store_of("memory:"), entity_store_of("memory:")
    assert isinstance(first, MemoryEntityStore)
    assert first.identity != second.identity
    file = entity_store_of(f"sqlite://{tmp_path}/entities.db")
    assert isinstance(file, SqliteEntityStore)
    assert file.identity == f"sqlite://{tmp_path}/entities.db"
    assert not file.path.exists()


@pytest.mark.parametrize(
    ("url", "identity"),
    [
        ("etcd://b:1,a:1", "etcd://a:1,b:1/tenure"),
        ("etcd://a:1/", "etcd://a:1/tenure"),
        ("etcd://a:1/shop", "etcd://a:1/shop"),
        ("etcd://a:1/shop/carts/", "etcd://a:1/shop/carts"),
        ("etcd://a:1?prefix=shop", "etcd://a:1/shop"),
        ("etcd://u:p%40ss%2Fw@a:1/shop?tls=true", "etcd://a:1/shop"),
    ],
)
def test_a_url_of_etcd_has_its_prefix_as_path_or_parameter(url: str, identity: str) -> None:
    store = entity_store_of(url)
    assert store.identity == identity


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://h", "'redis' is no entity store that is known: there are memory:"),
        ("kubernetes://ns", "'kubernetes' is no entity store that is known"),
        ("/var/lib/x.db", "it is no URL of an entity store: there are memory:"),
        ("memory:shared", "hand the store itself on"),
        ("sqlite://x.db", "write sqlite:///x.db for the absolute file"),
        ("sqlite:", "names no file"),
        ("sqlite:////no/such/folder/x.db", "there is no folder /no/such/folder"),
        ("etcd:h:1", "it is no URL of an entity store"),
        ("etcd://h", "'h' is no host:port"),
        ("etcd://h/x", "'h' is no host:port"),
        ("etcd://h:1/x?prefix=y", "the prefix is given twice"),
        ("etcd://h:1/x?color=red", "'color' is no parameter"),
        (f"etcd://h:1/{'x' * 257}", "must have 1 to 256 bytes"),
        ("etcd://u:SECRET@h", "is no host:port"),
        ("etcd://u:SE/CRET@h:1", "user and password stand once"),
        ("etcd://u:SECRET@h:1/x?y", "is no parameter"),
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str, says: str) -> None:
    """With key, value and mend, and never with a password."""
    with pytest.raises(SettingsError, match=says) as refused:
        entity_store_of(url)
    assert str(refused.value).startswith(f"remember_entities='{url.partition(':')[0]}")
    assert "CRET" not in str(refused.value)
    with pytest.raises(SettingsError, match=r"^carts="):
        entity_store_of(url, key="carts")


def test_a_path_that_cannot_work_is_refused_with_key_value_and_mend(tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    file.write_bytes(b"no database")
    for path, says in ((tmp_path, "it is a folder; name a file"), (file, "name another file")):
        with pytest.raises(SettingsError, match=says) as refused:
            entity_store_of(f"sqlite://{path}", key="remember")
        assert str(refused.value).startswith(f"remember='sqlite://{path}': the entity store ")
        with pytest.raises(SettingsError, match=says) as refused:
            Settings(lease=f"sqlite://{path}")
        assert str(refused.value).startswith(f"lease='sqlite://{path}': the lease store ")


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs"])
def test_network_file_systems_are_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "file_system_of", lambda file: kind)
    with pytest.raises(SettingsError, match=rf"lies on a {kind} file system"):
        entity_store_of(f"sqlite://{tmp_path}/x.db")
