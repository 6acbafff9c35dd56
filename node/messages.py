"""Which classes travel: `@message` and the register of wire names, `Ask` and its answer type.

Decides: what a message class is (a frozen dataclass with slots), and that a wire name belongs to
one class. Does not decide how fields look on the wire: that is `node.schema`. Used by user code,
and by `node.schema` and `node.codec` to find a class by its name.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, dataclass_transform, get_args, get_origin

from node.errors import MessageError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}")


class Ask(Generic[T_co]):
    """Base of a message that is answered with a `T`: `class Add(Ask[int])`."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    cls: type
    scope: Mapping[str, object] | None  # names of the function that defined a local class
    entity_id: str | None = None  # the field that names the sharded entity it is for


_by_name: dict[str, _Entry] = {}
_by_class: dict[type, _Entry] = {}


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def message(name: str, *, entity_id: str | None = None) -> Callable[[type[T]], type[T]]:
    """Make the class a frozen dataclass with slots that travels under the wire name `name`.

    entity_id: the field with the id of the sharded entity that it is for; `Entities.tell` reads it.

    The name is what other processes know the class by: stable, and unique in the process. The
    same class imported again replaces itself. Raises `MessageError` (at import) when the name is
    taken by another class or is not a name.
    """
    if not isinstance(name, str):
        raise MessageError(
            f"@message needs a wire name and got {name!r}: write @message('some.name')"
        )
    if not _NAME.fullmatch(name):
        raise MessageError(
            f"{name!r} is not a wire name: use 1 to 128 letters, digits and _ . : / -, "
            f"such as 'jobs.schedule'"
        )
    scope = sys._getframe(1).f_locals

    def register(cls: type[T]) -> type[T]:
        made = dataclasses.dataclass(frozen=True, slots=True)(cls)
        if entity_id is not None and entity_id not in vars(made)["__dataclass_fields__"]:
            raise MessageError(
                f"{_qualified(made)} has no field {entity_id!r}: entity_id names the one with the "
                "id of the entity"
            )
        taken = _by_name.get(name)
        if taken is not None and _qualified(taken.cls) != _qualified(made):
            raise MessageError(
                f"the wire name {name!r} is used by {_qualified(taken.cls)} and by "
                f"{_qualified(made)}: give one of them another name"
            )
        if taken is not None:
            _by_class.pop(taken.cls, None)
        local = "<locals>" in made.__qualname__
        entry = _Entry(name, made, {**scope, made.__name__: made} if local else None, entity_id)
        _by_name[name] = _by_class[made] = entry
        return made

    return register


def message_class(name: str) -> type | None:
    """The class registered under a wire name, or None."""
    entry = _by_name.get(name)
    return None if entry is None else entry.cls


def wire_name(cls: type) -> str | None:
    """The wire name of a class; None when it is not (or no longer) a registered message."""
    entry = _by_class.get(cls)
    return None if entry is None else entry.name


def entity_field(cls: type) -> str | None:
    """The field with the id of the entity that such a message is for; None: it does not say."""
    entry = _by_class.get(cls)
    return None if entry is None else entry.entity_id


def defining_scope(cls: type) -> Mapping[str, object] | None:
    """Names seen where a message class inside a function was defined; None for a global one."""
    entry = _by_class.get(cls)
    return None if entry is None else entry.scope


def answer_annotation(cls: type) -> Any:
    """The `T` of the `Ask[T]` a class derives from, as written; None when it is no `Ask`."""
    for base in cls.__mro__:
        for generic in base.__dict__.get("__orig_bases__", ()):
            if get_origin(generic) is Ask:
                return get_args(generic)[0]
    return None


def _qualified(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
