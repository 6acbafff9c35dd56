"""Every setting of a node: name, default, bounds. A wrong one stops the start, naming the mend.

Decides what is valid alone and together. Does not decide where a value comes from: that is
`node.settings_loader`. Built by users, the command line and the testkit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from gossip.settings import PRESETS, GossipSettings, preset
from node.errors import SettingsError
from singleton.settings import SingletonSettings

DEFAULT_PORT = 25520
PROTOCOL_MIN = 1
PROTOCOL_MAX = 1


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
    hand_over_timeout_s: float = 10.0
    stop_timeout_s: float = 5.0
    leave_timeout_s: float = 5.0
    shutdown_timeout_s: float = 20.0
    buffer_size: int = 1000
    frame_bytes_max: int = 8 * 1024 * 1024

    def __post_init__(self) -> None:
        # Lists are what people write; inside they are tuples.
        object.__setattr__(self, "seeds", tuple(self.seeds))
        object.__setattr__(self, "roles", tuple(self.roles))
        self._check_names()
        self._check_ports()
        self._check_choices()
        for name in (
            "weakly_up_after_s", "hand_over_timeout_s", "stop_timeout_s", "leave_timeout_s",
            "shutdown_timeout_s", "buffer_size", "frame_bytes_max",
        ):  # fmt: skip
            value = getattr(self, name)
            if not 0 < value < 1e9:
                raise SettingsError(f"{name}={value} must be greater than 0: give a positive one")
        if self.frame_bytes_max < 64 * 1024:
            raise SettingsError(
                f"frame_bytes_max={self.frame_bytes_max} must be at least 65536: a full view of "
                "the cluster has to fit"
            )
        self.gossip()
        self.singleton()

    def _check_names(self) -> None:
        if not self.cluster_name or len(self.cluster_name) > 255:
            raise SettingsError(f"cluster_name={self.cluster_name!r} must have 1 to 255 characters")
        if len(self.name) > 255:
            raise SettingsError(f"name={self.name[:20]!r}… must not exceed 255 characters")
        for role in self.roles:
            if not role or len(role) > 255:
                raise SettingsError(f"roles: {role!r} must have 1 to 255 characters")

    def _check_ports(self) -> None:
        for key, port in (("port", self.port or 0), ("data_port", self.data_port)):
            if not 0 <= port <= 65_535:
                raise SettingsError(f"{key}={port} must lie between 0 (chosen) and 65535")
        if self.port is None:
            if self.seeds:
                raise SettingsError(
                    f"seeds={list(self.seeds)} without port: a member needs a port of its own; "
                    f"give port={DEFAULT_PORT}, or leave out the seeds for a local system"
                )
        elif not self.seeds and not self.found and self.state_dir is None:
            raise SettingsError(
                f"seeds=[] with port={self.port}: nobody to ask for the cluster; give the "
                "addresses of its members, your own too (--seed HOST:PORT), or begin a new one "
                "with found=True (--found)"
            )

    def _check_choices(self) -> None:
        for key, value, choices in (
            ("log", self.log, ("text", "json")),
            ("log_level", self.log_level, ("debug", "info", "warning", "error")),
            ("preset", self.preset, tuple(PRESETS)),
            ("crash_evidence", self.crash_evidence, ("same-host", "never")),
        ):
            if value not in choices:
                raise SettingsError(f"{key}={value!r} is none of {', '.join(choices)}: take one")

    def gossip(self) -> GossipSettings:
        """The settings of membership: the preset with what was set by hand."""
        base = preset(self.preset)
        try:
            return replace(
                base,
                probe_interval_s=self.probe_interval_s or base.probe_interval_s,
                ack_timeout_s=self.ack_timeout_s or base.ack_timeout_s,
                weakly_up_after_s=self.weakly_up_after_s,
                leave_timeout_s=self.leave_timeout_s,
                crash_evidence=self.crash_evidence,
            )
        except ValueError as error:
            raise SettingsError(str(error)) from error

    def singleton(self, role: str | None = None) -> SingletonSettings:
        """The settings of a singleton under these of the node."""
        try:
            return SingletonSettings(
                role=role,
                hand_over_timeout_s=self.hand_over_timeout_s,
                stop_timeout_s=2 * self.stop_timeout_s,
                buffer_size=self.buffer_size,
            )
        except ValueError as error:
            raise SettingsError(str(error)) from error

    def agreement(self) -> tuple[tuple[str, str], ...]:
        """What all members must share to be admitted, as text for the refusal's reason."""
        return (
            ("protection", "none"),
            ("hand_over_timeout_s", f"{self.hand_over_timeout_s:g}"),
            ("crash_evidence", self.crash_evidence),
        )
