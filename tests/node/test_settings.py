"""`Settings` refuses what cannot work, naming key, value and mend: types, bounds, addresses."""

from __future__ import annotations

import dataclasses
import enum
import math
from pathlib import Path
from typing import Any

import pytest

from node.addresses import is_host, parse_address
from node.errors import SettingsError
from node.settings import Settings, setting_types, settings_from, split_seed

WRONG_VALUES: dict[type, list[object]] = {
    int: ["25520", 1.0, True, [1], {}, 10**5_000],
    float: ["5", b"5", True, [1.0], object(), math.nan, math.inf, -1.0, 0, 1e10, 10**5_000],
    bool: ["yes", 1, 0, []],
    str: [5, True, b"x", ["x"], "a\0b"],
    tuple: ["127.0.0.1:26900", b"x", 5, [1], {"a": 1}, [["a"]]],
}


@pytest.mark.parametrize("name", list(setting_types()))
def test_every_field_refuses_what_is_not_of_its_type(name: str) -> None:
    """I-148: also for those who pass by mypy; one line with the key, however long the value."""
    for value in [*WRONG_VALUES[setting_types()[name]], None]:
        if value is None and getattr(Settings(), name) is None:
            continue
        with pytest.raises(SettingsError) as error:
            settings_from(**{"port": 0, "found": True, name: value})
        text = str(error.value)
        assert name in text
        assert len(text) < 300


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"port": "25520"}, "port='25520' is not a whole number: give a whole number"),
        ({"stop_timeout_s": "5"}, "stop_timeout_s='5' is not a number of seconds: give"),
        (
            {"port": 1, "seeds": "127.0.0.1:26900"},
            "seeds='127.0.0.1:26900' is one text, not a list of text: write ['127.0.0.1:26900']",
        ),
        ({"roles": "db"}, "roles='db' is one text, not a list of text: write ['db']"),
        ({"prot": 1}, "prot is no setting: did you mean port?"),
        ({"colour": "red"}, "colour is no setting: `python -m node --help` lists all"),
        ({"stop_timeout_s": math.inf}, "=inf must be greater than 0 and at most 100000000 sec"),
        ({"probe_interval_s": 0}, "probe_interval_s=0 must be greater than 0"),
        ({"ack_timeout_s": 0.0}, "ack_timeout_s=0.0 must be greater than 0"),
        ({"ack_timeout_s": 0.5, "probe_interval_s": 0.5}, "ack_timeout_s=0.5 must be less than"),
        ({"buffer_size": 0}, "buffer_size=0 must lie between 1 and"),
        ({"frame_bytes_max": 1000}, "frame_bytes_max=1000 must lie between 65536 and"),
        ({"state_dir": ""}, "state_dir='' names nothing"),
        ({"cluster_name": ""}, "cluster_name='' must have 1 to 255 printable characters"),
        ({"name": "x" * 256}, "must have 1 to 255 printable characters"),
        ({"roles": ["\udcff"]}, "printable characters"),
        ({"host": "a..b"}, "host='a..b' is no address and cannot be a name"),
        ({"host": "[::1"}, "host='[::1' is no address"),
        ({"http": "8550"}, "http='8550' is no HOST:PORT"),
        ({"http": "[::1:8550"}, "http='[::1:8550' is no HOST:PORT"),
    ],
)
def test_what_cannot_work_is_refused(values: dict[str, Any], text: str) -> None:
    """Key, value and what to do."""
    with pytest.raises(SettingsError) as error:
        settings_from(**values)
    assert text in str(error.value)


def test_what_is_meant_is_taken() -> None:
    """Whole seconds, lists of any kind, paths, the text of an enum."""

    class Preset(enum.StrEnum):
        WAN = "wan"

    settings = settings_from(
        stop_timeout_s=5, roles={"web", "db"}, history=Path("/tmp/x"), preset=Preset.WAN
    )
    assert settings.stop_timeout_s == 5
    assert settings.roles == ("db", "web")
    assert settings.history == "/tmp/x"
    assert (settings.preset, type(settings.preset)) == ("wan", str)
    assert dataclasses.replace(settings) == settings


def test_settings_come_whole_or_by_field() -> None:
    """What `ActorSystem(…)` is given: the one or the other."""
    settings = Settings(name="one")
    assert settings_from(settings) is settings
    assert settings_from() == Settings()
    with pytest.raises(SettingsError, match="both settings and name, port were given"):
        settings_from(settings, port=1, name="two")
    wrong: Any = {"port": 25520}
    with pytest.raises(SettingsError, match=r"is no Settings: give Settings\(port=…\)"):
        settings_from(wrong)


@pytest.mark.parametrize(
    ("seed", "address"),
    [
        ("127.0.0.1:26900", ("127.0.0.1", 26900)),
        ("node-1.example", ("node-1.example", 25520)),
        ("node_1:1", ("node_1", 1)),
        ("node.example.:65535", ("node.example.", 65535)),
        ("[::1]:5", ("::1", 5)),
        ("[::1]", ("::1", 25520)),
        ("[fe80::1%eth0]:5", ("fe80::1%eth0", 5)),
        ("bücher.example:5", ("bücher.example", 5)),
    ],
)
def test_seeds(seed: str, address: tuple[str, int]) -> None:
    """With and without a port, of either family, names of every alphabet."""
    assert split_seed(seed) == address
    assert Settings(port=1, seeds=(seed,)).seeds == (seed,)


@pytest.mark.parametrize(
    "seed",
    [
        *("", ":", ":5", "a:", "a:b", "a:-1", "a:0", "a:65536", "a:٣", "a: 5", "a:5:5", "a b:5"),
        *("a..b:25520", ".a:5", f"{'x' * 70}:5", f"{'x.' * 130}y:5", "ü..b:5", "\udcff:5"),
        *("[::1:5", "::1:5", "::1", "[::1]5", "[::1]x:5", "[a]:5", "[]:5", "[::1%]:5", "a]:5"),
        *("0.0.0.0:5", "*:5", "[::]:5", "http://a:5", "a/b:5", f"a:{'9' * 5000}"),
    ],
)
def test_a_malformed_seed_is_refused_at_construction(seed: str) -> None:
    """I-148: before anything is bound; what a resolver would choke on as well."""
    with pytest.raises(SettingsError, match="seed="):
        Settings(port=1, seeds=(seed,))


def test_addresses_without_a_default_need_their_port() -> None:
    """What `--http` takes."""
    assert parse_address("http", "0.0.0.0:8550") == ("0.0.0.0", 8550)
    assert parse_address("http", "[::1]:0") == ("::1", 0)
    for text in ("127.0.0.1", "[::1]", ":8550"):
        with pytest.raises(SettingsError, match=r"http=.* write for example 127\.0"):
            parse_address("http", text)


def test_no_address_that_passes_makes_the_resolver_choke() -> None:
    """Python encodes names as IDNA before it asks; `is_host` must refuse what that refuses."""
    for text in ("a", "a.b.", "_x", "-", "ß.de", "x" * 63, "a..b", ".", "", "x" * 64, "\udc80"):
        if is_host(text):
            text.encode("idna")
        else:
            assert not text or text == "." or _idna_fails(text), text


def _idna_fails(text: str) -> bool:
    try:
        text.encode("idna")
    except UnicodeError:
        return True
    return False
