"""URLs of servers: what they mean, what is refused, and that no message has a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from lease import from_url
from lease.etcd import EtcdStore
from lease.urls import shown


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("etcd://", "is no host:port"),
        ("etcd:10.0.0.1:2379", "is no URL of a lease store"),
        ("etcd://10.0.0.1", "'10.0.0.1' is no host:port"),
        ("etcd://10.0.0.1:2379,10.0.0.2", "'10.0.0.2' is no host:port"),
        ("etcd://u@h:1", "user and password go together"),
        ("etcd://h:1?color=red", "'color' is no parameter: there are ca_file"),
        ("etcd://h:1?prefix=a&prefix=b", "prefix is given twice"),
        ("etcd://h:1?prefix=", "prefix is empty"),
        ("etcd://h:1?tls=maybe", "must be true or false"),
        ("etcd://h:1?tls=false&ca_file=x", "contradict each other"),
        ("etcd://h:1?cert_file=x", "cert_file and key_file go together"),
        ("etcd://h:1?ca_file=/no/such", "files for TLS cannot be used"),
        ("etcd://u:p@h:1?password_file=/x", "not both"),
        ("etcd://u@h:1?password_file=/no/such", "cannot be read"),
        ("kubernetes://", "names no namespace"),
        ("kubernetes://Nope", "is no name of a Kubernetes namespace"),
        ("kubernetes://ns", "this is no pod of a Kubernetes cluster"),
        ("kubernetes://ns?server=https://h:1&token_file=/x&ca_file=/y", "is no file"),
    ],
)
def test_what_cannot_work_is_refused_with_the_mend(
    url: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ValueError, match=says):
        from_url(url)


def test_the_order_of_endpoints_means_nothing(tmp_path: Path) -> None:
    """And user and password are no part of which store it is."""
    file = tmp_path / "password"
    file.write_text("s3cret\n")
    one = from_url("etcd://a:1,b:2")
    other = from_url(f"etcd://u@b:2,a:1?password_file={file}")
    assert one.identity == other.identity == "etcd://a:1,b:2/tenure"
    assert from_url("etcd://a:1,b:2?prefix=x").identity != one.identity
    assert isinstance(other, EtcdStore)
    assert (other._client.user, other._client.password) == ("u", "s3cret")


def test_a_password_may_have_any_sign_when_it_is_encoded() -> None:
    store = from_url("etcd://u:p%40ss%2Fw%2Cord%3F@h:1")
    assert isinstance(store, EtcdStore)
    assert store._client.password == "p@ss/w,ord?"


@pytest.mark.parametrize(
    "url",
    [
        "etcd://u:SECRET@h",
        "etcd://u:SECRET@127.0.0.1:1?x=1",
        "etcd://127.0.0.1:1?password=SECRET",
        "etcd:u:SECRET@127.0.0.1:1",
        "etcd://u:SEC?RET@127.0.0.1:1",
        "etcd://u:SE@CRET@127.0.0.1",
        "etcd://u:SECRET@h1:1,other@h2:2",
        "kubernetes://ns?token=SECRET",
        "redis://u:SECRET@h:1",
    ],
)
def test_no_message_has_a_password_wherever_it_was_put(url: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        from_url(url)
    for text in (str(refused.value), shown(url)):
        for part in ("SECRET", "SEC", "RET", "CRET"):
            assert part not in text, text
