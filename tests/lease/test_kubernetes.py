"""The store in Kubernetes: the contract against a real API server and against the small one that
the fast tests use, and what servers answer when they do not do what they were asked for."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from lease import LeaseRecord, LeaseStore, LeaseUnavailableError, WriteConflict, from_url
from lease.conformance import Contender, LeaseStoreContract
from lease.kubernetes import KubernetesStore
from lease.settings import LeaseSettings
from tests.lease.races import small_or_whole
from tests.servers import apiserver, fake_apiserver
from tests.servers.apiserver import ApiServer
from tests.servers.fake_apiserver import FakeApiServer

URL = "TENURE_TEST_KUBERNETES"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{apiserver.NAMESPACE}/leases"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real one."""
    with ApiServer(tmp_path_factory.mktemp("apiserver")) as running:
        yield running


@pytest_asyncio.fixture
async def fake(tmp_path: Path) -> AsyncIterator[FakeApiServer]:
    running = await FakeApiServer(tmp_path).start()
    yield running
    await running.stop()


class _Contract(LeaseStoreContract):
    async def make_store(self) -> LeaseStore:
        return from_url(os.environ[URL])


@small_or_whole
@pytest.mark.kubernetes
class TestKubernetesStore(_Contract):
    server: ApiServer

    @pytest.fixture(autouse=True)
    def _real(self, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
        """With the token and the role of a pod."""
        self.server = server
        token_file = server.token_file("tenure", server.service_token())
        monkeypatch.setenv(URL, server.store_url(token_file))

    async def in_thread(self, call: Callable[..., Any], *words: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, call, *words)

    async def restart_server(self) -> None:
        await self.in_thread(self.server.restart)

    async def delete_record(self, name: str) -> None:
        await self.in_thread(self.server.must, "DELETE", f"{LEASES}/{name}")

    async def damage_record(self, name: str) -> None:
        found = await self.in_thread(self.server.must, "GET", f"{LEASES}/{name}")
        del found["metadata"]["annotations"]
        found["spec"]["leaseDurationSeconds"] = 2_000_000_000
        await self.in_thread(self.server.must, "PUT", f"{LEASES}/{name}", found)


class TestFakeKubernetesStore(_Contract):
    """As fast as it gets: three processes race, since one process serves all."""

    racers = 3
    race_rounds = 20
    fake: FakeApiServer

    @pytest.fixture(autouse=True)
    def _small(self, fake: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake = fake
        monkeypatch.setenv(URL, fake.store_url)

    async def restart_server(self) -> None:
        """All connections are gone; the port may be another one, so it is kept running."""

    async def delete_record(self, name: str) -> None:
        await self.fake.delete(name)

    async def damage_record(self, name: str) -> None:
        found = self.fake.objects[name]
        found["metadata"]["annotations"] = {"tenure/ttl-s": "soon", "tenure/token": "many"}
        found["spec"]["holderIdentity"] = "somebody"
        self.fake.revision += 1
        found["metadata"]["resourceVersion"] = str(self.fake.revision)


# -- what both servers answer, asked with plain requests


class Raw:
    """A client that sends what it is told."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}

    async def __call__(self, method: str, name: str = "", body: Any = None, **query: Any) -> Any:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        path = f"{self._url}{LEASES}{'/' + name if name else ''}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method, path, json=body, headers=self._headers, ssl=context, params=query
            ) as response,
        ):
            return response.status, await response.json()


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.kubernetes)])
def raw(request: pytest.FixtureRequest) -> Raw:
    if request.param == "fake":
        running: FakeApiServer = request.getfixturevalue("fake")
        return Raw(running.url, fake_apiserver.TOKEN)
    real: ApiServer = request.getfixturevalue("server")
    return Raw(real.url, apiserver.ADMIN_TOKEN)


def lease_object(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": "x", "leaseDurationSeconds": 3, **spec},
    }


async def test_the_small_server_answers_as_the_real_one(raw: Raw) -> None:
    """Each of these was the trap of somebody."""
    name = f"both-{time.time_ns()}"
    status, created = await raw("POST", body=lease_object(name))
    assert status == 201
    assert created["metadata"]["uid"]
    status, answer = await raw("POST", body=lease_object(name))
    assert (status, answer["reason"]) == (409, "AlreadyExists")

    status, again = await raw("PUT", name, created)
    assert (status, again["metadata"]["resourceVersion"]) == (
        200,
        created["metadata"]["resourceVersion"],
    ), "nothing changed: no new version"
    changed = {**created, "spec": {**created["spec"], "holderIdentity": ""}}
    status, newer = await raw("PUT", name, changed)
    assert status == 200
    assert newer["metadata"]["resourceVersion"] != created["metadata"]["resourceVersion"]
    status, answer = await raw("PUT", name, created)
    assert (status, answer["reason"]) == (409, "Conflict"), "an old version"
    status, answer = await raw("PUT", name, lease_object(name))
    assert (status, answer["reason"]) == (422, "Invalid"), "without a version"

    for bad in (
        "2026-11-30T12:00:00.123Z",
        "2026-11-30T12:00:00Z",
        "2026-11-30T12:00:00.123456789Z",
    ):
        status, answer = await raw("POST", body=lease_object(f"{name}-t", renewTime=bad))
        assert (status, answer["reason"]) == (400, "BadRequest"), bad
    status, answer = await raw("POST", body=lease_object(f"{name}-s", leaseDurationSeconds=0))
    assert (status, answer["reason"]) == (422, "Invalid")
    status, answer = await raw("POST", body=lease_object("Not-A-Name"))
    assert (status, answer["reason"]) == (422, "Invalid")

    assert (await raw("DELETE", name))[0] == 200
    status, answer = await raw("GET", name)
    assert (status, answer["reason"]) == (404, "NotFound")
    status, answer = await raw("PUT", name, newer)
    assert (status, answer["reason"]) == (409, "Conflict"), "with a uid nothing is brought back"
    del newer["metadata"]["uid"]
    status, answer = await raw("PUT", name, newer)
    assert status == 201, "without a uid it is"
    assert (await raw("DELETE", name))[0] == 200


# -- answers that are no records


def wish(number: int = 1, **fields: Any) -> LeaseRecord:
    plain: dict[str, Any] = {
        "name": "demo",
        "holder": "o#n",
        "token": None,
        "ttl_s": 15.0,
        "write_id": f"w{number}",
    }
    return LeaseRecord(**plain | fields)


def answering(status: int, body: str = "", **headers: str) -> fake_apiserver.Fault:
    return lambda request: web.Response(status=status, text=body, headers=headers)


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (400, "HTTP 400"),
        (403, "needs a Role with get, create, update and watch"),
        (422, "HTTP 422"),
        (500, "HTTP 500"),
        (503, "HTTP 503"),
        (504, "HTTP 504"),
    ],
)
async def test_what_is_no_answer_is_unknown(fake: FakeApiServer, status: int, says: str) -> None:
    """Never "somebody else holds it", whatever the body is."""
    store = from_url(fake.store_url)
    written = await store.write(wish(), if_version=None)
    for body in ("not json", '{"message": "of the server"}', ""):
        fake.faults.append(answering(status, body))
        with pytest.raises(LeaseUnavailableError, match=says):
            await store.read("demo")
        fake.faults.append(answering(status, body))
        with pytest.raises(LeaseUnavailableError, match=says):
            await store.write(wish(2, token=written.token), if_version=written.version)
    assert (await store.read("demo")) == written
    await store.close()


async def test_a_namespace_that_is_missing_is_unknown_with_the_mend(fake: FakeApiServer) -> None:
    store = from_url(fake.store_url.replace(fake_apiserver.NAMESPACE, "elsewhere"))
    with pytest.raises(LeaseUnavailableError, match="create the namespace elsewhere"):
        await store.write(wish(), if_version=None)
    await store.close()


async def test_a_server_that_is_busy_is_asked_once_more_after_its_time(
    fake: FakeApiServer,
) -> None:
    """429 is plain text, and says when: what was refused so was not applied."""
    store = from_url(fake.store_url)
    fake.faults.append(answering(429, "Too many requests", **{"Retry-After": "1"}))
    begun = time.monotonic()
    assert await store.read("demo") is None
    assert time.monotonic() - begun >= 1.0
    fake.faults.append(answering(429, "Too many requests", **{"Retry-After": "3600"}))
    with pytest.raises(LeaseUnavailableError, match="HTTP 429 Too many requests"):
        await store.read("demo")
    await store.close()


async def test_a_token_that_was_replaced_is_read_again(fake: FakeApiServer) -> None:
    """I-16: when its file changes, and when the server refuses it."""
    store = from_url(fake.store_url)
    await store.read("demo")
    fake.tokens = {"second"}
    with pytest.raises(LeaseUnavailableError, match="is refused: renew it"):
        await store.read("demo")
    new = fake.token_file.with_suffix(".new")
    new.write_text("second\n")
    new.replace(fake.token_file)
    assert await store.read("demo") is None
    fake.token_file.unlink()
    with pytest.raises(LeaseUnavailableError, match="cannot be read"):
        await store.read("demo")
    await store.close()


async def test_credentials_are_whole_or_none(fake: FakeApiServer) -> None:
    """I-15: a token is not sent to a server that it was not made for."""
    place = {"server": fake.url, "token_file": fake.token_file, "ca_file": fake.ca_file}
    for left_out in place:
        some = {name: value for name, value in place.items() if name != left_out}
        with pytest.raises(ValueError, match="go together"):
            KubernetesStore("tenure-test", **some)  # type: ignore[arg-type]


async def test_times_have_six_digits(fake: FakeApiServer) -> None:
    """I-22: also when the microsecond is 0; the small server refuses others as the real one."""
    store = from_url(fake.store_url)
    await store.write(wish(), if_version=None)
    spec = fake.objects["demo"]["spec"]
    for field in ("renewTime", "acquireTime"):
        assert fake_apiserver.MICRO_TIME.fullmatch(spec[field])
    await store.close()


async def test_what_others_put_on_the_object_stays(fake: FakeApiServer) -> None:
    """Labels, owners, annotations of somebody else."""
    store = from_url(fake.store_url)
    first = await store.write(wish(), if_version=None)
    found = fake.objects["demo"]
    found["metadata"]["labels"] = {"team": "jobs"}
    found["metadata"]["annotations"]["note"] = "do not delete"
    fake.revision += 1
    found["metadata"]["resourceVersion"] = str(fake.revision)
    with pytest.raises(WriteConflict) as conflict:
        await store.write(wish(2, token=first.token), if_version=first.version)
    current = conflict.value.current
    assert current is not None
    await store.write(wish(3, token=first.token), if_version=current.version)
    metadata = fake.objects["demo"]["metadata"]
    assert metadata["labels"] == {"team": "jobs"}
    assert metadata["annotations"]["note"] == "do not delete"
    await store.close()


async def test_transitions_count_for_people(fake: FakeApiServer) -> None:
    store = from_url(fake.store_url)
    one = await store.write(wish(1), if_version=None)
    free = await store.write(wish(2, token=one.token, holder=""), if_version=one.version)
    assert fake.objects["demo"]["spec"]["leaseTransitions"] == 0
    await store.write(wish(3), if_version=free.version)
    assert fake.objects["demo"]["spec"]["leaseTransitions"] == 1
    await store.close()


async def test_a_version_that_is_no_number_makes_no_token(fake: FakeApiServer) -> None:
    """Kubernetes promises no order of versions: what cannot grow is refused."""
    store = from_url(fake.store_url)
    opaque = {"metadata": {"name": "demo", "uid": "u", "resourceVersion": "x9"},
              "spec": {"holderIdentity": "o#n", "leaseDurationSeconds": 15}}  # fmt: skip
    fake.faults.append(lambda request: web.json_response(opaque, status=201))
    with pytest.raises(LeaseUnavailableError, match="no token that grows"):
        await store.write(wish(), if_version=None)
    await store.close()


async def test_a_lease_of_another_client_is_respected(fake: FakeApiServer) -> None:
    """One that is elected by other means, under the same name: its seconds count."""
    store = from_url(fake.store_url)
    raw = Raw(fake.url, fake_apiserver.TOKEN)
    await raw("POST", body=lease_object("demo", leaseDurationSeconds=15))
    found = await store.read("demo")
    assert found is not None
    assert (found.holder, found.ttl_s, found.free) == ("x", 15.0, False)
    await store.close()


async def test_where_no_watch_is_allowed_it_is_polled(fake: FakeApiServer) -> None:
    fake.may_watch = False
    store = from_url(fake.store_url)
    first = await store.write(wish(1), if_version=None)
    watch = asyncio.create_task(store.changed("demo", first.version))
    await asyncio.sleep(0.1)
    assert not watch.done()
    await store.write(wish(2, token=first.token), if_version=first.version)
    await asyncio.wait_for(watch, 10.0)
    await store.close()


async def test_a_version_too_old_to_watch_is_polled(fake: FakeApiServer) -> None:
    """410 comes at once, and again and again: it must make no loop without a pause."""
    store = from_url(fake.store_url)
    first = await store.write(wish(1), if_version=None)
    fake.oldest_watched = fake.revision + 1
    watch = asyncio.create_task(store.changed("demo", first.version))
    await asyncio.sleep(0.5)
    assert not watch.done()
    assert len(fake.requests) < 6
    await store.write(wish(2, token=first.token), if_version=first.version)
    await asyncio.wait_for(watch, 10.0)
    await store.close()


async def test_closed_it_is_unavailable(fake: FakeApiServer) -> None:
    store = from_url(fake.store_url)
    await store.read("demo")
    await store.close()
    with pytest.raises(LeaseUnavailableError, match="closed here"):
        await store.read("demo")


async def test_two_names_never_share_an_object() -> None:
    names = ["a/b", "a-b", "A-b", "a b", "a.b", "ä", "x" * 300, "x" * 301]
    assert len({KubernetesStore.object_name(name) for name in names}) == len(names)


# -- a real server that fails


def contender(url: str, owner: str, ttl_s: float) -> Contender:
    return Contender(from_url(url), LeaseSettings(name="real", owner=owner, ttl_s=ttl_s))


@pytest.mark.kubernetes
async def test_a_server_that_stands_still_and_goes_on(server: ApiServer) -> None:
    """A request sent meanwhile is carried out after SIGCONT: it counts from when it was sent."""
    url = server.store_url(server.token_file("tenure", server.service_token()))
    a, b = contender(url, "a", 3.0), contender(url, "b", 3.0)
    token = await a.hold()
    server.signal(signal.SIGSTOP)
    try:
        async with asyncio.timeout(10.0):
            while not a.lost:
                await asyncio.sleep(0.02)
        assert not a.lease.check_alive()
    finally:
        server.signal(signal.SIGCONT)
    assert await b.hold() > token
    assert not a.lease.check_alive()
    await b.lease.release()
    for each in (a, b):
        await each.lease.close()
        await each.connection.store.close()


@pytest.mark.kubernetes
async def test_the_role_is_enough_and_is_the_least(server: ApiServer) -> None:
    """The manifest: all that a store does works with it, and each verb is needed for something."""
    token_file = server.token_file("tenure", server.service_token())
    store = from_url(server.store_url(token_file))
    assert isinstance(store, KubernetesStore)
    first = await store.write(wish(name="role"), if_version=None)
    second = await store.write(wish(2, name="role", token=first.token), if_version=first.version)
    await store.changed("role", first.version)
    assert store._may_watch
    assert await store.read("role") == second
    raw = Raw(server.url, token_file.read_text())
    assert (await raw("DELETE", "role"))[0] == 403
    assert (await raw("GET"))[0] == 403, "no list"
    elsewhere = from_url(server.store_url(token_file, namespace="default"))
    with pytest.raises(LeaseUnavailableError, match="needs a Role"):
        await elsewhere.read("role")
    role = (
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{apiserver.NAMESPACE}/roles/tenure-leases"
    )
    loop = asyncio.get_running_loop()
    whole = await loop.run_in_executor(None, server.must, "GET", role)
    refused = {
        "get": store.read("role"),
        "create": store.write(wish(name="another"), if_version=None),
        "update": store.write(wish(3, name="role", token=first.token), if_version=second.version),
    }
    for verb, request in refused.items():
        less = {**whole, "metadata": {"name": "tenure-leases"}}
        verbs = [each for each in ("get", "create", "update", "watch") if each != verb]
        less["rules"] = [{**whole["rules"][0], "verbs": verbs}]
        await loop.run_in_executor(None, server.must, "PUT", role, less)
        async with asyncio.timeout(15.0):
            while (await raw(*PROBES[verb]))[0] != 403:
                await asyncio.sleep(0.05)
        with pytest.raises(LeaseUnavailableError, match="needs a Role"):
            await request
    less["rules"] = whole["rules"]
    await loop.run_in_executor(None, server.must, "PUT", role, less)
    for each in (store, elsewhere):
        await each.close()


PROBES: dict[str, tuple[Any, ...]] = {
    "get": ("GET", "role"),
    "create": ("POST", "", lease_object("Probe")),
    "update": ("PUT", "role", lease_object("role", leaseDurationSeconds=0)),
}
