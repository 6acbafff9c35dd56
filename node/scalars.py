"""Kinds of single values beyond the plain ones: enums, literals, dates, spans, decimals, UUIDs.

Decides: their wire form. Does not decide which annotation means which kind: that is `node.schema`,
its only caller. Each has a form of its own, so that a union of any of them is read without doubt:

- an enum is the value of its member where all its values are str, or all are int; else the name;
- a literal is its value;
- `datetime` (with a time zone), `date`, `timedelta`, `UUID` and `Decimal` are extensions 16 to 20.

A datetime keeps its instant and its offset from UTC, not the name of its zone. One without a zone
is refused: it means another instant on each host. `decimal` and `uuid` are imported only by who
uses them.
"""

from __future__ import annotations

import datetime as dt
import enum
import struct
from collections.abc import Callable
from typing import Any, NoReturn

import msgpack

from node.errors import MessageError
from node.fields import INT_MAX, INT_MIN, FieldKind, wrong

DATETIME_CODE = 16
DATE_CODE = 17
TIMEDELTA_CODE = 18
UUID_CODE = 19
DECIMAL_CODE = 20

DECIMAL_CHARACTERS_MAX = 1_024
DECIMAL_EXPONENT_MAX = 999_999
"""Largest power of ten of a decimal: what follows, `int()` first, costs memory in proportion."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_DATETIME = struct.Struct("!qq")
_DATE = struct.Struct("!I")
_TIMEDELTA = struct.Struct("!iII")


def enum_kind(cls: type[enum.Enum], where: str) -> FieldKind:
    """A member of an enum."""
    name = cls.__name__
    if issubclass(cls, enum.Flag):
        raise MessageError(
            f"{where}: {name} is a Flag and cannot travel; send its int, or a list of an Enum"
        )
    values = [member._value_ for member in cls]
    by_wire: dict[Any, enum.Enum]
    wire: type
    if all(type(value) is str for value in values):
        wire, source = str, "_value_"
        by_wire = {member._value_: member for member in cls}
    elif all(type(value) is int and INT_MIN <= value <= INT_MAX for value in values):
        wire, source = int, "_value_"
        by_wire = {member._value_: member for member in cls}
    else:
        wire, source = str, "_name_"
        by_wire = dict(cls.__members__)

    def check(value: object, _depth: int) -> None:
        if type(value) is not cls:
            wrong(where, name, value)

    def pack(value: enum.Enum, _depth: int) -> object:
        return getattr(value, source)

    def unpack(value: object, _depth: int) -> object:
        if type(value) is not wire:
            wrong(where, name, value)
        member = by_wire.get(value)
        if member is None:
            raise MessageError(f"{where}: {_short(value)} is no {name} known here")
        return member

    return FieldKind(name, (cls,), (wire,), check, unpack, pack, inline_pack=f"({{v}}).{source}")


def _short(value: object) -> str:
    return repr(value)[:100]


def literal_kind(
    values: tuple[Any, ...], kind_of: Callable[[type], FieldKind], where: str
) -> FieldKind:
    """One of the values of a `Literal`; `kind_of` gives the kind of one's type."""
    name = f"Literal[{', '.join(map(_short, values))}]"
    kinds = {type(value): kind_of(type(value)) for value in values}
    packed: dict[tuple[type, Any], Any] = {}
    unpacked: dict[tuple[type, Any], Any] = {}
    for value in values:
        pack_value = kinds[type(value)].pack
        wire = value if pack_value is None else pack_value(value, 0)
        if unpacked.setdefault((type(wire), wire), value) is not value:
            raise MessageError(
                f"{where}: {_short(value)} and {_short(unpacked[type(wire), wire])} look the same "
                f"on the wire; leave one of them out"
            )
        packed[type(value), value] = wire
    of_wires = {cls for cls, _ in unpacked}

    def check(value: object, _depth: int) -> None:
        if type(value) not in kinds or (type(value), value) not in packed:
            _no_literal(where, name, value)

    def pack(value: object, _depth: int) -> object:
        return packed[type(value), value]

    def unpack(value: object, _depth: int) -> object:
        # Only then it can be hashed for sure.
        if type(value) not in of_wires or (type(value), value) not in unpacked:
            _no_literal(where, name, value)
        return unpacked[type(value), value]

    is_plain = all(kind.pack is None for kind in kinds.values())
    return FieldKind(
        name,
        tuple(kinds),
        tuple(wire for kind in kinds.values() for wire in kind.wires),
        check,
        unpack,
        None if is_plain else pack,
    )


def _no_literal(where: str, name: str, value: object) -> NoReturn:
    raise MessageError(f"{where}: expected {name}, got {_short(value)}")


def _extension(
    cls: type,
    code: int,
    where: str,
    check: Callable[[Any], None],
    write: Callable[[Any], bytes],
    read: Callable[[bytes], object],
) -> FieldKind:
    """A class as extension `code`; `check` looks at an instance, `read` may raise anything."""
    name = cls.__name__

    def check_value(value: object, _depth: int) -> None:
        if not isinstance(value, cls):
            wrong(where, name, value)
        check(value)

    def pack(value: Any, _depth: int) -> msgpack.ExtType:
        # Not by its constructor: that checks code and data once more, at twice the price.
        return tuple.__new__(msgpack.ExtType, (code, write(value)))

    def unpack(value: Any, _depth: int) -> object:
        if type(value) is not msgpack.ExtType or value.code != code:
            wrong(where, name, value)
        try:
            return read(value.data)
        except MessageError:
            raise
        except Exception as error:
            raise MessageError(f"{where}: no {name} ({_short(error)})") from error

    return FieldKind(name, (cls,), (code,), check_value, unpack, pack)


def datetime_kind(where: str) -> FieldKind:
    """An instant and its offset from UTC, both in µs."""

    def offset(value: dt.datetime) -> dt.timedelta:
        try:
            found = value.utcoffset()
        except Exception as error:
            raise MessageError(f"{where}: its time zone fails ({_short(error)})") from error
        if found is None:
            raise MessageError(
                f"{where}: a datetime without time zone means another instant on each host; give "
                f"it one, such as datetime.now(UTC)"
            )
        return found

    def check(value: dt.datetime) -> None:
        offset(value)

    def write(value: dt.datetime) -> bytes:
        offset_us = offset(value) // _MICROSECOND
        return _DATETIME.pack((value - _EPOCH) // _MICROSECOND, offset_us)

    def read(data: bytes) -> dt.datetime:
        instant_us, offset_us = _DATETIME.unpack(data)
        if not offset_us:
            return _EPOCH + dt.timedelta(0, 0, instant_us)
        # By the local time: that in UTC may lie before the first year, or after the last.
        local = _EPOCH.replace(tzinfo=None) + dt.timedelta(0, 0, instant_us + offset_us)
        return local.replace(tzinfo=dt.timezone(dt.timedelta(0, 0, offset_us)))

    return _extension(dt.datetime, DATETIME_CODE, where, check, write, read)


def date_kind(where: str) -> FieldKind:
    """The number of a day; a datetime is none."""

    def check(value: dt.date) -> None:
        if isinstance(value, dt.datetime):
            wrong(where, "date", value)

    def write(value: dt.date) -> bytes:
        return _DATE.pack(value.toordinal())

    def read(data: bytes) -> dt.date:
        return dt.date.fromordinal(*_DATE.unpack(data))

    return _extension(dt.date, DATE_CODE, where, check, write, read)


def timedelta_kind(where: str) -> FieldKind:
    """Days, seconds and µs, as the class keeps them."""

    def write(value: dt.timedelta) -> bytes:
        return _TIMEDELTA.pack(value.days, value.seconds, value.microseconds)

    def read(data: bytes) -> dt.timedelta:
        return dt.timedelta(*_TIMEDELTA.unpack(data))

    return _extension(dt.timedelta, TIMEDELTA_CODE, where, _always, write, read)


def _always(_value: object) -> None:
    return None


def uuid_kind(where: str) -> FieldKind:
    """Its 16 bytes."""
    from uuid import UUID

    def write(value: UUID) -> bytes:
        return value.bytes

    def read(data: bytes) -> UUID:
        return UUID(bytes=data)

    return _extension(UUID, UUID_CODE, where, _always, write, read)


def decimal_kind(where: str) -> FieldKind:
    """Its digits as text, NaN and infinity too; no signalling NaN, which raises where it is met."""
    from decimal import Decimal

    def check(value: Decimal) -> None:
        if value.is_snan():
            raise MessageError(f"{where}: a signalling NaN cannot travel")
        if value.is_finite() and abs(value.adjusted()) > DECIMAL_EXPONENT_MAX:
            raise MessageError(
                f"{where}: a decimal travels with an exponent up to {DECIMAL_EXPONENT_MAX}, "
                f"this one has {value.adjusted()}"
            )
        if len(Decimal.__str__(value)) > DECIMAL_CHARACTERS_MAX:
            raise MessageError(
                f"{where}: a decimal travels with up to {DECIMAL_CHARACTERS_MAX} characters; "
                f"send a longer one as str"
            )

    def write(value: Decimal) -> bytes:
        return Decimal.__str__(value).encode("ascii")

    def read(data: bytes) -> Decimal:
        if len(data) > DECIMAL_CHARACTERS_MAX:
            raise MessageError(f"{where}: a decimal of {len(data)} characters")
        made = Decimal(data.decode("ascii"))
        check(made)
        return made

    return _extension(Decimal, DECIMAL_CODE, where, check, write, read)


SCALARS: dict[str, Callable[[str], FieldKind]] = {
    "datetime.datetime": datetime_kind,
    "datetime.date": date_kind,
    "datetime.timedelta": timedelta_kind,
    "uuid.UUID": uuid_kind,
    "decimal.Decimal": decimal_kind,
}
"""Kinds by full class name: looking one up imports nothing."""
