"""Errors users meet. Each text says what happened, why, and what to do."""

from __future__ import annotations


class TenureError(Exception):
    """Root of every error this project raises on purpose."""


class SettingsError(TenureError, ValueError):
    """A setting is wrong; the start is refused. Names key, value and mend."""


class AddressInUseError(TenureError):
    """A port is taken by another process."""


class JoinRefusedError(TenureError):
    """A member answered our join with a refusal; `reason` has both values."""


class MessageError(TenureError, TypeError):
    """A message class or a message's field is not what the wire can carry."""


class AskTimeoutError(TenureError, TimeoutError):
    """No answer came within `timeout_s`."""


class ActorFailedError(TenureError):
    """The actor raised while it handled the ask; `type_name` and `text` tell what."""

    def __init__(self, type_name: str, text: str) -> None:
        super().__init__(f"{type_name}: {text}")
        self.type_name = type_name
        self.text = text


class UnhandledMessageError(TenureError):
    """The actor has no handler for this message type and no `receive`."""


class DeadActorError(TenureError):
    """The actor is stopped, or there never was one at this path."""


class AuthorityLostError(TenureError):
    """The actor lost its authority while it handled the ask: what it had begun may have happened,
    and no answer of it counts. Ask again what can be done twice, or is fenced."""


class AuthorityLost(BaseException):
    """Raised in a coroutine of an actor in place of its next step, and by `Authority.check`: the
    actor may not act any more. Let it pass; it is no failure of the actor."""


class AuthorityTooShortError(TenureError):
    """The work was not begun: authority does not last as long as it needs, or nobody can prove it
    now. Try again, or do it in shorter parts."""


class MailboxFullError(TenureError):
    """A bounded mailbox has no room: an ask, or a tell to an actor that wants it to fail."""


class LinkFullError(TenureError):
    """Too much waits for the other node, or for its answers: this message was not sent."""


class SendTimeoutError(TenureError, TimeoutError):
    """`send` found no room within `timeout_s`; the message was not sent."""


class WrongProcessError(TenureError, RuntimeError):
    """A system was used in a process that was forked from its own after it had started."""


class WrongThreadError(TenureError, RuntimeError):
    """A ref was used on another thread than that of its system's event loop."""


class NoSeedError(TenureError):
    """No seed's name resolves to an address."""


class EntityStoreUnavailableError(TenureError):
    """Nobody can say which entities are remembered: the store is down, too slow, or its answer was
    lost. An update that ends so may have happened, and may happen later still: repeat it."""


class EntityStoreFullError(TenureError):
    """The shard remembers as many entities as one may; nothing of the update was done. Spread the
    entities over more shards, or remember fewer."""
