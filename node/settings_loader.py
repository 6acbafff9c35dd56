"""Where settings come from: flags over environment over TOML file over defaults.

Decides the names (`--ack-timeout-s`, `TENURE_ACK_TIMEOUT_S`, `[ack] timeout_s` are one setting)
and turns text into the type of the field. Does not decide which values make sense:
`node.settings.Settings` does. Called by the command line; an application that embeds a system
and wants the same sources calls `load_settings` itself.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping

from node.errors import SettingsError
from node.settings import Settings

ENVIRONMENT_PREFIX = "TENURE_"

# Read by the command line before there are settings, so they are none.
NOT_SETTINGS = frozenset({"TENURE_LOOP", "TENURE_CONFIG"})

NO_DEFAULTS: Mapping[str, object] = types.MappingProxyType({})

_EXAMPLES: dict[type, str] = {
    int: "a whole number",
    float: "a number of seconds",
    bool: "true or false",
}
_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def setting_types() -> dict[str, type]:
    """Each setting's plain type, in the order of the fields: int, float, bool, str, or tuple for a
    list of text. `X | None` counts as X: absent is what nobody sets."""
    hints = typing.get_type_hints(Settings)
    return {field.name: _plain_type(hints[field.name]) for field in dataclasses.fields(Settings)}


def load_settings(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    toml_path: str | None = None,
    *,
    defaults: Mapping[str, object] = NO_DEFAULTS,
) -> Settings:
    """Settings out of all sources; each gives only what those before it left open.

    `flags` maps field names to values, None where a flag was not given. An empty environment
    variable counts as not set. `defaults` stand below all sources, above those of `Settings`.
    Raises `SettingsError` for an unknown key (naming the nearest real
    one), a value of the wrong type, a file that cannot be read, and what `Settings` refuses.
    """
    kinds = setting_types()
    values = dict(defaults)
    if toml_path is not None:
        values.update(_from_toml(toml_path, kinds))
    values.update(_from_environment(environ, kinds))
    values.update(_from_flags(flags, kinds))
    build: Callable[..., Settings] = Settings  # the values were held against the fields above
    return build(**values)


def _from_flags(flags: Mapping[str, object], kinds: Mapping[str, type]) -> dict[str, object]:
    values = {}
    for name, value in flags.items():
        if value is None:
            continue
        if name not in kinds:
            raise _unknown(flag_name(name), name, kinds, flag_name)
        if isinstance(value, str):
            values[name] = _from_text(flag_name(name), value, kinds[name])
        else:
            values[name] = _checked(flag_name(name), value, kinds[name])
    return values


def _from_environment(environ: Mapping[str, str], kinds: Mapping[str, type]) -> dict[str, object]:
    known = {environment_name(name): name for name in kinds}
    values = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in NOT_SETTINGS or text == "":
            continue
        if variable not in known:
            word = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            raise _unknown(f"environment variable {variable}", word, kinds, environment_name)
        name = known[variable]
        values[name] = _from_text(f"environment variable {variable}", text, kinds[name])
    return values


def _from_toml(path: str, kinds: Mapping[str, type]) -> dict[str, object]:
    import tomllib  # only those who name a file pay for it

    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise SettingsError(
            f"config={path!r} cannot be read ({error.strerror}): name a TOML file that exists"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"config={path!r} is no TOML: {error}") from error
    values: dict[str, object] = {}
    for key, value in _flattened(document, ""):
        where = f"{path}: {key}"
        name = key.replace(".", "_")
        if name not in kinds:
            raise _unknown(where, name, kinds, str)
        if name in values:
            raise SettingsError(f"{where} is given twice, plainly and in a section: keep one")
        values[name] = _checked(where, value, kinds[name])
    return values


def flag_name(setting: str) -> str:
    """`ack_timeout_s` → `--ack-timeout-s`; lists are given one by one: `seeds` → `--seed`."""
    singular = {"seeds": "seed", "roles": "role"}.get(setting, setting)
    return "--" + singular.replace("_", "-")


def environment_name(setting: str) -> str:
    """`ack_timeout_s` → `TENURE_ACK_TIMEOUT_S`."""
    return ENVIRONMENT_PREFIX + setting.upper()


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like `word`, None when none is."""
    import difflib  # only a mistake pays for it

    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)), None)


def _flattened(table: Mapping[str, object], prefix: str) -> Iterable[tuple[str, object]]:
    """(`section.key`, value) for each leaf."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _plain_type(hint: object) -> type:
    origin = typing.get_origin(hint)
    if origin is types.UnionType or origin is typing.Union:
        return _plain_type(next(arm for arm in typing.get_args(hint) if arm is not types.NoneType))
    if origin is typing.Literal:
        return str
    plain = origin or hint
    assert isinstance(plain, type), f"a setting of the type {hint} has no text form"
    return plain


def _from_text(where: str, text: str, kind: type) -> object:
    """`text` as `kind`; a list is separated by commas."""
    if kind is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind is str:
        return text
    if kind is bool and text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    try:
        if kind is int:
            return int(text)
        if kind is float:
            return float(text)
    except ValueError:
        pass
    raise _wrong_type(where, text, kind)


def _checked(where: str, value: object, kind: type) -> object:
    """`value` if it is of `kind` (an int will do for a float), lists as tuples of text."""
    if kind is tuple:
        if isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value):
            return tuple(value)
        raise SettingsError(f'{where}={value!r} is no list of text: give e.g. ["one", "two"]')
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is kind:
        return value
    raise _wrong_type(where, value, kind)


def _wrong_type(where: str, value: object, kind: type) -> SettingsError:
    wanted = _EXAMPLES.get(kind, "text")
    return SettingsError(f"{where}={value!r} is not {wanted}: give {wanted}")


def _unknown(
    where: str, word: str, kinds: Iterable[str], spell: Callable[[str], str]
) -> SettingsError:
    """`word` is what was written, as a setting's name; `spell` writes one as the source does."""
    guess = nearest(word, kinds)
    mend = f"did you mean {spell(guess)}?" if guess else "`python -m node --help` lists all"
    return SettingsError(f"{where} is no setting: {mend}")
