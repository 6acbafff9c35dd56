"""Annotated classes as positional lists: checks, packing and unpacking, compiled once per class.

Decides: which annotations the wire can carry, how classes grow (fields are only ever appended; a
missing trailing field takes its default, an unknown one is ignored), and how an object is built
from its fields. Does not decide what one field looks like (`node.fields`, `node.scalars`), nor how
lists become bytes (`node.codec`, `node.wire`). Serves user messages (`@message`), control messages
(plain frozen dataclasses) and named tuples alike.

What a field may be: str, int (64 bits), float (takes an int), bool, bytes, None, `list[T]`,
`dict[K, V]`, `tuple[T, ...]`, `tuple[A, B]`, `set[T]`, `frozenset[T]`, an `Enum`, a `Literal`,
`datetime` with a time zone, `date`, `timedelta`, `UUID`, `Decimal`, a dataclass or named tuple of
such fields, `ActorRef`, `Any` or `object` (any plain value), and unions whose members the wire can
tell apart; of several classes in one union each needs a `@message` name. `Annotated` and `NewType`
are what they stand for.

Large `bytes` are packed in two ways: `pack` leaves them in the list, `pack_with_large` wraps each
in `Large`, so that the data lane can send it as a part of its own without looking for it.

Budget: a flat class of three fields is checked in 0.15 µs, packed in 0.1 µs, unpacked in 0.3 µs;
that is why code is generated, atoms are compared inline, and only other fields call a function.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from node import fields as kinds
from node.errors import MessageError
from node.fields import (
    ANY_NAME,
    DEPTH_MAX,
    LARGE_BYTES_MIN,
    SMALL,
    Convert,
    Extension,
    FieldKind,
    Large,
    wrong,
)
from node.messages import Ask, answer_annotation, defining_scope, wire_name
from node.scalars import SCALARS, enum_kind, literal_kind

__all__ = [
    "CHECKS",
    "DEPTH_MAX",
    "LARGE_BYTES_MIN",
    "Extension",
    "Large",
    "Schema",
    "ValueSchema",
    "answer_schema",
    "schema_of",
    "value_schema",
]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)


class _Check(Protocol[T_contra]):
    def __call__(self, obj: T_contra, depth: int = 0, /) -> None: ...


class _Pack(Protocol[T_contra]):
    def __call__(self, obj: T_contra, depth: int = 0, /) -> list[Any]: ...


class _Unpack(Protocol[T_co]):
    def __call__(self, packed: object, depth: int = 0, /) -> T_co: ...


@dataclass(frozen=True, slots=True)
class Schema(Generic[T]):
    """What is compiled for one class.

    `check(obj)` raises `MessageError` naming class, field, expected and met type. `pack(obj)`
    gives the positional list of an object that passed `check`; `pack_with_large(obj)` the same
    with large `bytes` as `Large` (map keys excepted), and is `pack` itself where no field can hold
    any; `check_and_pack(obj)` is `check` and that in one. `unpack(list)` builds an object out of
    what a peer sent (as msgpack read it; the object may keep lists and maps of it) and raises
    nothing but `MessageError`.
    """

    cls: type[T]
    check: _Check[T]
    pack: _Pack[T]
    pack_with_large: _Pack[T]
    check_and_pack: _Pack[T]
    unpack: _Unpack[T]


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """The same for a single value of an annotated type.

    `is_flat`: checking it costs next to nothing. `takes_any`: the type says nothing. `as_is`: a
    value of exactly this class that msgpack takes needs none of the functions; None = none does.
    """

    name: str
    check: Callable[[Any], None]
    pack: Callable[[Any], Any]
    pack_with_large: Callable[[Any], Any]
    unpack: Callable[[Any], Any]
    is_flat: bool
    takes_any: bool
    as_is: type | None = None


# Large bytes excepted: they are packed as `Large`.
_SAME_ON_THE_WIRE = ((int,), (str,), (bytes,), (bool,), (type(None),))

_compiled: dict[type, Schema[Any]] = {}


def schema_of(cls: type[T]) -> Schema[T]:
    """The schema of a dataclass or named tuple; compiled at the first call.

    Raises `MessageError` when a field's annotation is nothing the wire can carry.
    """
    try:
        return _compiled[cls]
    except KeyError:
        return _Compiler(defining_scope(cls)).schema(cls)


def answer_schema(cls: type) -> ValueSchema:
    """The schema of what an `Ask` class is answered with; any plain value for other classes."""
    return ANSWERS[cls]


class _Answers(dict[type, ValueSchema]):
    """message class → the schema of its answers."""

    def __missing__(self, cls: type) -> ValueSchema:
        annotation = answer_annotation(cls)
        found = self[cls] = value_schema(
            Any if annotation is None else annotation,
            f"answer to {cls.__name__}",
            module=cls.__module__,
            scope=defining_scope(cls),
        )
        return found


ANSWERS: dict[type, ValueSchema] = _Answers()
"""`ANSWERS[type(message)]` is `answer_schema`, without a call."""


def value_schema(
    annotation: Any, where: str, *, module: str = "", scope: Mapping[str, object] | None = None
) -> ValueSchema:
    """The schema of one value; `where` begins its error texts.

    `module` and `scope` are where a name written as text is looked up. Raises `MessageError`.
    """
    holder = type("Holder", (), {"__annotations__": {"value": annotation}, "__module__": module})
    kind = _Compiler(scope).kind(_hints(holder, scope, where)["value"], where)
    pack = _at_top(kind.pack)
    return ValueSchema(
        kind.name,
        lambda value: kind.check(value, 0),
        pack,
        pack if kind.pack_large is None else _at_top(kind.pack_large),
        lambda value: kind.unpack(value, 0),
        is_flat=kind.inline is not None and kind.pack is None,
        takes_any=kind.name == ANY_NAME,
        as_is=kind.types[0] if kind.types in _SAME_ON_THE_WIRE else None,
    )


def _at_top(pack: Convert | None) -> Callable[[Any], Any]:
    return (lambda value: value) if pack is None else (lambda value: pack(value, 0))


class _Checks(dict[type, Callable[[Any], None]]):
    """type → its check; classes that are no `@message` pass (they stay in the process)."""

    def __missing__(self, cls: type) -> Callable[[Any], None]:
        if wire_name(cls) is None:
            self[cls] = _pass
        else:
            self[cls] = schema_of(cls).check
        return self[cls]


def _pass(_value: object) -> None:
    return None


CHECKS: dict[type, Callable[[Any], None]] = _Checks()
"""`CHECKS[type(value)](value)` is the cheapest check of something that is about to be sent."""


def _hints(
    cls: type, scope: Mapping[str, object] | None, where: str | None = None
) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, localns=dict(scope) if scope else None)
    except Exception as error:
        raise MessageError(
            f"{where or cls.__qualname__}: an annotation cannot be resolved ({error}); define what "
            f"it names before the class, at module level"
        ) from error


class _Compiler:
    """Compiles one class and the classes in its fields; `scope` resolves names of local ones."""

    def __init__(self, scope: Mapping[str, object] | None) -> None:
        self._scope = scope
        self._open: list[type] = []

    def schema(self, cls: type[T]) -> Schema[T]:
        known = _compiled.get(cls)
        if known is not None:
            return known
        self._open.append(cls)
        hints = _hints(cls, defining_scope(cls) or self._scope)
        fields = [
            (field, self.kind(hints[field.name], f"{cls.__name__}.{field.name}"))
            for field in _fields(cls)
        ]
        self._open.pop()
        made = _generate(cls, fields)
        _compiled[cls] = made
        return made

    def kind(self, annotation: Any, where: str) -> FieldKind:
        annotation = _plain(annotation)
        origin = get_origin(annotation) or annotation
        args = get_args(annotation)
        if annotation is None or annotation is type(None):
            return kinds.none_kind(where)
        if annotation is float:
            return kinds.float_kind(where)
        if annotation in (str, int, bool, bytes):
            return kinds.atom(annotation, where)
        if annotation is Any or annotation is object:
            return kinds.any_kind(where)
        if origin is Union or origin is types.UnionType:
            return self._union(args, where)
        if origin is Literal:
            return self._literal(args, where)
        if isinstance(origin, type):
            is_bare = origin is annotation
            found = self._container(origin, (Any, ...) if is_bare else args, where) or self._class(
                origin, where
            )
            if found is not None:
                return found
        text = annotation.__qualname__ if isinstance(annotation, type) else str(annotation)
        raise MessageError(
            f"{where}: {text} cannot travel; use str, int, float, bool, bytes, None, list, dict, "
            f"tuple, set, Enum, Literal, datetime, date, timedelta, UUID, Decimal, ActorRef, a "
            f"dataclass or named tuple of these, or a union"
        )

    def _container(self, origin: type, args: tuple[Any, ...], where: str) -> FieldKind | None:
        if origin is dict:
            key, value = (str, Any) if args == (Any, ...) else args
            return kinds.dict_kind(
                self.kind(key, f"{where} key"), self.kind(value, f"{where}[*]"), where
            )
        if origin is tuple and args[1:] != (...,):
            items = [self.kind(arg, f"{where}[{i}]") for i, arg in enumerate(args)]
            return kinds.fixed_tuple_kind(items, where)
        if origin is list or origin is tuple or origin is set or origin is frozenset:
            item = self.kind(args[0], f"{where}[*]")
            if origin is list:
                return kinds.list_kind(item, where)
            if origin is tuple:
                return kinds.tuple_kind(item, where)
            return kinds.set_kind(origin, item, where)
        return None

    def _class(self, cls: type, where: str) -> FieldKind | None:
        scalar = SCALARS.get(f"{cls.__module__}.{cls.__qualname__}")
        if scalar is not None:
            return scalar(where)
        if issubclass(cls, Extension):
            return kinds.extension_kind(cls, where)
        if issubclass(cls, enum.Enum):
            return enum_kind(cls, where)
        if dataclasses.is_dataclass(cls) or _is_named_tuple(cls):
            return self._nested(cls, where)
        return None

    def _nested(self, cls: type, where: str) -> FieldKind:
        name = wire_name(cls)
        if cls in self._open:  # it contains itself: its functions exist only later
            return kinds.class_kind(
                cls,
                name,
                where,
                lambda value, depth: schema_of(cls).check(value, depth),
                lambda value, depth: schema_of(cls).pack(value, depth),
                lambda value, depth: schema_of(cls).pack_with_large(value, depth),
                lambda value, depth: schema_of(cls).unpack(value, depth),
            )
        made: Any = self.schema(cls)
        large = None if made.pack_with_large is made.pack else made.pack_with_large
        return kinds.class_kind(cls, name, where, made.check, made.pack, large, made.unpack)

    def _literal(self, values: tuple[Any, ...], where: str) -> FieldKind:
        return literal_kind(values, lambda cls: self.kind(cls, where), where)

    def _union(self, args: tuple[Any, ...], where: str) -> FieldKind:
        members = _members(args)
        if Any in members or object in members:
            return kinds.any_kind(where)
        literals = [arg for arg in members if get_origin(arg) is Literal]
        found = [self.kind(arg, where) for arg in members if arg not in literals]
        if literals:
            values = [value for literal in literals for value in get_args(literal)]
            found.append(self._literal(tuple(values), where))
        return kinds.union_kind(found, where)


def _plain(annotation: Any) -> Any:
    """What a `NewType` or `Annotated` stands for."""
    while True:
        if isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif get_origin(annotation) is Annotated:
            annotation = annotation.__origin__
        else:
            return annotation


def _members(args: tuple[Any, ...]) -> list[Any]:
    """The members of a union, those of unions behind a name among them."""
    found: dict[Any, None] = {}
    for arg in map(_plain, args):
        inner = get_origin(arg) in (Union, types.UnionType)
        found.update(dict.fromkeys(_members(get_args(arg)) if inner else [arg]))
    return list(found)


def _is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_field_defaults")


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    has_default: bool
    default: Callable[[], object]
    by_keyword: bool


def _fields(cls: type) -> list[_Field]:
    if _is_named_tuple(cls):
        shape: Any = cls
        defaults: dict[str, object] = shape._field_defaults
        return [
            _Field(name, name in defaults, _constant(defaults.get(name)), by_keyword=False)
            for name in shape._fields
        ]
    if not dataclasses.is_dataclass(cls):
        raise MessageError(f"{cls.__qualname__} is neither a dataclass nor a named tuple")
    found = []
    for field in dataclasses.fields(cls):
        by_keyword = field.kw_only is True
        if not field.init:
            raise MessageError(
                f"{cls.__name__}.{field.name}: a field with init=False cannot travel"
            )
        factory = field.default_factory
        if factory is not dataclasses.MISSING:
            found.append(_Field(field.name, True, factory, by_keyword))
        else:
            has_default = field.default is not dataclasses.MISSING
            found.append(_Field(field.name, has_default, _constant(field.default), by_keyword))
    return found


def _constant(value: object) -> Callable[[], object]:
    return lambda: value


# Generated code


def _generate(cls: type[T], fields: list[tuple[_Field, FieldKind]]) -> Schema[T]:
    """Write and compile the functions of a class; `d` is the depth at which an object lies."""
    name = cls.__name__
    space: dict[str, Any] = {
        "cls": cls,
        "wrong_class": lambda value: wrong(name, name, value),
        "wrong_list": lambda value: wrong(name, "a list of fields", value),
        "unpack_other": _unpack_other(cls, fields),
        "build": _build(cls, [field for field, _ in fields]),
        "Extension": Extension,
        "Large": Large,
        "SMALL": SMALL,
    }
    check = ["def check(o, d=0):", "  if type(o) is not cls: wrong_class(o)"]
    values = "".join(f"v{i}, " for i in range(len(fields)))
    unpack = [
        "def unpack(w, d=0):",
        "  if type(w) is not list: wrong_list(w)",
        f"  if len(w) != {len(fields)}: return unpack_other(w, d)",
        *([f"  {values}= w"] if fields else []),
    ]
    packed: list[str] = []
    packed_large: list[str] = []
    packed_checked: list[str] = []
    for i, (field, kind) in enumerate(fields):
        space |= {f"check{i}": kind.check, f"unpack{i}": kind.unpack}
        space |= {f"pack{i}": kind.pack, f"large{i}": kind.pack_large}
        unless = "" if kind.inline is None else f"if not ({kind.inline.format(v=f'v{i}')}): "
        check += [f"  v{i} = o.{field.name}", f"  {unless}check{i}(v{i}, d)"]
        unpack.append(f"  {unless}v{i} = unpack{i}(v{i}, d)")
        for value, into in ((f"o.{field.name}", packed_large), (f"v{i}", packed_checked)):
            into.append(
                _packed(value, kind.pack, kind.inline_pack, f"pack{i}")
                if kind.pack_large is None
                else _packed(value, kind.pack_large, kind.inline_large, f"large{i}")
            )
        packed.append(_packed(f"o.{field.name}", kind.pack, kind.inline_pack, f"pack{i}"))
    builder = _fast_builder(cls, [field.name for field, _ in fields], space)
    unpack += builder or [f"  return build([{values}])"]
    pack = [f"def pack(o, d=0): return [{', '.join(packed)}]", "pack_large = pack"]
    if packed_large != packed:
        pack[1] = f"def pack_large(o, d=0): return [{', '.join(packed_large)}]"
    both = [
        check[0].replace("check", "check_and_pack"),
        *check[1:],
        f"  return [{', '.join(packed_checked)}]",
    ]
    exec("\n".join([*check, *pack, *both, *unpack]), space)
    return Schema(
        cls,
        space["check"],
        space["pack"],
        space["pack_large"],
        space["check_and_pack"],
        space["unpack"],
    )


def _packed(value: str, pack: Convert | None, inline: str | None, function: str) -> str:
    """The expression that packs what the expression `value` gives."""
    if inline is not None:
        return inline.format(v=f"(x := {value})", f=function)
    return value if pack is None else f"{function}({value}, d)"


def _build(cls: type[T], fields: list[_Field]) -> Callable[[list[Any]], T]:
    """A function that calls the constructor with all values, in order."""
    keywords = [field.name for field in fields if field.by_keyword]
    order = [i for i, field in enumerate(fields) if not field.by_keyword]
    named = [i for i, field in enumerate(fields) if field.by_keyword]

    def build(values: list[Any]) -> T:
        try:
            if not named:
                return cls(*values)
            in_keywords = {name: values[i] for name, i in zip(keywords, named, strict=True)}
            return cls(*[values[i] for i in order], **in_keywords)
        except MessageError:
            raise
        except Exception as error:
            raise MessageError(
                f"{cls.__name__}: refused by its own constructor ({error})"
            ) from error

    return build


def _unpack_other(
    cls: type[T], fields: list[tuple[_Field, FieldKind]]
) -> Callable[[list[Any], int], T]:
    """A function that unpacks a list of fewer or more fields than the class has here."""
    build = _build(cls, [field for field, _ in fields])
    required = 1 + max((i for i, (f, _) in enumerate(fields) if not f.has_default), default=-1)

    def unpack(packed: list[Any], depth: int) -> T:
        if len(packed) < required:
            raise MessageError(
                f"{cls.__name__}: expected at least {required} fields, got {len(packed)}"
            )
        present = [
            kind.unpack(value, depth) for (_, kind), value in zip(fields, packed, strict=False)
        ]
        missing = fields[len(present) :]
        return build([*present, *(field.default() for field, _ in missing)])

    return unpack


def _fast_builder(cls: type, names: list[str], space: dict[str, Any]) -> list[str] | None:
    """Lines that build an object of `cls` without its constructor; None when that may do more.

    The constructor of a frozen class calls `object.__setattr__` per field, which costs three times
    as much as all the rest. A twin with the same slots is not frozen: an object is filled as one
    of its, and then becomes one of `cls`.
    """
    if cls.__bases__ == (tuple,) and _is_named_tuple(cls):
        if cls.__new__.__code__.co_name != "<lambda>":
            return None
        space["new_tuple"] = tuple.__new__
        return [f"  return new_tuple(cls, ({''.join(f'v{i}, ' for i in range(len(names)))}))"]
    init = getattr(cls.__init__, "__code__", None)  # type: ignore[misc]
    is_plain = (
        type(cls) is type
        and cls.__bases__ in ((object,), (Ask,))
        and cls.__dict__.get("__slots__") == tuple(names)
        and not hasattr(cls, "__post_init__")
        and "__new__" not in cls.__dict__
        and _is_frozen(cls)
        and init is not None
        and "__create_fn__" in init.co_qualname
        and set(init.co_varnames[1 : 1 + init.co_argcount + init.co_kwonlyargcount]) == set(names)
    )
    if not is_plain:
        return None
    space["Twin"] = type(cls.__name__, cls.__bases__, {"__slots__": tuple(names)})
    return [
        "  o = Twin()",
        *(f"  o.{name} = v{i}" for i, name in enumerate(names)),
        "  o.__class__ = cls",
        "  return o",
    ]


def _is_frozen(cls: Any) -> bool:
    return bool(cls.__dataclass_params__.frozen)
