"""Where settings come from: flags over environment over TOML file over defaults.

Decides the names (`--ack-timeout-s`, `TENURE_ACK_TIMEOUT_S`, `[ack] timeout_s` are one setting)
and turns text into the type of the field. Does not decide which values make sense:
`node.settings.Settings` does. Called by the command line; an application that embeds a system
and wants the same sources calls `load_settings` itself.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Mapping

from node.errors import SettingsError
from node.settings import (
    Settings,
    check_type,
    setting_types,
    settings_from,
    unknown_setting,
    wrong_type,
)

ENVIRONMENT_PREFIX = "TENURE_"

# Read by the command line before there are settings, so they are none.
NOT_SETTINGS = frozenset({"TENURE_LOOP", "TENURE_CONFIG"})

# What Kubernetes gives every container of a namespace in which a Service is called `tenure`, or
# `tenure-` and more: TENURE_SERVICE_HOST, TENURE_PORT_25520_TCP_ADDR, TENURE_PORT=tcp://….
_SERVICE_NAME = re.compile(
    r"TENURE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_PORT_NAME = re.compile(r"TENURE_(\w+_)?PORT")
_SERVICE_PORT_VALUE = re.compile(r"(tcp|udp|sctp)://.*")

# A key of TOML is a text or a section, not both: inside its section the text has a name.
SECTIONS = {"lease.url": "lease", "downing.strategy": "downing"}

NO_DEFAULTS: Mapping[str, object] = types.MappingProxyType({})

_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def load_settings(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    toml_path: str | None = None,
    *,
    defaults: Mapping[str, object] = NO_DEFAULTS,
) -> Settings:
    """Settings out of all sources; each gives only what those before it left open.

    `flags` maps field names to values, None where a flag was not given. An empty environment
    variable counts as not set, and so do those of `service_variables`. `defaults` stand below all
    sources, above those of `Settings`. Raises `SettingsError` for an unknown key (naming the
    nearest real one), a value of the wrong type, a file that cannot be read, and what `Settings`
    refuses.
    """
    kinds = setting_types()
    values = dict(defaults)
    if toml_path is not None:
        values.update(_from_toml(toml_path, kinds))
    values.update(_from_environment(environ, kinds))
    values.update(_from_flags(flags, kinds))
    return settings_from(**values)


def service_variables(environ: Mapping[str, str]) -> list[str]:
    """The variables that Kubernetes sets for a Service whose name begins with `tenure`, sorted:
    they are spelled as settings are, and are none."""
    return sorted(
        variable
        for variable, text in environ.items()
        if _SERVICE_NAME.fullmatch(variable)
        or (_SERVICE_PORT_NAME.fullmatch(variable) and _SERVICE_PORT_VALUE.fullmatch(text))
    )


def _from_flags(flags: Mapping[str, object], kinds: Mapping[str, type]) -> dict[str, object]:
    values = {}
    for name, value in flags.items():
        if value is None:
            continue
        if name not in kinds:
            raise unknown_setting(flag_name(name), name, flag_name)
        if isinstance(value, str):
            values[name] = _from_text(flag_name(name), value, kinds[name])
        else:
            values[name] = check_type(flag_name(name), value, kinds[name])
    return values


def _from_environment(environ: Mapping[str, str], kinds: Mapping[str, type]) -> dict[str, object]:
    known = {environment_name(name): name for name in kinds}
    none = NOT_SETTINGS.union(service_variables(environ))
    values = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in none or text == "":
            continue
        if variable not in known:
            word = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            raise unknown_setting(f"environment variable {variable}", word, environment_name)
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
    except (ValueError, RecursionError) as error:  # of tomllib, of text that is none, of numbers
        raise SettingsError(
            f"config={path!r} is no TOML ({error}): mend it there, `key = value` per line"
        ) from error
    values: dict[str, object] = {}
    for key, value in _flattened(document, ""):
        where = f"{path}: {key}"
        name = SECTIONS.get(key, key.replace(".", "_"))
        if name not in kinds:
            raise unknown_setting(where, name, str)
        if name in values:
            raise SettingsError(f"{where} is given twice, plainly and in a section: keep one")
        values[name] = check_type(where, value, kinds[name])
    return values


def flag_name(setting: str) -> str:
    """`ack_timeout_s` → `--ack-timeout-s`; lists are given one by one: `seeds` → `--seed`."""
    singular = {"seeds": "seed", "roles": "role"}.get(setting, setting)
    return "--" + singular.replace("_", "-")


def environment_name(setting: str) -> str:
    """`ack_timeout_s` → `TENURE_ACK_TIMEOUT_S`."""
    return ENVIRONMENT_PREFIX + setting.upper()


def _flattened(table: Mapping[str, object], prefix: str) -> Iterable[tuple[str, object]]:
    """(`section.key`, value) for each leaf."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


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
    raise wrong_type(where, text, kind)
