"""Kinds of fields: what one annotated value must be, and what it looks like on the wire.

Decides: the checks and the wire form of plain values, containers, classes and unions. Does not
decide which annotation means which kind, nor how classes are compiled: that is `node.schema`, its
only caller besides `node.scalars`, which adds enums, dates, decimals and UUIDs.

A wire value is what msgpack reads: None, bool, int, float, str, bytes, list, dict, an extension.
What no kind accepts is a `MessageError`; nothing else is raised, whatever a peer sends.

Budget: a list of atoms is checked at the speed of `map(type, …)`; other items cost one call each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import msgpack

from node.errors import MessageError

DEPTH_MAX = 32
LARGE_BYTES_MIN = 32 * 1024
"""From this length on `pack_with_large` wraps a `bytes` value in `Large`."""

INT_MIN = -(2**63)
INT_MAX = 2**64 - 1
ANY_NAME = "any plain value"


class Extension:
    """Base of values which the codec carries as one opaque msgpack extension (actor refs)."""

    __slots__ = ()


class Large:
    """A `bytes` value of `LARGE_BYTES_MIN` or more, which may travel outside the packed list.

    Packers do not know it: what packs the list gives a `default=` that takes it out, or says why
    not. The reader must find plain `bytes` in its place.
    """

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


Check = Callable[[Any, int], None]
Convert = Callable[[Any, int], Any]


@dataclass(frozen=True, slots=True)
class FieldKind:
    """One annotated type. Functions take (value, depth); `pack` None = the value as it is.

    `types` are met in memory, `wires` on the wire (an int: the code of an extension). `inline` is
    an expression over `{v}`: where it holds, the value is good and the same on both sides, and no
    function is called. `exact`: each value of exactly this type is good (an int: of 64 bits) and
    the same on both sides. `tag` tells a kind that is a list on the wire from others in a union.

    `pack_large` is `pack` with large bytes wrapped; None = there can be none. `inline_pack` and
    `inline_large` are the same as expressions: `{v}` stands first and binds `x`, `{f}` is the
    function.
    """

    name: str
    types: tuple[type, ...]
    wires: tuple[type | int, ...]
    check: Check
    unpack: Convert
    pack: Convert | None = None
    inline: str | None = None
    pack_large: Convert | None = None
    inline_pack: str | None = None
    inline_large: str | None = None
    exact: type | None = None
    tag: str | None = None

    def packing(self, *, large: bool) -> Convert | None:
        """`pack_large` where it is asked for and there is one, else `pack`."""
        return self.pack_large if large and self.pack_large is not None else self.pack


def wrong(where: str, expected: str, value: object) -> NoReturn:
    """Raise the `MessageError` that names expected and met type."""
    got = type(value).__name__
    if type(value) is int and not INT_MIN <= value <= INT_MAX:
        got = "an int beyond 64 bits (send it as str or bytes)"
    raise MessageError(f"{where}: expected {expected}, got {got}")


def _too_deep(where: str) -> NoReturn:
    raise MessageError(f"{where}: nested deeper than {DEPTH_MAX} levels")


def _as_it_is(value: Any, _depth: int) -> Any:
    return value


# Atoms


def atom(cls: type, where: str) -> FieldKind:
    """str, bytes, bool or int."""
    condition = f"type({{v}}) is {cls.__name__}"
    if cls is int:
        condition += f" and {INT_MIN} <= {{v}} <= {INT_MAX}"

    def check(value: object, _depth: int) -> None:
        if not isinstance(value, cls) or (cls is int and isinstance(value, bool)):
            wrong(where, cls.__name__, value)
        if isinstance(value, int) and not INT_MIN <= value <= INT_MAX:
            wrong(where, "int", int(value))

    def unpack(value: object, depth: int) -> object:
        check(value, depth)
        return value

    made = FieldKind(cls.__name__, (cls,), (cls,), check, unpack, inline=condition, exact=cls)
    if cls is not bytes:
        return made
    return replace(
        made,
        pack_large=lambda value, _: value if len(value) < LARGE_BYTES_MIN else Large(value),
        inline_large=f"x if len({{v}}) < {LARGE_BYTES_MIN} else Large(x)",
    )


def float_kind(where: str) -> FieldKind:
    """A float; an int becomes one."""

    def check(value: object, _depth: int) -> None:
        unpack(value, 0)

    def unpack(value: object, _depth: int) -> float:
        if isinstance(value, float):
            return value
        if isinstance(value, int) and type(value) is not bool and INT_MIN <= value <= INT_MAX:
            return float(value)
        wrong(where, "float", value)

    condition = "type({v}) is float"
    return FieldKind("float", (float,), (float,), check, unpack, inline=condition, exact=float)


def none_kind(where: str) -> FieldKind:
    """None."""

    def check(value: object, _depth: int) -> None:
        if value is not None:
            wrong(where, "None", value)

    none = type(None)
    return FieldKind("None", (none,), (none,), check, check, inline="{v} is None", exact=none)


def extension_kind(cls: type, where: str) -> FieldKind:
    """What the codec itself carries."""

    def check(value: object, _depth: int) -> None:
        if not isinstance(value, cls):
            wrong(where, cls.__name__, value)

    def unpack(value: object, depth: int) -> object:
        check(value, depth)
        return value

    return FieldKind(
        cls.__name__, (cls,), (cls,), check, unpack, inline="isinstance({v}, Extension)"
    )


# Any plain value

SMALL = frozenset((type(None), bool, int, float, str))
"""Types of plain values that neither are nor hold bytes."""
_GOOD = frozenset((type(None), bool, float, str, bytes))
_KEYS = frozenset((str, int, bytes))


def any_kind(where: str) -> FieldKind:
    """A plain value, to any depth up to `DEPTH_MAX`."""

    def check(value: object, depth: int) -> None:
        kind = type(value)
        if kind in _GOOD:
            return
        if isinstance(value, int) and kind is int and INT_MIN <= value <= INT_MAX:
            return
        if depth >= DEPTH_MAX:
            _too_deep(where)
        if isinstance(value, list):
            items: Iterable[object] = value
        elif isinstance(value, dict):
            if not _KEYS.issuperset(map(type, value)):
                for key in value:
                    if type(key) not in _KEYS:
                        wrong(f"{where} key", "str, int or bytes", key)
            for key in value:
                if type(key) is int:
                    check(key, depth)
            items = value.values()
        elif isinstance(value, Extension):
            return
        else:
            wrong(where, "a plain value (None, bool, int, float, str, bytes, list, dict)", value)
        for item in items:
            if type(item) not in _GOOD:
                check(item, depth + 1)

    def unpack(value: object, depth: int) -> object:
        check(value, depth)
        return value

    every = (type(None), bool, int, float, str, bytes, list, dict, Extension)
    return FieldKind(
        ANY_NAME,
        every,
        every,
        check,
        unpack,
        pack_large=_wrap_large,
        inline_large="x if type({v}) in SMALL else {f}(x, d)",
    )


def _wrap_large(value: Any, _depth: int = 0) -> Any:
    """A plain value with large bytes in it wrapped; itself where there are none."""
    if not _holds_large(value):
        return value
    if isinstance(value, list):
        return [_wrap_large(item) for item in value]
    if isinstance(value, dict):
        return {key: _wrap_large(item) for key, item in value.items()}
    return Large(value)


def _holds_large(value: object) -> bool:
    if isinstance(value, bytes):
        return len(value) >= LARGE_BYTES_MIN
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return False
    for item in value:  # noqa: SIM110 - a generator costs twice as much
        if type(item) not in SMALL and _holds_large(item):
            return True
    return False


# Containers


def _check_all(item: FieldKind) -> Callable[[Collection[Any], int], None]:
    """A function that checks each of many items."""
    check_item, exact = item.check, item.exact

    def one_by_one(values: Collection[Any], depth: int) -> None:
        for each in values:
            check_item(each, depth)

    if exact is None:
        return one_by_one
    only = {exact}

    def at_once(values: Collection[Any], depth: int) -> None:
        if not only.issuperset(map(type, values)):
            one_by_one(values, depth)

    def ints_at_once(values: Collection[int], depth: int) -> None:
        is_good = only.issuperset(map(type, values)) and (
            not values or (min(values) >= INT_MIN and max(values) <= INT_MAX)
        )
        if not is_good:
            one_by_one(values, depth)

    return ints_at_once if exact is int else at_once


def _unpack_all(item: FieldKind) -> Callable[[list[Any], int], list[Any]]:
    """A function that unpacks each of many items; it may return the list it was given."""
    unpack_item = item.unpack
    if item.exact is None:
        return lambda values, depth: [unpack_item(each, depth) for each in values]
    only = {item.exact}
    return lambda values, depth: (
        values
        if only.issuperset(map(type, values))
        else [unpack_item(each, depth) for each in values]
    )


def _pack_all(pack_item: Convert | None) -> Callable[[Iterable[Any], int], list[Any]]:
    """A function that makes the list of the packed items."""
    if pack_item is None:
        return lambda values, _depth: list(values)
    return lambda values, depth: [pack_item(each, depth + 1) for each in values]


def list_kind(item: FieldKind, where: str) -> FieldKind:
    """`list[T]`: a list."""
    made = _items_kind(list, f"list[{item.name}]", item, where)
    return made if item.pack is not None else replace(made, pack=None)


def tuple_kind(item: FieldKind, where: str) -> FieldKind:
    """`tuple[T, ...]`: a list."""
    return _items_kind(tuple, f"tuple[{item.name}, ...]", item, where)


def set_kind(cls: type, item: FieldKind, where: str) -> FieldKind:
    """`set[T]` or `frozenset[T]`: a list, in no order; what it holds twice counts once."""
    made = _items_kind(cls, f"{cls.__name__}[{item.name}]", item, where)
    unpack_items = made.unpack

    def unpack(value: object, depth: int) -> object:
        try:
            return unpack_items(value, depth)
        except MessageError:
            raise
        except Exception as error:
            raise MessageError(f"{where}: an item cannot be hashed ({error})") from error

    return replace(made, unpack=unpack)


def _items_kind(cls: type[Any], name: str, item: FieldKind, where: str) -> FieldKind:
    check_items, unpack_items = _check_all(item), _unpack_all(item)

    def check(value: Any, depth: int) -> None:
        if not isinstance(value, cls):
            wrong(where, name, value)
        if depth >= DEPTH_MAX:
            _too_deep(where)
        check_items(value, depth + 1)

    def unpack(value: Any, depth: int) -> Any:
        if type(value) is not list:
            wrong(where, name, value)
        if depth >= DEPTH_MAX:
            _too_deep(where)
        made = unpack_items(value, depth + 1)
        return made if cls is list else cls(made)

    return FieldKind(
        name,
        (cls,),
        (list,),
        check,
        unpack,
        _pack_all(item.pack),
        pack_large=None if item.pack_large is None else _pack_all(item.pack_large),
        tag=f"[{cls.__name__}]",
    )


def fixed_tuple_kind(items: list[FieldKind], where: str) -> FieldKind:
    """`tuple[A, B]`: a list of as many."""
    name = f"tuple[{', '.join(item.name for item in items) or '()'}]"

    def check(value: object, depth: int) -> None:
        if not isinstance(value, tuple) or len(value) != len(items):
            _wrong_length(where, name, value)
        if depth >= DEPTH_MAX:
            _too_deep(where)
        for item, each in zip(items, value, strict=True):
            item.check(each, depth + 1)

    def packing(*, large: bool) -> Convert:
        packs = [item.packing(large=large) for item in items]

        def pack(value: tuple[Any, ...], depth: int) -> list[Any]:
            return [
                each if pack_item is None else pack_item(each, depth + 1)
                for pack_item, each in zip(packs, value, strict=True)
            ]

        return pack

    def unpack(value: object, depth: int) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(items):
            _wrong_length(where, name, value)
        if depth >= DEPTH_MAX:
            _too_deep(where)
        return tuple(
            [item.unpack(each, depth + 1) for item, each in zip(items, value, strict=True)]
        )

    has_large = any(item.pack_large for item in items)
    return FieldKind(
        name,
        (tuple,),
        (list,),
        check,
        unpack,
        packing(large=False),
        pack_large=packing(large=True) if has_large else None,
        tag="[tuple]",
    )


def _wrong_length(where: str, name: str, value: object) -> NoReturn:
    if isinstance(value, list | tuple):
        raise MessageError(f"{where}: expected {name}, got {len(value)} items")
    wrong(where, name, value)


def dict_kind(key: FieldKind, item: FieldKind, where: str) -> FieldKind:
    """`dict[K, V]`: a map where msgpack can hash the keys when it reads them; else a list of
    pairs."""
    name = f"dict[{key.name}, {item.name}]"
    plain = key.types in ((str,), (int,), (bytes,)) and key.pack is None
    check_keys, check_items = _check_all(key), _check_all(item)
    unpack_key, unpack_item = key.unpack, item.unpack
    pack_key = key.pack or _as_it_is
    has_atoms = key.exact is not None and item.exact is not None
    of_keys, of_items = {key.exact}, {item.exact}

    def check(value: object, depth: int) -> None:
        if not isinstance(value, dict):
            wrong(where, name, value)
        if depth >= DEPTH_MAX:
            _too_deep(where)
        check_keys(value.keys(), depth + 1)
        check_items(value.values(), depth + 1)

    def packing(*, large: bool) -> Convert:
        pack_item = item.packing(large=large) or _as_it_is
        if plain:
            return lambda value, depth: {k: pack_item(v, depth + 1) for k, v in value.items()}
        return lambda value, depth: [
            [pack_key(k, depth + 1), pack_item(v, depth + 1)] for k, v in value.items()
        ]

    def unpack_map(value: object, depth: int) -> dict[Any, Any]:
        if type(value) is not dict:
            wrong(where, name, value)
        if depth >= DEPTH_MAX:
            _too_deep(where)
        if (
            has_atoms
            and of_keys.issuperset(map(type, value))
            and of_items.issuperset(map(type, value.values()))
        ):
            return value
        return {unpack_key(k, depth + 1): unpack_item(v, depth + 1) for k, v in value.items()}

    def unpack_pairs(value: object, depth: int) -> dict[Any, Any]:
        if type(value) is not list:
            wrong(where, name, value)
        if depth >= DEPTH_MAX:
            _too_deep(where)
        made = {}
        for pair in value:
            if type(pair) is not list or len(pair) != 2:
                wrong(where, f"{name} as pairs", pair)
            made[_hashable(unpack_key(pair[0], depth + 1), where)] = unpack_item(pair[1], depth + 1)
        return made

    return FieldKind(
        name,
        (dict,),
        (dict,) if plain else (list,),
        check,
        unpack_map if plain else unpack_pairs,
        None if plain and item.pack is None else packing(large=False),
        pack_large=None if item.pack_large is None else packing(large=True),
        tag="[dict]",
    )


def _hashable(key: object, where: str) -> object:
    try:
        hash(key)
    except Exception as error:
        raise MessageError(f"{where} key: cannot be hashed ({error})") from error
    return key


# Classes


def class_kind(
    cls: type,
    tag: str | None,
    where: str,
    check_fields: Check,
    pack_fields: Convert,
    pack_large_fields: Convert | None,
    unpack_fields: Convert,
) -> FieldKind:
    """A class of fields: a list of them. `tag` is its wire name."""

    def check(value: object, depth: int) -> None:
        if type(value) is not cls:
            wrong(where, cls.__name__, value)
        if depth >= DEPTH_MAX:
            _too_deep(where)
        check_fields(value, depth + 1)

    def unpack(value: object, depth: int) -> object:
        if type(value) is not list:
            wrong(where, cls.__name__, value)
        if depth >= DEPTH_MAX:
            _too_deep(where)
        return unpack_fields(value, depth + 1)

    # Packing does not count the depth: what it packs was checked.
    return FieldKind(
        cls.__name__,
        (cls,),
        (list,),
        check,
        unpack,
        pack_fields,
        pack_large=pack_large_fields,
        tag=tag,
    )


# Unions


def union_kind(kinds: list[FieldKind], where: str) -> FieldKind:
    """One of several kinds, found by the type in memory and on the wire.

    Of several kinds that are lists on the wire each is `[tag, list]`. Raises `MessageError` when
    two look the same.
    """
    lists = [kind for kind in kinds if list in kind.wires]
    if len(lists) > 1:
        kinds = [*(kind for kind in kinds if kind not in lists), _tagged(lists, where)]
    by_type: dict[type, FieldKind] = {}
    by_wire: dict[type | int, FieldKind] = {}
    for kind in kinds:
        for wire in kind.wires:
            other = by_wire.setdefault(wire, kind)
            if other is not kind:
                _look_the_same(where, other, kind)
        by_type.update(dict.fromkeys(kind.types, kind))
    if float in by_type:
        by_type.setdefault(int, by_type[float])
    if float in by_wire:
        by_wire.setdefault(int, by_wire[float])
    names = " | ".join(kind.name for kind in kinds)

    def find(value: object) -> FieldKind:
        return _by_type(by_type, value) or wrong(where, names, value)

    def check(value: object, depth: int) -> None:
        find(value).check(value, depth)

    def pack(value: object, depth: int) -> object:
        pack_member = find(value).pack
        return value if pack_member is None else pack_member(value, depth)

    def pack_large(value: object, depth: int) -> object:
        pack_member = find(value).packing(large=True)
        return value if pack_member is None else pack_member(value, depth)

    def unpack(value: Any, depth: int) -> object:
        if type(value) is msgpack.ExtType:
            kind = by_wire.get(value.code)
        else:
            kind = _by_type(by_wire, value)
        if kind is None:
            wrong(where, names, value)
        return kind.unpack(value, depth)

    same = all(kind.pack is None for kind in kinds)
    large = [kind for kind in kinds if kind.pack_large is not None]
    only_bytes = same and [kind.types for kind in large] == [(bytes,)]
    # A partial fast path is fine: what no expression accepts goes through the functions.
    inlines = [f"({kind.inline})" for kind in kinds if kind.inline is not None]
    return FieldKind(
        names,
        tuple(by_type),
        tuple(by_wire),
        check,
        unpack,
        None if same else pack,
        inline=" or ".join(inlines) or None,
        pack_large=pack_large if large else None,
        inline_large=f"x if type({{v}}) is not bytes or len(x) < {LARGE_BYTES_MIN} else Large(x)"
        if only_bytes
        else None,
    )


def _by_type(table: dict[Any, FieldKind], value: object) -> FieldKind | None:
    for cls in type(value).__mro__:
        kind = table.get(cls)
        if kind is not None and (cls is type(value) or type(value) is not bool):
            return kind
    return None


def _look_the_same(where: str, one: FieldKind, other: FieldKind) -> NoReturn:
    raise MessageError(
        f"{where}: {one.name} and {other.name} look the same on the wire; wrap one of them in a "
        f"@message"
    )


def _tagged(kinds: list[FieldKind], where: str) -> FieldKind:
    """Several lists in one union: `[tag, list]`; the tag of a class is its wire name."""
    by_tag: dict[str, FieldKind] = {}
    by_type: dict[type, FieldKind] = {}
    for kind in kinds:
        if kind.tag is None:
            raise MessageError(
                f"{where}: of several classes in a union each needs a wire name; decorate "
                f"{kind.name} with @message"
            )
        other = by_tag.setdefault(kind.tag, kind)
        if other is not kind:
            _look_the_same(where, other, kind)
        by_type.update(dict.fromkeys(kind.types, kind))
    names = " | ".join(kind.name for kind in kinds)

    def find(value: object) -> FieldKind:
        return _by_type(by_type, value) or wrong(where, names, value)

    def check(value: object, depth: int) -> None:
        find(value).check(value, depth)

    def packing(*, large: bool) -> Convert:
        def pack(value: object, depth: int) -> list[Any]:
            kind = find(value)
            pack_list = kind.packing(large=large)
            return [kind.tag, value if pack_list is None else pack_list(value, depth)]

        return pack

    def unpack(value: object, depth: int) -> object:
        if type(value) is not list or len(value) != 2 or type(value[0]) is not str:
            wrong(where, names, value)
        kind = by_tag.get(value[0])
        if kind is None:
            raise MessageError(f"{where}: expected {names}, got {value[0][:100]!r}")
        return kind.unpack(value[1], depth)

    return FieldKind(
        names,
        tuple(by_type),
        (list,),
        check,
        unpack,
        packing(large=False),
        pack_large=packing(large=True) if any(kind.pack_large for kind in kinds) else None,
    )
