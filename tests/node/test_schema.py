"""Checks, packing and unpacking of fields; what a peer sends raises nothing but MessageError."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
from typing import Any, NamedTuple, NewType

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip.membership import Member, NodeId, Status, Tombstone
from node.errors import MessageError
from node.messages import Ask, message
from node.schema import (
    CHECKS,
    DEPTH_MAX,
    LARGE_BYTES_MIN,
    Large,
    answer_schema,
    schema_of,
    value_schema,
)

UserId = NewType("UserId", str)


class Color(enum.IntEnum):
    RED = 1
    BLUE = 2


class Spot(NamedTuple):
    x: int
    label: str = "-"


@message("test.schema.line")
class Line:
    item: str
    count: int = 1


@message("test.schema.other")
class Other:
    flag: bool


@message("test.schema.order")
class Order(Ask[Line]):
    id: str
    size: int
    price: float
    urgent: bool
    blob: bytes
    nothing: None
    tags: list[str]
    by_name: dict[str, int]
    by_spot: dict[Spot, Color]
    pairs: tuple[tuple[int, str], ...]
    fixed: tuple[int, float]
    color: Color
    spot: Spot
    line: Line
    lines: list[Line]
    maybe: int | None
    either: str | int | list[int]
    one_of: Line | Other | None
    anything: Any
    user: UserId
    more: float | None = None
    made: list[int] = dataclasses.field(default_factory=list)


def order(**changes: Any) -> Order:
    values: dict[str, Any] = {
        "id": "o",
        "size": 2**64 - 1,
        "price": 1.5,
        "urgent": True,
        "blob": b"\x00",
        "nothing": None,
        "tags": ["a", "b"],
        "by_name": {"a": 1},
        "by_spot": {Spot(1): Color.RED},
        "pairs": ((1, "a"), (2, "b")),
        "fixed": (1, 2.0),
        "color": Color.BLUE,
        "spot": Spot(3, "c"),
        "line": Line("x"),
        "lines": [Line("y", 2)],
        "maybe": None,
        "either": [1],
        "one_of": Other(flag=True),
        "anything": {"a": [None, 1.0, b"x", {1: True}]},
        "user": UserId("u"),
    }
    return Order(**{**values, **changes})


def through_wire(packed: object) -> Any:
    return msgpack.unpackb(msgpack.packb(packed), strict_map_key=False)


def test_every_kind_of_field_survives_the_wire() -> None:
    schema = schema_of(Order)
    sent = order()
    schema.check(sent)
    assert schema.unpack(through_wire(schema.pack(sent))) == sent


def test_packed_form_is_positional() -> None:
    """What another version reads: the order of fields is the protocol."""
    assert schema_of(Line).pack(Line("x", 3)) == ["x", 3]
    assert schema_of(Order).pack(order())[8:18] == [
        [[[1, "-"], 1]],
        [[1, "a"], [2, "b"]],
        [1, 2.0],
        2,
        [3, "c"],
        ["x", 1],
        [["y", 2]],
        None,
        [1],
        ["test.schema.other", [True]],
    ]


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("id", 3, "Order.id: expected str, got int"),
        ("size", True, "Order.size: expected int, got bool"),
        ("size", 1.0, "Order.size: expected int, got float"),
        ("size", 2**64, "Order.size: expected int, got an int beyond 64 bits"),
        ("size", -(2**63) - 1, "Order.size: expected int, got an int beyond 64 bits"),
        ("price", "1", "Order.price: expected float, got str"),
        ("price", True, "Order.price: expected float, got bool"),
        ("price", 2**70, "Order.price: expected float, got an int beyond 64 bits"),
        ("urgent", 1, "Order.urgent: expected bool, got int"),
        ("blob", "x", "Order.blob: expected bytes, got str"),
        ("nothing", 0, "Order.nothing: expected None, got int"),
        ("tags", ("a",), "Order.tags: expected list[str], got tuple"),
        ("tags", ["a", 1], "Order.tags[*]: expected str, got int"),
        ("by_name", {1: 1}, "Order.by_name key: expected str, got int"),
        ("by_name", {"a": "b"}, "Order.by_name[*]: expected int, got str"),
        ("pairs", ((1,),), "Order.pairs[*]: expected tuple[int, str], got 1 items"),
        ("fixed", (1, "x"), "Order.fixed[1]: expected float, got str"),
        ("color", 1, "Order.color: expected Color, got int"),
        ("spot", (1, "a"), "Order.spot: expected Spot, got tuple"),
        ("line", Other(flag=True), "Order.line: expected Line, got Other"),
        ("line", Line(5), "Line.item: expected str, got int"),  # type: ignore[arg-type]
        ("maybe", "x", "Order.maybe: expected int | None, got str"),
        ("maybe", True, "Order.maybe: expected int | None, got bool"),
        ("either", b"", "Order.either: expected str | int | list[int], got bytes"),
        ("one_of", order, "Order.one_of: expected None | Line | Other, got function"),
        ("anything", {1, 2}, "Order.anything: expected any plain value"),
        ("anything", {"a": (1,)}, "Order.anything: expected any plain value"),
        ("anything", {2.0: 1}, "Order.anything key: expected str, int or bytes, got float"),
        ("user", 1, "Order.user: expected str, got int"),
    ],
)
def test_wrong_field_is_named_with_expected_and_met_type(
    field: str, value: object, text: str
) -> None:
    wrong = order(**{field: value})
    with pytest.raises(MessageError) as caught:
        schema_of(Order).check(wrong)
    expected = text.replace("any plain value", "a plain value")
    assert str(caught.value).startswith(expected)
    for use in (CHECKS[Order], schema_of(Order).check_and_pack):
        with pytest.raises(MessageError) as again:
            use(wrong)
        assert str(again.value) == str(caught.value)


def test_float_takes_an_int_and_becomes_one_on_the_wire() -> None:
    schema = schema_of(Order)
    sent = order(price=3, more=4)
    schema.check(sent)
    back = schema.unpack(through_wire(schema.pack(sent)))
    assert (type(back.price), type(back.more)) == (float, float)


def test_classes_grow_at_the_end() -> None:
    """An older sender lacks trailing fields, a newer one has more: both are understood."""
    schema = schema_of(Order)
    packed = schema.pack(order())
    assert schema.unpack(packed[:-2]) == order()
    assert schema.unpack(packed[:-2]).made is not schema.unpack(packed[:-2]).made
    assert schema.unpack([*packed, "new"]) == order()
    with pytest.raises(MessageError, match="Order: expected at least 20 fields, got 19"):
        schema.unpack(packed[:19])


def test_unknown_enum_value_is_refused() -> None:
    with pytest.raises(MessageError, match=r"Order\.color: 9 is no Color known here"):
        schema_of(Order).unpack([*schema_of(Order).pack(order())[:11], 9, *[None] * 9])


@pytest.mark.parametrize("value", [None, 3, "x", {}, b"", 1.0])
def test_what_is_no_list_is_refused(value: object) -> None:
    with pytest.raises(MessageError, match="Line: expected a list of fields"):
        schema_of(Line).unpack(value)


def test_control_messages_use_the_same_schema() -> None:
    schema = schema_of(Member)
    member = Member(NodeId("h", 1, 2**64 - 1), roles=("a",), status=Status.LEAVING)
    schema.check(member)
    assert schema.unpack(through_wire(schema.pack(member))) == member
    assert schema_of(Tombstone).unpack([["h", 1, 2], 3, 1]).id == NodeId("h", 1, 2)
    with pytest.raises(MessageError, match=r"Tombstone\.cause: 77 is no Cause"):
        schema_of(Tombstone).unpack([["h", 1, 2], 3, 77])


def test_classes_inside_functions_and_recursive_ones_compile() -> None:
    @message("test.schema.leaf")
    class Leaf:
        value: int

    @message("test.schema.tree")
    class Tree(Ask[Leaf]):
        leaf: Leaf
        branches: list[Tree]

    schema = schema_of(Tree)
    sent = Tree(Leaf(1), [Tree(Leaf(2), [])])
    schema.check(sent)
    assert schema.unpack(through_wire(schema.pack(sent))) == sent
    assert answer_schema(Tree).name == "Leaf"

    deep = Tree(Leaf(0), [])
    for _ in range(DEPTH_MAX):
        deep = Tree(Leaf(0), [deep])
    with pytest.raises(MessageError, match="nested deeper than 32 levels"):
        schema.check(deep)


def test_depth_of_any_is_bounded_also_for_a_list_in_itself() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(MessageError, match="nested deeper than 32 levels"):
        value_schema(Any, "value").check(circle)


def test_annotations_that_cannot_travel_are_refused_when_compiled() -> None:
    @message("test.schema.deque")
    class WithDeque:
        names: collections.deque[str]

    @message("test.schema.ambiguous")
    class Ambiguous:
        value: tuple[int, int] | tuple[str, ...]

    @dataclasses.dataclass
    class Plain:
        x: int

    @message("test.schema.unnamed")
    class Unnamed:
        value: Plain | Line

    @message("test.schema.unresolved")
    class Unresolved:
        value: Missing  # type: ignore[name-defined]  # noqa: F821 - that is the test

    for cls, text in [
        (WithDeque, r"WithDeque\.names: collections.deque\[str\] cannot travel; use str"),
        (Ambiguous, r"Ambiguous\.value: .* look the same on the wire"),
        (Unnamed, r"decorate Plain with @message"),
        (Unresolved, "Missing"),
        (int, "int is neither a dataclass nor a named tuple"),
    ]:
        with pytest.raises(MessageError, match=text):
            schema_of(cls)


def test_constructor_that_refuses_is_a_message_error() -> None:
    @message("test.schema.positive")
    class Positive:
        value: int

        def __post_init__(self) -> None:
            if self.value < 0:
                raise ValueError("below zero")

    with pytest.raises(MessageError, match="Positive: refused by its own constructor"):
        schema_of(Positive).unpack([-1])


def test_objects_from_the_wire_are_like_those_of_the_constructor() -> None:
    """They are built without it where it only stores fields; nothing else may tell."""
    built, line = schema_of(Line).unpack(["x", 3]), Line("x", 3)
    assert (built, hash(built), repr(built), type(built)) == (line, hash(line), repr(line), Line)
    with pytest.raises(dataclasses.FrozenInstanceError):
        built.count = 4  # type: ignore[misc]  # that is the test
    assert dataclasses.replace(built, item="y") == Line("y", 3)
    assert isinstance(schema_of(Order).unpack(schema_of(Order).pack(order())), Ask)
    spot = schema_of(Spot).unpack([1, "a"])
    assert (spot, type(spot)) == (Spot(1, "a"), Spot)


def test_a_constructor_of_ones_own_is_called() -> None:
    @message("test.schema.doubled")
    class Doubled:
        value: int

        def __init__(self, value: int) -> None:
            object.__setattr__(self, "value", 2 * value)

    @message("test.schema.with-extra")
    class WithExtra:
        value: int
        extra: dataclasses.InitVar[int] = 7

        def __post_init__(self, extra: int) -> None:
            object.__setattr__(self, "value", self.value + extra)

    @message("test.schema.derived")
    class Derived(Line):
        more: int = 0

    @dataclasses.dataclass
    class Mutable:
        value: int

    assert schema_of(Doubled).unpack([2]).value == 4
    assert schema_of(WithExtra).unpack([2]).value == 9
    assert schema_of(Derived).unpack(["x", 1, 2]) == Derived("x", 1, 2)
    assert schema_of(Derived).unpack(["x"]) == Derived("x")
    assert schema_of(Mutable).unpack([2]) == Mutable(2)


def test_keyword_only_fields_and_no_fields() -> None:
    @message("test.schema.empty")
    class Empty:
        pass

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Keyword:
        a: int = 1
        b: str

    assert schema_of(Empty).unpack(schema_of(Empty).pack(Empty())) == Empty()
    assert schema_of(Keyword).unpack([2, "x"]) == Keyword(a=2, b="x")
    with pytest.raises(MessageError, match="at least 2 fields"):
        schema_of(Keyword).unpack([2])


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (int, 3, "x"),
        (None, None, 0),
        (str | None, None, 3),
        (list[Line], [Line("a")], [3]),
        (Line, Line("a"), Other(flag=True)),
        (Any, {"a": 1}, object()),
        (tuple[()], (), (1,)),
        (list, [1, "a"], {}),
        (dict, {"a": 1}, []),
        (dict[int, str], {1: "a"}, {"a": "a"}),
        (int | float, 1, "x"),
        (float | str, 1, None),
    ],
)
def test_single_values(annotation: Any, good: Any, bad: Any) -> None:
    schema = value_schema(annotation, "value")
    schema.check(good)
    assert schema.unpack(through_wire(schema.pack(good))) == good
    with pytest.raises(MessageError, match="value"):
        schema.check(bad)


LARGE = b"L" * LARGE_BYTES_MIN
SMALL = b"s" * (LARGE_BYTES_MIN - 1)


class Tip(NamedTuple):
    data: bytes


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (bytes, LARGE),
        (bytes | None, LARGE),
        (bytes | str | list[bytes], [LARGE]),
        (list[bytes], [SMALL, LARGE]),
        (tuple[bytes, ...], (LARGE, SMALL)),
        (tuple[int, bytes], (1, LARGE)),
        (dict[str, bytes], {"a": LARGE}),
        (dict[Color, bytes], {Color.RED: LARGE}),
        (Tip, Tip(LARGE)),
        (list[Tip | None], [None, Tip(LARGE)]),
        (Any, LARGE),
        (Any, {"a": [SMALL, {"b": LARGE}], "c": 1}),
    ],
)
def test_large_bytes_are_wrapped_where_asked_for_and_nowhere_else(
    annotation: Any, value: Any
) -> None:
    schema = value_schema(annotation, "value")
    holder = dataclasses.make_dataclass("Holder", [("value", annotation)])
    of_class: Any = schema_of(holder)
    met: list[bytes] = []

    def take_out(each: object) -> msgpack.ExtType:
        assert isinstance(each, Large)
        met.append(each.data)
        return msgpack.ExtType(9, b"")

    for packed in (
        schema.pack_with_large(value),
        of_class.pack_with_large(holder(value))[0],
        of_class.check_and_pack(holder(value))[0],
    ):
        met.clear()
        wire = msgpack.packb(packed, default=take_out)
        assert met == [LARGE]
        assert met[0] is LARGE
        back = msgpack.unpackb(wire, ext_hook=lambda code, _: LARGE, strict_map_key=False)
        assert schema.unpack(back) == value
        assert of_class.unpack([back]) == holder(value)
    for packed in (schema.pack(value), of_class.pack(holder(value))[0]):
        assert schema.unpack(through_wire(packed)) == value


def test_classes_without_bytes_have_one_way_to_pack() -> None:
    """They pay nothing for large values."""
    assert schema_of(Line).pack_with_large is schema_of(Line).pack
    assert schema_of(Tombstone).pack_with_large is schema_of(Tombstone).pack


def test_large_bytes_inside_a_class_that_contains_itself_are_found() -> None:
    @message("test.schema.chain")
    class Chain:
        next: Chain | None
        data: bytes

    packed = schema_of(Chain).pack_with_large(Chain(Chain(None, LARGE), b""))
    assert packed[0][1].data is LARGE


def test_answers_know_whether_they_are_cheap_to_check() -> None:
    assert answer_schema(Order).name == "Line"
    assert not answer_schema(Order).is_flat
    assert answer_schema(Line).takes_any


WIRE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=12,
)
TEXT = st.text(max_size=5)
INT = st.integers(-(2**63), 2**64 - 1)
LINES = st.builds(Line, TEXT, INT)
ORDERS = st.builds(
    Order,
    id=TEXT,
    size=INT,
    price=st.floats(allow_nan=False),
    urgent=st.booleans(),
    blob=st.binary(max_size=5),
    nothing=st.none(),
    tags=st.lists(TEXT, max_size=3),
    by_name=st.dictionaries(TEXT, INT, max_size=3),
    by_spot=st.dictionaries(st.builds(Spot, INT, TEXT), st.sampled_from(Color), max_size=2),
    pairs=st.lists(st.tuples(INT, TEXT), max_size=3).map(tuple),
    fixed=st.tuples(INT, st.floats(allow_nan=False)),
    color=st.sampled_from(Color),
    spot=st.builds(Spot, INT, TEXT),
    line=LINES,
    lines=st.lists(LINES, max_size=2),
    maybe=st.none() | INT,
    either=TEXT | INT | st.lists(INT, max_size=2),
    one_of=st.none() | LINES | st.builds(Other, st.booleans()),
    anything=WIRE.filter(lambda value: "nan" not in repr(value)),
    user=TEXT,
)


@settings(max_examples=60, deadline=None)
@given(ORDERS)
def test_round_trip(sent: Order) -> None:
    schema = schema_of(Order)
    schema.check(sent)
    assert schema.check_and_pack(sent) == schema.pack(sent)
    assert schema.unpack(through_wire(schema.pack(sent))) == sent


@settings(max_examples=200, deadline=None)
@given(ORDERS, st.lists(st.tuples(st.integers(0, 21), WIRE), min_size=1, max_size=3), WIRE)
def test_malformed_input_raises_nothing_but_message_error(
    sent: Order, changes: list[tuple[int, Any]], whole: Any
) -> None:
    """Whatever a peer sends: an object of checked fields, or MessageError."""
    schema = schema_of(Order)
    packed = schema.pack(sent)
    for place, value in changes:
        packed[place] = value
    for candidate in (packed, packed[: changes[0][0]], whole):
        try:
            made = schema.unpack(candidate)
        except MessageError:
            continue
        schema.check(made)
        assert not math.isnan(made.size)
