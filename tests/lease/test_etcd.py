"""The store in etcd, against real servers: the contract, and what happens to servers."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from bench.etcd import EtcdCluster
from examples import fenced_etcd
from lease import LeaseStore, LeaseUnavailableError, from_url
from lease.conformance import Contender, LeaseStoreContract
from lease.etcd import EtcdStore
from lease.settings import LeaseSettings
from tests.lease.races import small_or_whole

pytestmark = pytest.mark.etcd

URL = "TENURE_TEST_ETCD"
TTL_S = 6.0
"""Long enough that the election of a leader (measured: up to 2.8 s) fits into it."""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        os.environ[URL] = cluster.store_url
        yield cluster
        del os.environ[URL]


@small_or_whole
class TestEtcdStore(LeaseStoreContract):
    cluster: EtcdCluster

    @pytest.fixture(autouse=True)
    def _server(self, etcd: EtcdCluster) -> None:
        self.cluster = etcd

    async def make_store(self) -> LeaseStore:
        return from_url(os.environ[URL])

    async def restart_server(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.cluster.restart)

    async def delete_record(self, name: str) -> None:
        await self.raw("kv/deleterange", {"key": name_key(name)})

    async def damage_record(self, name: str) -> None:
        await self.raw(
            "kv/put", {"key": name_key(name), "value": base64.b64encode(b"\xff{").decode()}
        )

    async def raw(self, path: str, body: dict[str, object]) -> dict[str, object]:
        """As somebody with etcdctl would."""
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.cluster.servers[0].url}/v3/{path}", json=body) as response,
        ):
            assert response.status == 200, await response.text()
            answer: dict[str, object] = await response.json()
            return answer


def name_key(name: str) -> str:
    return base64.b64encode(f"tenure/leases/{name}".encode()).decode()


def contender(url: str, owner: str, ttl_s: float = TTL_S) -> Contender:
    return Contender(from_url(url), LeaseSettings(name="demo", owner=owner, ttl_s=ttl_s))


async def test_a_guarded_write_is_refused_once_the_holder_is_another_one(
    etcd: EtcdCluster,
) -> None:
    """The fence in etcd's own transaction: over release and takeover."""
    url = etcd.store_url
    store = from_url(url)
    assert isinstance(store, EtcdStore)
    place = etcd.servers[0].url

    async def guarded(token: int, value: str) -> bool:
        return await fenced_etcd.put(place, store, "demo", token, "guarded", value)

    a, b = contender(url, "a"), contender(url, "b")
    token = await a.hold()
    assert await guarded(token, "by a")
    renewed = a.lease.valid_until
    while a.lease.valid_until == renewed:
        await asyncio.sleep(0.05)
    assert await guarded(token, "by a again"), "a renewal changes nothing of it"
    await a.lease.release()
    assert not await guarded(token, "by a, released")
    later = await b.hold()
    assert not await guarded(token, "by a, late")
    assert await guarded(later, "by b")
    await b.lease.release()
    for each in (a, b):
        await each.lease.close()
        await each.connection.store.close()
    await store.close()


async def test_closed_it_is_unavailable(etcd: EtcdCluster) -> None:
    store = from_url(etcd.store_url)
    await store.read("demo")
    await store.close()
    with pytest.raises(LeaseUnavailableError, match="closed here"):
        await store.read("demo")


@pytest.mark.parametrize("fault", ["killed", "stopped"])
async def test_the_leader_of_three_goes_and_the_holder_keeps_it(fault: str, tmp_path: Path) -> None:
    """Endpoints are failed over; an election costs nothing that fits into the ttl."""
    with EtcdCluster(tmp_path, 3) as cluster:
        a, b = contender(cluster.store_url, "a"), contender(cluster.store_url, "b")
        token = await a.hold()
        b.lease.watch()
        loop = asyncio.get_running_loop()
        leader = await loop.run_in_executor(None, cluster.leader)
        leader.signal(signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
        for _ in range(60):
            await asyncio.sleep(0.1)
            assert a.lease.check_alive()
        if fault == "stopped":
            leader.signal(signal.SIGCONT)
            await asyncio.sleep(2.0)
        assert a.lease.token == token
        assert not a.lost
        until = a.lease.valid_until
        a.connection.silent = True
        assert await b.hold() > token
        assert a.clock() >= until
        for each in (a, b):
            each.connection.silent = False
            await each.lease.close()
            await each.connection.store.close()


async def test_without_a_majority_nobody_can_tell(tmp_path: Path) -> None:
    """Reads are linearizable: an old answer is none."""
    with EtcdCluster(tmp_path, 3) as cluster:
        a = contender(cluster.store_url, "a", ttl_s=3.0)
        await a.hold()
        for server in cluster.servers[1:]:
            server.kill()
        while not a.lost:
            await asyncio.sleep(0.05)
        with pytest.raises(LeaseUnavailableError):
            await a.connection.store.read("demo")
        for server in cluster.servers[1:]:
            cluster.start_one(server)
        await a.hold()
        await a.lease.release()
        await a.lease.close()
        await a.connection.store.close()


async def test_what_a_whole_cluster_left_behind_is_gone_when_it_comes_back(
    etcd: EtcdCluster,
) -> None:
    """The server lease under a record: nobody has to wait for it."""
    a = contender(etcd.store_url, "a", ttl_s=1.0)
    await a.hold()
    await a.lease.close()
    store = a.connection.store
    async with asyncio.timeout(20.0):
        while await store.read("demo") is not None:
            await asyncio.sleep(0.1)
    await store.close()


async def test_a_server_lease_that_was_revoked_by_hand_is_granted_anew(etcd: EtcdCluster) -> None:
    a = contender(etcd.store_url, "a", ttl_s=3.0)
    first = await a.hold()
    store = a.connection.store
    assert isinstance(store, EtcdStore)
    (lease,) = store._server_leases.values()
    await store._client.call("lease/revoke", {"ID": lease.id})
    async with asyncio.timeout(10.0):
        while not a.lost:  # its record went with it
            await asyncio.sleep(0.02)
    assert await a.hold() > first
    await a.lease.release()
    await a.lease.close()
    await store.close()


async def test_user_and_password(etcd: EtcdCluster) -> None:
    """A wrong one is unknown, with the mend; one that is right works on when its token is old."""
    store = from_url(etcd.store_url)
    assert isinstance(store, EtcdStore)
    await store._client.call("auth/user/add", {"name": "root", "password": "secret"})
    await store._client.call("auth/user/grant", {"user": "root", "role": "root"})
    await store._client.call("auth/enable", {})
    place = etcd.store_url.removeprefix("etcd://")
    good = from_url(f"etcd://root:secret@{place}")
    assert isinstance(good, EtcdStore)
    try:
        with pytest.raises(LeaseUnavailableError, match="name one, as in etcd://user:password@"):
            await store.read("demo")
        bad = from_url(f"etcd://root:wrong@{place}")
        with pytest.raises(LeaseUnavailableError, match="user 'root' is refused"):
            await bad.read("demo")
        await bad.close()
        await good.read("demo")
        good._client.auth_token = "no.such.token"
        await good.read("demo")
    finally:
        await good._client.call("auth/disable", {})
        await good.close()
        await store.close()
