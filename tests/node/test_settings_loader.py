"""Settings come from flags, environment, TOML and defaults, in this order."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from node.errors import SettingsError
from node.settings import Settings, setting_types
from node.settings_loader import (
    environment_name,
    flag_name,
    load_settings,
    service_variables,
)

SEEDS = {"seeds": ["127.0.0.1:25520"]}


def load(
    flags: dict[str, object] | None = None,
    environ: dict[str, str] | None = None,
    toml: Path | None = None,
) -> Settings:
    """Load as the command line does, on the default port."""
    return load_settings(
        {**SEEDS, **(flags or {})},
        environ or {},
        None if toml is None else str(toml),
        defaults={"port": 25520},
    )


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    """A configuration file with a plain key and two sections."""
    path = tmp_path / "tenure.toml"
    path.write_text(
        'name = "from toml"\nroles = ["web", "jobs"]\n'
        "[ack]\ntimeout_s = 0.1\n"
        "[hand_over]\ntimeout_s = 3\n"
    )
    return path


def test_each_source_goes_before_the_next(toml: Path) -> None:
    """Flags over environment over TOML over defaults, value by value."""
    assert load().name == ""
    assert load(toml=toml).name == "from toml"
    environ = {"TENURE_NAME": "from environment"}
    assert load(environ=environ, toml=toml).name == "from environment"
    assert load({"name": "from flag"}, environ, toml).name == "from flag"
    mixed = load({"name": "from flag"}, {"TENURE_STOP_TIMEOUT_S": "2.5"}, toml)
    assert (mixed.name, mixed.stop_timeout_s, mixed.ack_timeout_s) == ("from flag", 2.5, 0.1)
    assert mixed.port == 25520


def test_downing_can_be_set_from_each_source(tmp_path: Path) -> None:
    """Strategy with its parameters, timings and the lease mean the same wherever they stand."""
    values = {
        "downing": "lease-majority:role=core",
        "down_after_s": "8",
        "contact_s": "4",
        "down_all_when_unstable_s": "30",
        "lease": f"sqlite://{tmp_path}/leases.db",
    }
    path = tmp_path / "downing.toml"
    path.write_text(
        f'downing = "{values["downing"]}"\nlease = "{values["lease"]}"\ncontact_s = 4\n'
        "[down]\nafter_s = 8\nall_when_unstable_s = 30\n"
    )
    flags = load(dict(values))
    assert flags == load(environ={environment_name(key): text for key, text in values.items()})
    assert flags == load(toml=path)
    # A key is a text or a section: where others of its section are set, it has a name there.
    path.write_text(
        f'[downing]\nstrategy = "{values["downing"]}"\n'
        f'[lease]\nurl = "{values["lease"]}"\nttl_s = 9\n'
        "[down]\nafter_s = 8\nall_when_unstable_s = 30\n[contact]\ns = 4\n"
    )
    assert dataclasses.replace(flags, lease_ttl_s=9.0) == load(toml=path)
    assert str(flags.strategy()) == values["downing"]
    timings = flags.downing_settings()
    assert (timings.down_after_s, timings.contact_s) == (8.0, 4.0)
    assert timings.down_all_when_unstable_s == 30.0


def test_a_flag_that_was_not_given_hides_nothing() -> None:
    """argparse gives None for those."""
    assert load({"name": None}, {"TENURE_NAME": "x"}).name == "x"


def test_text_becomes_the_type_of_the_setting() -> None:
    """Each kind of setting from the environment; an empty variable is none."""
    environ = {
        "TENURE_PORT": "4000",
        "TENURE_ACK_TIMEOUT_S": "0.2",
        "TENURE_INSECURE": "true",
        "TENURE_ROLES": "web, jobs",
        "TENURE_STATE_DIR": "",
        "TENURE_LOOP": "asyncio",
        "PATH": "/bin",
    }
    settings = load(environ=environ)
    assert settings.port == 4000
    assert settings.ack_timeout_s == 0.2
    assert settings.insecure is True
    assert settings.roles == ("web", "jobs")
    assert settings.state_dir is None


def test_sections_group_by_prefix(toml: Path) -> None:
    """`[hand_over] timeout_s` is `hand_over_timeout_s`; a whole number will do for seconds."""
    settings = load(toml=toml)
    assert settings.hand_over_timeout_s == 3.0
    assert settings.roles == ("web", "jobs")


def test_names_of_one_setting() -> None:
    """One name, three spellings; lists are given one by one."""
    assert flag_name("ack_timeout_s") == "--ack-timeout-s"
    assert flag_name("seeds") == "--seed"
    assert flag_name("roles") == "--role"
    assert environment_name("ack_timeout_s") == "TENURE_ACK_TIMEOUT_S"


def test_every_setting_has_a_text_form() -> None:
    """A new field of `Settings` is read from all sources at once."""
    assert list(setting_types()) == [field.name for field in dataclasses.fields(Settings)]
    assert set(setting_types().values()) <= {str, int, float, bool, tuple}


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"TENURE_PROT": "1"}, "TENURE_PROT is no setting: did you mean TENURE_PORT?"),
        ({"TENURE_QQQQ": "1"}, "TENURE_QQQQ is no setting: `python -m node --help` lists all"),
        ({"TENURE_PORT": "x"}, "TENURE_PORT='x' is not a whole number: give a whole number"),
        ({"TENURE_ACK_TIMEOUT_S": "soon"}, "='soon' is not a number of seconds"),
        ({"TENURE_FOUND": "perhaps"}, "='perhaps' is not true or false"),
        ({"TENURE_PORT": "70000"}, "port=70000 must lie between"),
    ],
)
def test_wrong_variables_name_key_value_and_mend(environ: dict[str, str], text: str) -> None:
    """I-148: nothing is read past in silence."""
    with pytest.raises(SettingsError) as error:
        load(environ=environ)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("prot = 1", "prot is no setting: did you mean port?"),
        ("[hand_ovr]\ntimeout_s = 1", "hand_ovr.timeout_s is no setting: did you mean hand_over_"),
        ('port = "25520"', "port='25520' is not a whole number"),
        ("port = true", "port=True is not a whole number"),
        ("name = 5", "name=5 is not text"),
        ('roles = "web"', "roles='web' is one text, not a list of text: write ['web']"),
        ("roles = [1]", "roles=[1] is no list of text"),
        ('name = ["x"]', "name=['x'] is not text"),
        ("ack_timeout_s = 1\n[ack]\ntimeout_s = 2", "is given twice"),
        ("port =", "is no TOML"),
        ("port = " + "9" * 5_000, "is no TOML"),
        ("roles = " + "[" * 50_000, "is no TOML"),
        ('state_dir = "a\\u0000b"', "zero byte"),
    ],
)
def test_wrong_files_name_key_value_and_mend(tmp_path: Path, content: str, text: str) -> None:
    """The same for the configuration file, with its path."""
    path = tmp_path / "wrong.toml"
    path.write_text(content)
    with pytest.raises(SettingsError) as error:
        load(toml=path)
    assert text in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "service",
    [
        {
            "TENURE_SERVICE_HOST": "10.0.0.7",
            "TENURE_SERVICE_PORT": "25520",
            "TENURE_SERVICE_PORT_CONTROL": "25520",
            "TENURE_PORT": "tcp://10.0.0.7:25520",
            "TENURE_PORT_25520_TCP": "tcp://10.0.0.7:25520",
            "TENURE_PORT_25520_TCP_PROTO": "tcp",
            "TENURE_PORT_25520_TCP_PORT": "25520",
            "TENURE_PORT_25520_TCP_ADDR": "10.0.0.7",
        },
        {"TENURE_DATA_PORT": "udp://10.0.0.8:1", "TENURE_DATA_SERVICE_HOST": "10.0.0.8"},
        {"TENURE_HTTP_PORT": "tcp://[fd00::1]:80", "TENURE_HTTP_PORT_80_TCP_ADDR": "fd00::1"},
    ],
)
def test_variables_of_a_kubernetes_service_are_no_settings(service: dict[str, str]) -> None:
    """A Service called `tenure`, `tenure-data`, `tenure-http` in the namespace stops no start."""
    environ = {**service, "TENURE_NAME": "x", "KUBERNETES_PORT": "tcp://10.0.0.1:443"}
    assert load(environ=environ) == load(environ={"TENURE_NAME": "x"})
    assert service_variables(environ) == sorted(service)


def test_no_setting_is_taken_for_a_service() -> None:
    """Ports that are ports stay settings, and a wrong one still stops the start."""
    plain = {environment_name(name): "1" for name in setting_types()}
    assert service_variables(plain) == []
    with pytest.raises(SettingsError, match="TENURE_PORT='http://x' is not a whole number"):
        load(environ={"TENURE_PORT": "http://x"})


def test_wrong_flags_name_key_value_and_mend() -> None:
    """The same for what is handed in as flags."""
    with pytest.raises(SettingsError, match=r"--prot is no setting: did you mean --port\?"):
        load({"prot": "1"})
    with pytest.raises(SettingsError, match="--port='x' is not a whole number"):
        load({"port": "x"})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A configuration that is not there is not the same as an empty one."""
    with pytest.raises(SettingsError, match="cannot be read"):
        load(toml=tmp_path / "none.toml")
