"""Actors that find each other across processes. Start with `ActorSystem`, `Actor` and `on`.

Everything public is importable from here; names are loaded when they are first used, so that the
client commands of `python -m node` do not load a node.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from node.actor import Actor, Context, Terminated, on
    from node.authority import Authority
    from node.entity_ref import EntityRef
    from node.errors import (
        ActorFailedError,
        AddressInUseError,
        AskTimeoutError,
        AuthorityLost,
        AuthorityLostError,
        AuthorityTooShortError,
        DeadActorError,
        EntityStoreFullError,
        EntityStoreUnavailableError,
        JoinRefusedError,
        LinkFullError,
        MailboxFullError,
        MessageError,
        NoSeedError,
        SendTimeoutError,
        SettingsError,
        TenureError,
        UnhandledMessageError,
        WrongProcessError,
        WrongThreadError,
    )
    from node.events import ActorFailed, DeadLetter, LoopBlocked, Why
    from node.messages import Ask, message
    from node.ref import ActorRef
    from node.routers import Broadcast, ConsistentHash, Pool, RandomChoice, RoundRobin, Router
    from node.settings import Settings
    from node.sharding import Entities
    from node.supervision import AllForOne, Escalate, Restart, Resume, Stop, StopCause, StopReason
    from node.system import ActorSystem

_HOMES = {
    "node.actor": ("Actor", "Context", "Terminated", "on"),
    "node.authority": ("Authority",),
    "node.entity_ref": ("EntityRef",),
    "node.errors": (
        "ActorFailedError",
        "AddressInUseError",
        "AskTimeoutError",
        "AuthorityLost",
        "AuthorityTooShortError",
        "AuthorityLostError",
        "DeadActorError",
        "EntityStoreFullError",
        "EntityStoreUnavailableError",
        "JoinRefusedError",
        "LinkFullError",
        "MailboxFullError",
        "MessageError",
        "NoSeedError",
        "SendTimeoutError",
        "SettingsError",
        "TenureError",
        "UnhandledMessageError",
        "WrongProcessError",
        "WrongThreadError",
    ),
    "node.events": ("ActorFailed", "DeadLetter", "LoopBlocked", "Why"),
    "node.messages": ("Ask", "message"),
    "node.ref": ("ActorRef",),
    "node.routers": ("Broadcast", "ConsistentHash", "Pool", "RandomChoice", "RoundRobin", "Router"),
    "node.settings": ("Settings",),
    "node.sharding": ("Entities",),
    "node.supervision": (
        "AllForOne",
        "Escalate",
        "Restart",
        "Resume",
        "Stop",
        "StopCause",
        "StopReason",
    ),
    "node.system": ("ActorSystem",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Actor",
    "ActorFailed",
    "ActorFailedError",
    "ActorRef",
    "ActorSystem",
    "AddressInUseError",
    "AllForOne",
    "Ask",
    "AskTimeoutError",
    "Authority",
    "AuthorityLost",
    "AuthorityLostError",
    "AuthorityTooShortError",
    "Broadcast",
    "ConsistentHash",
    "Context",
    "DeadActorError",
    "DeadLetter",
    "Entities",
    "EntityRef",
    "EntityStoreFullError",
    "EntityStoreUnavailableError",
    "Escalate",
    "JoinRefusedError",
    "LinkFullError",
    "LoopBlocked",
    "MailboxFullError",
    "MessageError",
    "NoSeedError",
    "Pool",
    "RandomChoice",
    "Restart",
    "Resume",
    "RoundRobin",
    "Router",
    "SendTimeoutError",
    "Settings",
    "SettingsError",
    "Stop",
    "StopCause",
    "StopReason",
    "TenureError",
    "Terminated",
    "UnhandledMessageError",
    "Why",
    "WrongProcessError",
    "WrongThreadError",
    "message",
    "on",
]


def __getattr__(name: str) -> object:
    """Load a public name at its first use. Raises AttributeError for others."""
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'node' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value
