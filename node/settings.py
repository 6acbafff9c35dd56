"""Every setting of a node: name, default, bounds. A wrong one stops the start, naming the mend.

Decides what is valid alone and together. Does not decide where a value comes from: that is
`node.settings_loader`. Built by users, the command line and the testkit.
"""

from __future__ import annotations

import functools
import os
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

from downing.settings import PRESETS as DOWNING_PRESETS
from downing.settings import DowningSettings
from downing.strategies import Strategy, parse
from gossip.settings import PRESETS, GossipSettings, preset
from node.addresses import is_host, is_wildcard, parse_address, share_ports, without_brackets
from node.errors import SettingsError
from singleton.settings import SingletonSettings

DEFAULT_PORT = 25520

SECONDS_MAX = 1e8  # about three years: what is longer was meant otherwise
LEASE_TTL_MAX_S = 3600.0
LEVELS = ("none", "downing", "downing+lease")
LEASED_LEVEL = LEVELS[-1]
DOWNING_BY_LEVEL = "keep-majority"
"""Where a level wants a strategy and none is named."""
FRAME_BYTES_MIN = 64 * 1024  # a full view of the cluster has to fit
COUNT_MAX = 500_000_000
TEXT_MAX = 255
_SHOWN_MAX = 80

_WANTED: dict[type, str] = {
    int: "a whole number",
    float: "a number of seconds",
    bool: "true or false",
    str: "text",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one node; times are seconds. Raises `SettingsError` naming key, value, mend.

    Without `port` the system is purely local: no sockets, no cluster. `host` is both bound and
    told to the others.
    """

    cluster_name: str = "tenure"
    name: str = ""
    roles: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int | None = None
    data_port: int = 0
    seeds: tuple[str, ...] = ()
    state_dir: str | None = None
    found: bool = False
    keys: str | None = None
    insecure: bool = False
    app: str | None = None
    http: str | None = None
    http_token_file: str | None = None
    history: str | None = None
    log: Literal["text", "json"] = "text"
    log_level: str = "info"
    preset: str = "lan"
    probe_interval_s: float | None = None
    ack_timeout_s: float | None = None
    weakly_up_after_s: float = 7.0
    crash_evidence: Literal["same-host", "never"] = "same-host"
    protection: str | None = None
    downing: str = "none"
    down_after_s: float | None = None
    contact_s: float | None = None
    down_all_when_unstable_s: float | None = None
    lease: str | None = None
    lease_ttl_s: float = 15.0
    acquire_retry_interval_s: float = 5.0
    hand_over_timeout_s: float = 10.0
    stop_timeout_s: float = 5.0
    leave_timeout_s: float = 5.0
    shutdown_timeout_s: float = 20.0
    buffer_size: int = 1000
    frame_bytes_max: int = 8 * 1024 * 1024
    pending_bytes_max: int = 64 * 1024 * 1024
    blocked_after_s: float = 0.1

    def __post_init__(self) -> None:
        # Lists and paths are what people write; inside they are tuples and text.
        for name, (kind, optional) in _field_types().items():
            value = getattr(self, name)
            if value is not None or not optional:
                object.__setattr__(self, name, check_type(name, value, kind))
        self._check_texts()
        self._check_numbers()
        self._check_choices()
        self._check_protection()
        self._check_level()
        self._check_lease()
        self._check_addresses()
        self._check_ports()
        self.gossip()
        self.downing_settings()
        self.singleton()

    def _check_texts(self) -> None:
        named = [("cluster_name", self.cluster_name), *(("roles", role) for role in self.roles)]
        for key, text in [*named, ("name", self.name or "-")]:
            # Printable: it stands in tables and lines of text, where others must not be forged.
            if not 0 < len(text) <= TEXT_MAX or not is_unicode(text) or not text.isprintable():
                raise SettingsError(
                    f"{key}={shown(text)} must have 1 to {TEXT_MAX} printable characters: "
                    "choose another"
                )
        for key in (
            "state_dir",
            "keys",
            "http_token_file",
            "history",
            "app",
            "http",
            "lease",
            "protection",
        ):
            if getattr(self, key) == "":
                raise SettingsError(f"{key}='' names nothing: give a value, or leave {key} out")

    def _check_numbers(self) -> None:
        for key, (kind, _) in _field_types().items():
            value = getattr(self, key)
            if kind is float and value is not None and not 0 < value <= SECONDS_MAX:
                raise SettingsError(
                    f"{key}={shown(value)} must be greater than 0 and at most {SECONDS_MAX:.0f} "
                    "seconds: give a number in between"
                )
        for key, least, most in (
            ("port", 0, 65_535),
            ("data_port", 0, 65_535),
            ("buffer_size", 1, COUNT_MAX),
            ("frame_bytes_max", FRAME_BYTES_MIN, COUNT_MAX),
            ("pending_bytes_max", FRAME_BYTES_MIN, COUNT_MAX),
        ):
            value = getattr(self, key)
            if value is not None and not least <= value <= most:
                lowest = "0 (chosen)" if least == 0 else str(least)
                raise SettingsError(
                    f"{key}={shown(value)} must lie between {lowest} and {most}: "
                    "give a whole number in between"
                )

    def _check_choices(self) -> None:
        for key, value, choices in (
            ("log", self.log, ("text", "json")),
            ("log_level", self.log_level, ("debug", "info", "warning", "error")),
            ("preset", self.preset, tuple(PRESETS)),
            ("crash_evidence", self.crash_evidence, ("same-host", "never")),
        ):
            if value not in choices:
                raise SettingsError(
                    f"{key}={shown(value)} is none of {', '.join(choices)}: take one"
                )

    def _check_protection(self) -> None:
        if self.keys is not None and self.insecure:
            raise SettingsError(
                f"keys={shown(self.keys)} together with insecure: with keys only trusted nodes "
                "can connect, insecure lets in anybody; leave out one of the two (--keys or "
                "--insecure)"
            )

    def _check_level(self) -> None:
        if self.protection is None:
            return
        if self.protection not in LEVELS:
            raise SettingsError(
                f"protection={shown(self.protection)} is none of {', '.join(LEVELS)}: take one"
            )
        if self.protection == "none" and self.downing != "none":
            raise SettingsError(
                f"protection='none' and downing={shown(self.downing)} contradict each other: "
                "leave one of them out (--protection or --downing)"
            )
        if self.protection == LEASED_LEVEL and self.lease is None:
            raise SettingsError(
                f"protection={LEASED_LEVEL!r} needs a store of leases, and lease is not set: give "
                "all members the same one, for example --lease sqlite:///var/lib/tenure/leases.db"
            )

    @property
    def leases_singletons(self) -> bool:
        """True where a singleton runs under a lease unless its start says otherwise."""
        return self.protection == LEASED_LEVEL

    def _check_lease(self) -> None:
        if self.lease_ttl_s > LEASE_TTL_MAX_S:
            raise SettingsError(
                f"lease_ttl_s={shown(self.lease_ttl_s)} must be at most {LEASE_TTL_MAX_S:.0f}: "
                "others respect no lease for longer"
            )
        if self.lease is None:
            return
        from lease.urls import from_url  # most nodes need none

        if self.lease.startswith("memory:"):
            raise SettingsError(
                f"lease={shown(self.lease)} is another store in each process, so every side of a "
                "split would get the lease: give all members one, for example "
                "sqlite:///var/lib/tenure/leases.db"
            )
        try:
            from_url(self.lease)
        except ValueError as error:
            raise refused_store(self.lease, error) from error

    def _check_addresses(self) -> None:
        # A wildcard gets its own words where it would be bound, from `node.zmq_transport`.
        if not is_wildcard(self.host) and not is_host(without_brackets(self.host)):
            raise SettingsError(
                f"host={shown(self.host)} is no address and cannot be a name: give for example "
                "127.0.0.1, ::1 or node-1.example"
            )
        if self.http is not None:
            parse_address("http", self.http)
        for seed in self.seeds:
            split_seed(seed)
        if self.port is None:
            if self.seeds:
                raise SettingsError(
                    f"seeds={shown(list(self.seeds))} without port: a member needs a port of its "
                    f"own; give port={DEFAULT_PORT}, or leave out the seeds for a local system"
                )
        elif not self.seeds and not self.found and self.state_dir is None:
            raise SettingsError(
                f"seeds=[] with port={self.port}: nobody to ask for the cluster; give the "
                "addresses of its members, your own too (--seed HOST:PORT), or begin a new one "
                "with found=True (--found)"
            )

    def given_ports(self) -> dict[str, tuple[str, int]]:
        """Host and port of each port that was given, not chosen, by setting; hosts are equal where
        one port cannot be had twice."""
        ports = {"port": (self.host, self.port or 0), "data_port": (self.host, self.data_port)}
        if self.http is not None:
            host, port = parse_address("http", self.http)
            is_same = share_ports(without_brackets(self.host), host)
            ports["http"] = (self.host if is_same else host, port)
        return {key: (host, port) for key, (host, port) in ports.items() if port}

    def _check_ports(self) -> None:
        keys: dict[tuple[str, int], str] = {}
        for key, port in self.given_ports().items():
            other = keys.setdefault(port, key)
            if other != key:
                raise SettingsError(
                    f"{other}={shown(getattr(self, other))} and {key}={shown(getattr(self, key))} "
                    f"are the same port: give each its own"
                )

    def gossip(self) -> GossipSettings:
        """The settings of membership: the preset with what was set by hand."""
        base = preset(self.preset)
        interval_s, timeout_s = self.probe_interval_s, self.ack_timeout_s
        try:
            return replace(
                base,
                probe_interval_s=base.probe_interval_s if interval_s is None else interval_s,
                ack_timeout_s=base.ack_timeout_s if timeout_s is None else timeout_s,
                weakly_up_after_s=self.weakly_up_after_s,
                leave_timeout_s=self.leave_timeout_s,
                vote_timeout_s=self.vote_timeout_s,
                downing=self.strategy() is not None,
                crash_evidence=self.crash_evidence,
            )
        except ValueError as error:
            raise SettingsError(str(error)) from error

    def strategy(self) -> Strategy | None:
        """The downing strategy; None at level none."""
        try:
            by_level = self.protection not in (None, "none") and self.downing == "none"
            return parse(DOWNING_BY_LEVEL if by_level else self.downing)
        except ValueError as error:
            raise SettingsError(f"downing={shown(self.downing)}: {error}") from error

    def downing_settings(self) -> DowningSettings:
        """The timings of downing and contact: the preset's with what was set by hand."""
        base = DOWNING_PRESETS[self.preset]
        gossip = self.gossip()
        by_hand: dict[str, Any] = {
            key: value
            for key, value in (("down_after_s", self.down_after_s), ("contact_s", self.contact_s))
            if value is not None
        }
        try:
            return DowningSettings(
                **(dict(base) | by_hand),
                down_all_when_unstable_s=self.down_all_when_unstable_s,
                ack_timeout_s=gossip.ack_timeout_s,
                gossip_interval_s=gossip.gossip_interval_s,
                stop_timeout_s=self.shutdown_timeout_s,
            )
        except ValueError as error:
            raise SettingsError(str(error)) from error

    @property
    def vote_timeout_s(self) -> float:
        """So long a leaver stays for a decision about an unreachable member."""
        down_after_s = self.down_after_s or DOWNING_PRESETS[self.preset].get("down_after_s", 5.0)
        return down_after_s + 5.0

    def singleton(self, role: str | None = None) -> SingletonSettings:
        """The settings of a singleton under these of the node."""
        try:
            return SingletonSettings(
                role=role,
                downing=self.strategy() is not None,
                hand_over_timeout_s=self.hand_over_timeout_s,
                acquire_retry_interval_s=self.acquire_retry_interval_s,
                stop_timeout_s=2 * self.stop_timeout_s,
                buffer_size=self.buffer_size,
            )
        except ValueError as error:
            raise SettingsError(str(error)) from error

    def _store(self) -> str:
        """Which lease store it is, without what only this member needs to reach it."""
        if self.lease is None:
            return "-"
        from lease.urls import from_url  # most nodes need none

        return from_url(self.lease).identity

    def agreement(self) -> tuple[tuple[str, str], ...]:
        """What all members must share to be admitted, as text for the refusal's reason."""
        strategy = self.strategy()
        timings = self.downing_settings()
        none = strategy is None
        unstable_s = timings.down_all_when_unstable_s
        return (
            ("protection", "none" if self.keys is None else "keys"),
            ("downing", "none" if none else str(strategy)),
            ("down_after_s", "-" if none else f"{timings.down_after_s:g}"),
            ("contact_s", "-" if none else f"{timings.contact_s:g}"),
            ("down_all_when_unstable_s", "-" if none or unstable_s is None else f"{unstable_s:g}"),
            # Each side of a split would get the lease of a store of its own.
            ("lease", self._store()),
            # A host without the lease and one with it would both act.
            ("leases_singletons", "yes" if self.leases_singletons else "no"),
            ("hand_over_timeout_s", f"{self.hand_over_timeout_s:g}"),
            ("crash_evidence", self.crash_evidence),
            # A receiver ends the connection of whoever sends more.
            ("frame_bytes_max", str(self.frame_bytes_max)),
        )


def refused_store(url: str, error: ValueError, key: str = "lease") -> SettingsError:
    """The URL of a store can not work, and why; without the password in it."""
    from lease.urls import shown as shown_url

    name, words = shown_url(url), str(error)
    return SettingsError(f"{key}={words}" if words.startswith(name) else f"{key}={name}: {words}")


def settings_from(settings: Settings | None = None, /, **values: Any) -> Settings:
    """`settings` as they are, or those made of `values`; what `ActorSystem(…)` is given.

    Raises `SettingsError` when both are given, for what is no `Settings`, for an unknown key
    (naming the nearest real one), and for what `Settings` refuses.
    """
    if settings is None:
        for name in values:
            if name not in setting_types():
                raise unknown_setting(name, name, str)
        return Settings(**values)
    if not isinstance(settings, Settings):
        raise SettingsError(
            f"settings={shown(settings)} is no Settings: give Settings(port=…), or the fields "
            "themselves by name"
        )
    if values:
        raise SettingsError(
            f"both settings and {', '.join(sorted(values))} were given: put all into one"
        )
    return settings


def split_seed(seed: str) -> tuple[str, int]:
    """`host:port`, `host` (port 25520) or `[v6]:port`, without brackets.

    Raises `SettingsError` for anything else; whether the name stands for an address is not asked.
    """
    host, port = parse_address("seed", seed, port=DEFAULT_PORT, example=DEFAULT_PORT)
    if port == 0 or is_wildcard(host):
        what = "port 0" if port == 0 else f"{host} (every interface)"
        raise SettingsError(
            f"seed={seed!r}: {what} is nobody's address: name one at which a member is reached"
        )
    return host, port


class _FieldType(NamedTuple):
    kind: type  # int, float, bool, str, or tuple for a list of text
    optional: bool  # None is a value too


@functools.cache
def _field_types() -> dict[str, _FieldType]:
    hints = typing.get_type_hints(Settings)
    return {field.name: _field_type(hints[field.name]) for field in fields(Settings)}


def _field_type(hint: object) -> _FieldType:
    origin = typing.get_origin(hint)
    if origin is types.UnionType or origin is typing.Union:
        (arm,) = (arm for arm in typing.get_args(hint) if arm is not types.NoneType)
        return _FieldType(_field_type(arm).kind, optional=True)
    plain = str if origin is Literal else origin or hint
    assert isinstance(plain, type), f"a setting of the type {hint} cannot be checked"
    return _FieldType(plain, optional=False)


def setting_types() -> dict[str, type]:
    """Each setting's plain type, in the order of the fields: int, float, bool, str, or tuple for a
    list of text. `X | None` counts as X: absent is what nobody sets."""
    return {name: kind for name, (kind, _) in _field_types().items()}


def check_type(where: str, value: object, kind: type) -> object:
    """`value` as a field of `kind` holds it: lists of text as tuples, paths as text.

    A whole number will do for seconds. Raises `SettingsError`, naming `where` it was given.
    """
    if isinstance(value, os.PathLike) and kind is str:
        value = os.fspath(value)
    if kind is tuple:
        return _checked_list(where, value)
    if kind is str and isinstance(value, str):
        if "\0" in value:
            raise SettingsError(f"{where}={shown(value)} has a zero byte in it: leave it out")
        return str.__str__(value)  # of an enum's text: the text
    wanted: type | tuple[type, ...] = (int, float) if kind is float else kind
    if isinstance(value, wanted) and isinstance(value, bool) is (kind is bool):
        return value
    raise wrong_type(where, value, kind)


def _checked_list(where: str, value: object) -> tuple[object, ...]:
    if isinstance(value, str):
        raise SettingsError(
            f"{where}={shown(value)} is one text, not a list of text: write [{shown(value)}]"
        )
    if not isinstance(value, list | tuple | set | frozenset) or not all(
        isinstance(part, str) for part in value
    ):
        raise SettingsError(
            f'{where}={shown(value)} is no list of text: give for example ["one", "two"]'
        )
    in_order = sorted(value) if isinstance(value, set | frozenset) else value
    return tuple(check_type(where, part, str) for part in in_order)


def wrong_type(where: str, value: object, kind: type) -> SettingsError:
    """The error for a value that is not of `kind`."""
    wanted = _WANTED[kind]
    return SettingsError(f"{where}={shown(value)} is not {wanted}: give {wanted}")


def unknown_setting(where: str, word: str, spell: Callable[[str], str]) -> SettingsError:
    """The error for a key that is none. `word` is what was written, as a setting's name; `spell`
    writes a setting as its source does."""
    guess = nearest(word, setting_types())
    mend = f"did you mean {spell(guess)}?" if guess else "`python -m node --help` lists all"
    return SettingsError(f"{where} is no setting: {mend}")


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like `word`, None when none is."""
    import difflib  # only a mistake pays for it

    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)), None)


def shown(value: object) -> str:
    """`value` as an error shows it: never longer than a line."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        text = type(value).__name__
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def is_unicode(text: str) -> bool:
    """False for what was no text at its source: others could not read it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
