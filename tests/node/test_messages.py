"""`@message` and the register of wire names."""

from __future__ import annotations

import dataclasses

import pytest

from node.errors import MessageError
from node.messages import Ask, answer_annotation, message, message_class, wire_name


@message("test.message.point")
class Point:
    x: int
    y: int = 0


def test_message_is_a_frozen_dataclass_with_slots() -> None:
    point = Point(1)
    assert point == Point(1, 0)
    assert hash(point) == hash(Point(1, 0))
    assert not hasattr(point, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 2  # type: ignore[misc]  # that is the test


def test_name_leads_to_class_and_back() -> None:
    assert message_class("test.message.point") is Point
    assert wire_name(Point) == "test.message.point"
    assert message_class("test.message.nobody") is None
    assert wire_name(int) is None


def test_derived_class_is_no_message_without_a_name_of_its_own() -> None:
    class Derived(Point):
        pass

    assert wire_name(Derived) is None


def test_name_taken_by_another_class_is_an_error_that_names_both() -> None:
    with pytest.raises(MessageError, match=r"test_messages\.Point.*test_messages\..*Other"):

        @message("test.message.point")
        class Other:
            pass

    assert message_class("test.message.point") is Point


def test_same_class_imported_again_replaces_itself() -> None:
    def load() -> type:
        @message("test.message.reloaded")
        class Reloaded:
            x: int

        return Reloaded

    first, second = load(), load()
    assert message_class("test.message.reloaded") is second
    assert wire_name(first) is None


@pytest.mark.parametrize("name", ["", " a", "a b", "é", "a" * 129, ".a", "a\n"])
def test_bad_name_is_refused(name: str) -> None:
    with pytest.raises(MessageError, match="wire name"):
        message(name)


def test_answer_type_is_found_through_bases() -> None:
    @message("test.message.base_ask")
    class Base(Ask[int]):
        pass

    class Derived(Base):
        pass

    assert answer_annotation(Derived) is int
    assert answer_annotation(Point) is None


def test_decorator_without_a_name_says_how_to_write_it() -> None:
    with pytest.raises(MessageError, match=r"write @message\('some\.name'\)"):

        @message  # type: ignore[arg-type]  # that is the test
        class Nameless:
            pass
