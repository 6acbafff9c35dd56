"""From a lease store's URL to the store."""

from __future__ import annotations

import ssl
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from lease.memory import MemoryStore
from lease.sqlite import SqliteStore
from lease.store import LeaseStore

_KNOWN = (
    "memory: (this process only), sqlite:///absolute/file or sqlite:relative/file, "
    "etcd://host:port[,host:port…], kubernetes://namespace"
)
_ETCD_PARAMETERS = ("ca_file", "cert_file", "key_file", "password_file", "prefix", "tls")
_KUBERNETES_PARAMETERS = ("ca_file", "server", "token_file")


@dataclass(frozen=True, slots=True, repr=False)
class EtcdPlace:
    """What an `etcd:` URL says, as stores in etcd take it. Not shown: it has the password."""

    endpoints: tuple[str, ...]
    prefix: str
    user: str | None
    password: str | None
    ssl_context: ssl.SSLContext | None


def from_url(url: str) -> LeaseStore:
    """The store that `url` names; nothing is opened yet.

    `memory:` is another, empty store with each call: hand the object on to share it.
    `sqlite:///x` and `sqlite:////x` are the same absolute file, `sqlite:x` is relative to the
    working directory. `etcd://[user[:password]@]host:port[,host:port…]` takes `prefix=`,
    `password_file=`, and for TLS `ca_file=`, `cert_file=` with `key_file=`, or `tls=true` for the
    system's authorities. `kubernetes://namespace` is for a pod; outside it takes `server=`,
    `token_file=` and `ca_file=`. Raises ValueError when there is no such store, or it cannot work.
    """
    scheme, colon, rest = url.partition(":")
    if not colon:
        raise ValueError(f"{shown(url)} is no URL of a lease store: there are {_KNOWN}")
    match scheme:
        case "memory":
            if rest:
                raise ValueError(
                    f"{shown(url)}: memory: has no name; hand the store itself on to share it"
                )
            return MemoryStore(wall_clock=time.time)
        case "sqlite":
            return SqliteStore(sqlite_path(url))
        case "etcd":
            return _etcd(etcd_place(url))
        case "kubernetes":
            return _kubernetes(url, rest)
    raise ValueError(f"{scheme!r} is no lease store that is known: there are {_KNOWN}")


def sqlite_path(url: str) -> str:
    """The file that a `sqlite:` URL names. Raises ValueError when it names none."""
    rest = url.partition(":")[2]
    if "?" in rest or "#" in rest:
        raise ValueError(f"{url!r}: sqlite takes a file and no parameters")
    path = rest
    if rest.startswith("//"):
        if not rest.startswith("///"):
            raise ValueError(
                f"{url!r} names a host: write sqlite:///{rest[2:]} for the absolute file, "
                f"or sqlite:{rest[2:]} for the relative one"
            )
        path = "/" + rest.lstrip("/")
    if not path.strip("/"):
        raise ValueError(f"{url!r} names no file: write sqlite:///var/lib/app/leases.db")
    return path


def etcd_place(url: str) -> EtcdPlace:
    """What an `etcd:` URL says; see `from_url`. Raises ValueError when it cannot be meant."""
    what = shown(url)
    authority, parameters = _parts(what, url.partition(":")[2], _ETCD_PARAMETERS)
    credentials, at, hosts = authority.rpartition("@")
    if any(sign in credentials for sign in "@,/"):
        raise ValueError(
            f"{what}: user and password stand once, before all endpoints, and with %40, %2C and "
            "%2F for @ , / in them"
        )
    user, colon, password = credentials.partition(":")
    given: str | None = unquote(password) if colon else None
    file = parameters.get("password_file")
    if file is not None:
        if given is not None:
            raise ValueError(f"{what}: give the password or a password_file, not both")
        given = _read(what, "password_file", file).strip()
    if bool(at and user) is not (given is not None):
        raise ValueError(
            f"{what}: user and password go together: write etcd://user:password@host:port, or "
            "etcd://user@host:port?password_file=/run/secrets/etcd"
        )
    context = _tls(what, parameters)
    scheme = "http" if context is None else "https"
    endpoints = []
    for host in hosts.split(","):
        name, _, port = host.rpartition(":")
        if not name or not port.isdecimal() or not 1 <= int(port) <= 65535:
            raise ValueError(
                f"{what}: {host!r} is no host:port; write etcd://10.0.0.1:2379,10.0.0.2:2379"
            )
        endpoints.append(f"{scheme}://{host}")
    return EtcdPlace(
        endpoints=tuple(endpoints),
        prefix=parameters.get("prefix", "tenure"),
        user=unquote(user) if at else None,
        password=given,
        ssl_context=context,
    )


def _etcd(place: EtcdPlace) -> LeaseStore:
    from lease.etcd import EtcdStore  # most processes need no HTTP client

    return EtcdStore(
        place.endpoints,
        prefix=place.prefix,
        user=place.user,
        password=place.password,
        ssl_context=place.ssl_context,
    )


def _tls(what: str, parameters: dict[str, str]) -> ssl.SSLContext | None:
    ca, certificate, key = (parameters.get(f"{part}_file") for part in ("ca", "cert", "key"))
    tls = parameters.get("tls", "")
    if tls not in ("", "true", "false"):
        raise ValueError(f"{what}: tls={tls!r} must be true or false")
    if (certificate is None) is not (key is None):
        raise ValueError(f"{what}: cert_file and key_file go together: give both or neither")
    if ca is None and certificate is None and tls != "true":
        return None
    if tls == "false":
        raise ValueError(f"{what}: tls=false and files for TLS contradict each other: drop one")
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except OSError as error:  # also of ssl
        raise ValueError(f"{what}: the files for TLS cannot be used: {error}") from error
    return context


def _kubernetes(url: str, rest: str) -> LeaseStore:
    what = shown(url)
    namespace, parameters = _parts(what, rest, _KUBERNETES_PARAMETERS)
    if not namespace:
        raise ValueError(f"{what} names no namespace: write kubernetes://my-namespace")
    from lease.kubernetes import KubernetesStore  # most processes need no client of Kubernetes

    try:
        return KubernetesStore(
            namespace,
            server=parameters.get("server"),
            token_file=parameters.get("token_file"),
            ca_file=parameters.get("ca_file"),
        )
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error


def _parts(what: str, rest: str, known: Collection[str]) -> tuple[str, dict[str, str]]:
    """What stands behind `//`, and the parameters."""
    place, _, query = rest.partition("?")
    if not place.startswith("//") or "#" in rest:
        raise ValueError(f"{what} is no URL of a lease store: there are {_KNOWN}")
    parameters: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            # What is no name may be a part of a password.
            named = repr(name) if name.isidentifier() and "@" not in rest else "something there"
            raise ValueError(f"{what}: {named} is no parameter: there are {', '.join(known)}")
        if name in parameters:
            raise ValueError(f"{what}: {name} is given twice: keep one")
        if not value:
            raise ValueError(f"{what}: {name} is empty: give a value, or leave it out")
        parameters[name] = value
    return place[2:].rstrip("/"), parameters


def _read(what: str, name: str, file: str) -> str:
    try:
        return Path(file).read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise ValueError(f"{what}: {name}={file!r} cannot be read: {error}") from error


def shown(url: str) -> str:
    """The URL for messages and logs: quoted, never with a password, wherever it was put."""
    scheme, colon, rest = url.partition(":")
    if not colon:
        return repr(url)
    # Whatever stands before the last @ may be a part of a password that was not encoded.
    rest = f"//…@{rest.rpartition('@')[2]}" if "@" in rest else rest
    place, question, query = rest.partition("?")
    parts = []
    for part in query.split("&"):
        name, equals, value = part.partition("=")
        known = name in _ETCD_PARAMETERS or name in _KUBERNETES_PARAMETERS
        parts.append(f"{name}={value if known else '…'}" if equals else "…")
    return repr(f"{scheme}:{place}{question}{'&'.join(parts) if question else ''}")
