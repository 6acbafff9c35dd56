"""Enums, literals, dates, decimals, UUIDs, sets: what they look like on the wire, and what is
refused. Hostile input raises nothing but MessageError."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import subprocess
import sys
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NewType
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import MessageError
from node.messages import message
from node.schema import schema_of, value_schema


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"
    UNO = 1  # noqa: PIE796 - an alias of ONE


class Tone(enum.StrEnum):
    WARM = "warm"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Place(NamedTuple):
    x: int


@message("test.scalars.note")
class Note:
    text: str


@message("test.scalars.memo")
class Memo:
    at: dt.datetime


Meters = Annotated[float, "m"]
Height = NewType("Height", Annotated[int, "cm"])


@message("test.scalars.event")
class Event:
    id: UUID
    at: dt.datetime
    day: dt.date
    span: dt.timedelta
    price: Decimal
    size: Size
    level: Level
    mixed: Mixed
    tone: Tone
    mode: Literal["fast", "safe", 3, None, True, b"x"]
    names: set[str]
    ids: frozenset[UUID]
    by_day: dict[dt.date, Decimal]
    pair: tuple[dt.datetime, Size]
    far: Meters
    high: Height
    when: dt.datetime | dt.date | dt.timedelta | UUID | Decimal | str | float | None
    lists: list[int] | tuple[str, ...] | set[bytes] | dict[Level, int] | Note | Memo | None
    choice: Literal["auto"] | int | Literal["never"]


def through_wire(packed: object) -> Any:
    return msgpack.unpackb(msgpack.packb(packed), strict_map_key=False)


def there_and_back(annotation: Any, value: object) -> Any:
    schema = value_schema(annotation, "value")
    schema.check(value)
    return schema.unpack(through_wire(schema.pack(value)))


OFFSETS = st.integers(-1439, 1439).map(lambda m: dt.timezone(dt.timedelta(minutes=m)))
DATETIMES = st.datetimes(timezones=st.just(dt.UTC) | OFFSETS)
DECIMALS = st.decimals(allow_nan=False, min_value=-(10**9), max_value=10**9) | st.sampled_from(
    [Decimal("Infinity"), Decimal("-0"), Decimal("1E+999999"), Decimal("1.10")]
)
TEXT = st.text(max_size=5)
INT = st.integers(-(2**63), 2**64 - 1)
EVENTS = st.builds(
    Event,
    id=st.uuids(),
    at=DATETIMES,
    day=st.dates(),
    span=st.timedeltas(),
    price=DECIMALS,
    size=st.sampled_from(Size),
    level=st.sampled_from(Level),
    mixed=st.sampled_from(Mixed),
    tone=st.sampled_from(Tone),
    mode=st.sampled_from(["fast", "safe", 3, None, True, b"x"]),
    names=st.sets(TEXT, max_size=3),
    ids=st.frozensets(st.uuids(), max_size=3),
    by_day=st.dictionaries(st.dates(), DECIMALS, max_size=2),
    pair=st.tuples(DATETIMES, st.sampled_from(Size)),
    far=st.floats(allow_nan=False),
    high=INT,
    when=DATETIMES
    | st.dates()
    | st.timedeltas()
    | st.uuids()
    | DECIMALS
    | TEXT
    | st.floats(allow_nan=False)
    | st.none(),
    lists=st.lists(INT, max_size=2)
    | st.lists(TEXT, max_size=2).map(tuple)
    | st.sets(st.binary(max_size=3), max_size=2)
    | st.dictionaries(st.sampled_from(Level), INT, max_size=2)
    | st.builds(Note, TEXT)
    | st.builds(Memo, DATETIMES)
    | st.none(),
    choice=st.sampled_from(["auto", "never", 7]),
)
EXTENSIONS = st.builds(
    msgpack.ExtType,
    st.integers(0, 127) | st.integers(15, 21),
    st.binary(max_size=20) | st.sampled_from([b"1E999999999", b"NaN", b"sNaN", b"\xff" * 16]),
)
WIRE = st.recursive(
    st.none() | st.booleans() | INT | st.floats() | TEXT | st.binary(max_size=5) | EXTENSIONS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXT | st.integers(0, 9), inner, max_size=2)
    ),
    max_leaves=8,
)


@given(EVENTS)
def test_round_trip(sent: Event) -> None:
    schema = schema_of(Event)
    schema.check(sent)
    assert schema.check_and_pack(sent) == schema.pack(sent)
    back = schema.unpack(through_wire(schema.pack(sent)))
    assert back == sent
    assert [type(value) for value in _values(back)] == [type(value) for value in _values(sent)]


def _values(event: Event) -> list[object]:
    return [getattr(event, field.name) for field in dataclasses.fields(event)]


@given(EVENTS, st.lists(st.tuples(st.integers(0, 18), WIRE), min_size=1, max_size=3), WIRE)
def test_malformed_input_raises_nothing_but_message_error(
    sent: Event, changes: list[tuple[int, Any]], whole: Any
) -> None:
    """Whatever a peer sends: an object of checked fields, or MessageError."""
    schema = schema_of(Event)
    packed = schema.pack(sent)
    for place, value in changes:
        packed[place] = value
    for candidate in (packed, packed[: changes[0][0]], whole):
        try:
            made = schema.unpack(candidate)
        except MessageError:
            continue
        schema.check(made)


@pytest.mark.parametrize(
    ("annotation", "value", "wire"),
    [
        (Size, Size.LARGE, "l"),
        (Level, Level.HIGH, 2),
        (Mixed, Mixed.UNO, "ONE"),
        (Tone, Tone.WARM, "warm"),
        (Literal["a", 1], 1, 1),
        (Literal[Size.SMALL], Size.SMALL, "s"),
        (set[int], {7}, [7]),
        (set[Size] | list[int], {Size.SMALL}, ["[set]", ["s"]]),
        (Note | list[str] | None, Note("a"), ["test.scalars.note", ["a"]]),
        (Note | list[str] | None, ["a"], ["[list]", ["a"]]),
        (Note | None, Note("a"), ["a"]),
        (
            dt.datetime,
            dt.datetime(1970, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            msgpack.ExtType(16, bytes(8) + (7_200_000_000).to_bytes(8, "big")),
        ),
        (dt.date, dt.date(1, 1, 2), msgpack.ExtType(17, b"\0\0\0\2")),
        (
            dt.timedelta,
            dt.timedelta(-1, 2, 3),
            msgpack.ExtType(18, b"\xff\xff\xff\xff\0\0\0\2\0\0\0\3"),
        ),
        (UUID, UUID(int=5), msgpack.ExtType(19, bytes(15) + b"\5")),
        (Decimal, Decimal("-1.50"), msgpack.ExtType(20, b"-1.50")),
    ],
)
def test_packed_form_is_what_another_version_reads(
    annotation: Any, value: object, wire: object
) -> None:
    schema = value_schema(annotation, "value")
    assert schema.pack(value) == wire
    assert schema.pack_with_large(value) == wire
    assert there_and_back(annotation, value) == value


@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        (Size, "s", "value: expected Size, got str"),
        (Literal["a", 1], "b", r"value: expected Literal\['a', 1\], got 'b'"),
        (Literal["a", 1], True, "got True"),
        (Literal["a"], ["a"], "got \\['a'\\]"),
        (dt.datetime, dt.datetime(2026, 1, 1), "without time zone"),
        (dt.datetime, dt.date(2026, 1, 1), "expected datetime, got date"),
        (dt.date, dt.datetime.now(dt.UTC), "expected date, got datetime"),
        (dt.timedelta, 3, "expected timedelta, got int"),
        (UUID, str(UUID(int=1)), "expected UUID, got str"),
        (Decimal, 1.5, "expected Decimal, got float"),
        (Decimal, Decimal("sNaN"), "signalling"),
        (Decimal, Decimal("1E-1000000"), "exponent up to 999999"),
        (Decimal, Decimal("0E+1000000"), "exponent up to 999999"),
        (Decimal, Decimal(10**1100 + 1), "up to 1024 characters"),
        (set[int], frozenset([1]), r"expected set\[int\], got frozenset"),
        (frozenset[int], {1}, r"expected frozenset\[int\], got set"),
        (set[int], {2**64}, r"value\[\*\]: expected int, got an int beyond"),
        (set[int], {1, "a"}, r"value\[\*\]: expected int, got str"),
        (list[int] | set[int], (1,), r"expected list\[int\] \| set\[int\], got tuple"),
    ],
)
def test_wrong_value_is_told_at_tell(annotation: Any, value: object, text: str) -> None:
    with pytest.raises(MessageError, match=text):
        value_schema(annotation, "value").check(value)


@pytest.mark.parametrize(
    ("annotation", "wire", "text"),
    [
        (Size, "x", "'x' is no Size known here"),
        (Size, 1, "expected Size, got int"),
        (Size, ["s"], "expected Size, got list"),
        (Mixed, "TWELVE", "is no Mixed known here"),
        (Literal["a"], [], "expected Literal"),
        (Literal[1], True, "got True"),
        (set[list[int]], [[1]], "an item cannot be hashed"),
        (set[Any], [{}], "an item cannot be hashed"),
        (dt.datetime, msgpack.ExtType(16, b"1"), "value: no datetime"),
        (dt.datetime, msgpack.ExtType(16, b"\x7f" * 16), "value: no datetime"),
        (dt.datetime, msgpack.ExtType(16, b"\x7f" * 8 + bytes(8)), "value: no datetime"),
        (dt.datetime, msgpack.ExtType(17, b"\0\0\0\2"), "expected datetime, got ExtType"),
        (dt.datetime, 5, "expected datetime, got int"),
        (dt.date, msgpack.ExtType(17, bytes(4)), "value: no date"),
        (dt.timedelta, msgpack.ExtType(18, b"\x7f" * 12), "value: no timedelta"),
        (UUID, msgpack.ExtType(19, b"1"), "value: no UUID"),
        (Decimal, msgpack.ExtType(20, b"one"), "value: no Decimal"),
        (Decimal, msgpack.ExtType(20, b"\xff"), "value: no Decimal"),
        (Decimal, msgpack.ExtType(20, b"1" * 2000), "a decimal of 2000 characters"),
        (Decimal, msgpack.ExtType(20, b"1E99999999"), "exponent up to"),
        (UUID | Decimal, msgpack.ExtType(16, b""), r"expected UUID \| Decimal, got ExtType"),
        (list[int] | set[int], ["[dict]", []], r"got '\[dict\]'"),
        (list[int] | set[int], [1], "got list"),
        (Any, msgpack.ExtType(16, b""), "expected a plain value"),
    ],
)
def test_what_a_peer_sends_wrong_is_a_message_error(
    annotation: Any, wire: object, text: str
) -> None:
    with pytest.raises(MessageError, match=text):
        value_schema(annotation, "value").unpack(wire)


def test_a_datetime_keeps_instant_and_offset() -> None:
    winter = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=ZoneInfo("Europe/Berlin"))
    back = there_and_back(dt.datetime, winter)
    assert back == winter
    assert back.utcoffset() == dt.timedelta(hours=1)
    assert there_and_back(dt.datetime, dt.datetime.now(dt.UTC)).tzinfo is dt.UTC
    east = dt.timezone(dt.timedelta(hours=14))
    for edge in (dt.datetime.min, dt.datetime.max):
        assert there_and_back(dt.datetime, edge.replace(tzinfo=east)) == edge.replace(tzinfo=east)


def test_a_time_zone_that_fails_is_a_message_error() -> None:
    class Broken(dt.tzinfo):
        def utcoffset(self, _: dt.datetime | None) -> dt.timedelta:
            raise RuntimeError("no such zone")

        def dst(self, _: dt.datetime | None) -> None:
            return None

        def tzname(self, _: dt.datetime | None) -> str:
            return "broken"

    with pytest.raises(MessageError, match=r"its time zone fails .*no such zone"):
        value_schema(dt.datetime, "value").check(dt.datetime(2026, 1, 1, tzinfo=Broken()))


def test_decimals_keep_their_digits_also_beyond_the_precision_of_the_context() -> None:
    with decimal.localcontext(prec=3):
        assert str(there_and_back(Decimal, Decimal("1.2345600"))) == "1.2345600"
    assert there_and_back(Decimal, Decimal("NaN")).is_nan()


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (Access, "Access is a Flag and cannot travel"),
        (str | Size, "str and Size look the same on the wire"),
        (Literal["a"] | str, "look the same on the wire"),
        (Literal[Size.SMALL, "s"], "look the same on the wire"),
        (list[int] | list[str], "look the same on the wire"),
        (dict[str, int] | dict[int, str], "look the same on the wire"),
        (set[int] | Place, "decorate Place with @message"),
        (dt.time, "time cannot travel"),
        (tuple[int, *tuple[str, ...]], "cannot travel"),
    ],
)
def test_what_the_wire_cannot_tell_apart_is_refused_when_compiled(
    annotation: Any, text: str
) -> None:
    with pytest.raises(MessageError, match=text):
        value_schema(annotation, "value")


def test_containers_without_item_types_hold_any_plain_value() -> None:
    assert there_and_back(tuple, (1, [None])) == (1, [None])
    assert there_and_back(set, {1, "a"}) == {1, "a"}
    assert there_and_back(frozenset, frozenset([b"x"])) == frozenset([b"x"])


def test_a_class_that_does_not_use_them_loads_neither_decimal_nor_uuid() -> None:
    """A node starts without them: `node.schema` finds them by name."""
    text = "import sys, node.schema; sys.exit('uuid' in sys.modules or 'decimal' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", text], timeout=30, check=False).returncode == 0
