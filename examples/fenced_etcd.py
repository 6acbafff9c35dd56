"""A write that only the present holder of a lease can make, into the etcd that keeps the lease.

etcd compares the token in the transaction that writes: nothing has to be remembered elsewhere.
"""

from __future__ import annotations

import base64

import aiohttp

from lease.etcd import EtcdStore


async def put(url: str, store: EtcdStore, name: str, token: int, key: str, value: str) -> bool:
    """Put `key` under `token` of the lease `name`; False when the holder is another one by now.

    `url` is the etcd of `store`, as http://127.0.0.1:2379.
    """
    put = {"key": _base64(key), "value": _base64(value)}
    transaction = {
        "compare": [store.fence_compare(name, token)],
        "success": [{"request_put": put}],
    }
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.post(f"{url}/v3/kv/txn", json=transaction) as answer,
    ):
        return bool((await answer.json()).get("succeeded", False))


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
