"""The key directory: what `keygen` makes, what a start refuses, what is read again."""

from __future__ import annotations

import contextlib
import logging
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85

from node.cli import WRONG_USAGE, main
from node.errors import SettingsError
from node.keys import (
    FILE_BYTES_MAX,
    TRUSTED_MAX,
    KeyDirectory,
    TrustedKey,
    generate,
    new_pair,
    parse_trusted,
)
from node.settings import Settings
from node.settings_loader import load_settings
from tests.security.stage import key_directory, public_line, trust

KEY = "ab" * 32
OTHER = "cd" * 32


def keygen(*arguments: str | Path) -> int:
    """`python -m node keygen …`."""
    return main(["keygen", *map(str, arguments)])


def mode_of(path: Path) -> int:
    """The permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


# what keygen makes


def test_keygen_makes_a_directory_that_a_node_can_start_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Secret for the owner alone, the line for the others, and a list that has it; and it says
    what to do next."""
    directory = tmp_path / "new" / "keys"
    assert keygen(directory, "--address", "node-1.example:25520", "--name", "web one") == 0
    assert sorted(path.name for path in directory.iterdir()) == ["public", "secret", "trusted"]
    assert mode_of(directory / "secret") == 0o600
    assert mode_of(directory) == 0o700
    keys = KeyDirectory(directory)
    line = public_line(directory)
    assert line == f"{keys.pair.public.hex()} node-1.example:25520 web one"
    assert keys.trusted == (TrustedKey(keys.pair.public, "node-1.example", 25520, "web one"),)
    assert keys.pair.public == z85.decode(zmq.curve_public(z85.encode(keys.pair.secret)))
    output = capsys.readouterr()
    assert output.err == ""
    for words in (line, "stays on this node", f"--keys {directory}", "removed revokes"):
        assert words in output.out
    assert keys.pair.secret.hex() not in output.out


def test_keygen_without_an_address_says_what_seeds_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key alone is enough for a node that nobody has as a seed."""
    assert keygen(tmp_path / "keys") == 0
    assert len(public_line(tmp_path / "keys")) == 64
    assert "HOST:PORT" in capsys.readouterr().out


@pytest.mark.parametrize("file", ["secret", "public", "trusted"])
def test_keygen_overwrites_nothing(
    tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any one file that exists is left as it is, and nothing is left beside it."""
    (tmp_path / file).write_text("precious")
    assert keygen(tmp_path) == WRONG_USAGE
    assert [path.name for path in tmp_path.iterdir()] == [file]
    assert (tmp_path / file).read_text() == "precious"
    assert f"{tmp_path / file} exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--address", "nowhere"], "is no HOST:PORT"),
        (["--address", "host:0"], "port 0 is nobody's"),
        (["--name", "two\nlines"], "printable"),
        (["--name", "a#b"], "':' and '#'"),
        (["--name", "host:1"], "':' and '#'"),
        (["--name", "x" * 256], "at most 255"),
    ],
)
def test_keygen_refuses_what_trusted_could_not_hold(
    tmp_path: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that says the mend, and nothing is made."""
    assert keygen(tmp_path / "keys", *arguments) == WRONG_USAGE
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "keys").exists()


def test_keygen_where_nothing_can_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file where the directory should be."""
    (tmp_path / "file").touch()
    assert keygen(tmp_path / "file" / "keys") == WRONG_USAGE
    assert "cannot be written" in capsys.readouterr().err


def test_every_pair_is_a_new_one() -> None:
    """Two pairs share nothing."""
    pairs = [new_pair() for _ in range(8)]
    assert len({key for pair in pairs for key in pair}) == 16
    assert all(len(key) == 32 for pair in pairs for key in pair)


# what a start refuses


def damage_mode(file: str, mode: int) -> Callable[[Path], None]:
    """Give a file another mode."""
    return lambda directory: (directory / file).chmod(mode)


def damage_text(file: str, text: str | bytes) -> Callable[[Path], None]:
    """Give a file another content, and leave its mode."""

    def write(directory: Path) -> None:
        packed = text.encode() if isinstance(text, str) else text
        (directory / file).write_bytes(packed)

    return write


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_mode("secret", 0o640), "chmod 600"),
        (damage_mode("secret", 0o604), "chmod 600"),
        (damage_mode("trusted", 0o666), "chmod go-w"),
        (damage_text("secret", "no key"), "holds no secret key"),
        (damage_text("secret", ""), "holds no secret key"),
        (damage_text("secret", f"{KEY}\n{OTHER}\n"), "holds no secret key"),
        (damage_text("public", f"{KEY} other"), "does not belong to the secret key"),
        (damage_text("trusted", f"# fine\n{KEY}\n{KEY[1:]}\n"), "line 3"),
        (damage_text("trusted", "# nobody\n"), "holds no key"),
        (damage_text("trusted", b"\xff\xfe"), "is no text"),
        (damage_text("trusted", " " * (FILE_BYTES_MAX + 1)), "is no key file"),
        (lambda directory: (directory / "secret").unlink(), "keygen"),
        (lambda directory: (directory / "trusted").unlink(), "there is no"),
        (lambda directory: ((directory / "trusted").unlink(), (directory / "trusted").mkdir()), ""),
    ],
)
def test_a_directory_that_is_not_right_stops_the_start(
    tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    """Whatever is wrong is named, with the file; never started without keys instead."""
    directory = key_directory(tmp_path / "keys")
    damage(directory)
    with pytest.raises(SettingsError, match=str(directory)) as raised:
        KeyDirectory(directory)
    assert words in str(raised.value)


def test_a_directory_without_public_will_do(tmp_path: Path) -> None:
    """`public` is for people: the pair is in `secret`."""
    directory = key_directory(tmp_path / "keys")
    (directory / "public").unlink()
    (directory / "secret").chmod(0o400)
    assert KeyDirectory(directory).pair.public.hex() in (directory / "trusted").read_text()


def test_no_error_shows_the_secret(tmp_path: Path) -> None:
    """What is wrong with a secret is told without it."""
    directory = key_directory(tmp_path / "keys")
    secret = KeyDirectory(directory).pair.secret.hex()
    for text in (f"{secret}{secret}", f"{secret} {secret}"):
        (directory / "secret").write_text(text)
        with pytest.raises(SettingsError) as raised:
            KeyDirectory(directory)
        assert secret not in str(raised.value)


# lines


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (KEY, TrustedKey(bytes.fromhex(KEY))),
        (KEY.upper(), TrustedKey(bytes.fromhex(KEY))),
        (f"  {KEY}\tweb  one # of two", TrustedKey(bytes.fromhex(KEY), name="web one")),
        (f"{KEY} 10.0.0.1:25520", TrustedKey(bytes.fromhex(KEY), "10.0.0.1", 25520)),
        (f"{KEY} [::1]:25520 six", TrustedKey(bytes.fromhex(KEY), "::1", 25520, "six")),
        (f"{KEY} n.example:1 a b", TrustedKey(bytes.fromhex(KEY), "n.example", 1, "a b")),
    ],
)
def test_a_line_of_trusted(line: str, wanted: TrustedKey) -> None:
    """`KEY [HOST:PORT] [name…]`."""
    assert parse_trusted(f"# comment\n\n{line}\n") == (wanted,)


@pytest.mark.parametrize(
    "line",
    [
        KEY[:-1],
        f"{KEY}0",
        f"{KEY[:-1]}g",
        f"key={KEY}",
        f"{KEY} host:",
        f"{KEY} host:0",
        f"{KEY} host:65536",
        f"{KEY} :25520",
        f"{KEY} [::1]",
        f"10.0.0.1:25520 {KEY}",
    ],
)
def test_a_line_that_is_none(line: str) -> None:
    """It is named by its number: a list with a mistake is not used in part."""
    with pytest.raises(ValueError, match="line 2"):
        parse_trusted(f"{KEY}\n{line}\n")


def test_a_list_has_an_end() -> None:
    """More keys than any cluster has are a mistake."""
    assert len(parse_trusted(f"{KEY}\n" * TRUSTED_MAX)) == TRUSTED_MAX
    with pytest.raises(ValueError, match="more than"):
        parse_trusted(f"{KEY}\n" * (TRUSTED_MAX + 1))


@given(st.text())
def test_any_text_is_a_list_or_a_value_error(text: str) -> None:
    """Nothing else is raised, whatever an editor leaves behind."""
    with contextlib.suppress(ValueError):
        assert all(len(line.key) == 32 for line in parse_trusted(text))


# read again


def test_a_changed_list_is_read_when_it_has_settled(tmp_path: Path) -> None:
    """Not while it is being written: it must be the same at two looks."""
    directory = key_directory(tmp_path / "keys")
    keys = KeyDirectory(directory)
    before = keys.trusted
    assert not keys.reread()
    trust(directory, [public_line(directory), KEY])
    assert not keys.reread()
    trust(directory, [public_line(directory), KEY, OTHER])  # once more, before it was read
    assert not keys.reread()
    assert keys.trusted == before
    assert keys.reread()
    assert [line.key.hex() for line in keys.trusted[1:]] == [KEY, OTHER]
    assert not keys.reread()
    with (directory / "trusted").open("a") as file:
        file.write(f"{'ef' * 32}\n")
    assert not keys.reread()
    assert keys.reread()
    assert len(keys.trusted) == 4


@pytest.mark.parametrize(
    "damage",
    [
        damage_text("trusted", "rubbish\n"),
        damage_text("trusted", ""),
        damage_mode("trusted", 0o622),
        lambda directory: (directory / "trusted").unlink(),
    ],
)
def test_a_list_that_went_wrong_changes_nothing(
    tmp_path: Path, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    """The former list stays, it is said once, and the mended file counts again."""
    directory = key_directory(tmp_path / "keys")
    keys = KeyDirectory(directory)
    before = keys.trusted
    damage(directory)
    assert [keys.reread() for _ in range(5)] == [False] * 5
    assert keys.trusted == before
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    trust(directory, [KEY])
    assert [keys.reread() for _ in range(3)] == [False, True, False]
    assert keys.trusted == (TrustedKey(bytes.fromhex(KEY)),)


# settings


def test_keys_and_insecure_contradict_each_other() -> None:
    """Both are named."""
    with pytest.raises(SettingsError, match=r"keys='k' together with insecure.*--keys.*--insecure"):
        Settings(keys="k", insecure=True)


def test_keys_are_a_setting_like_others(tmp_path: Path) -> None:
    """Flag, environment and TOML."""
    config = tmp_path / "node.toml"
    config.write_text('keys = "from-file"\n')
    assert load_settings({"keys": "from-flag"}, {}, str(config)).keys == "from-flag"
    assert load_settings({}, {"TENURE_KEYS": "from-environment"}, str(config)).keys == (
        "from-environment"
    )
    assert load_settings({}, {}, str(config)).keys == "from-file"
    with pytest.raises(SettingsError, match="keys='' names nothing"):
        Settings(keys="")


def test_a_keyless_member_is_told_apart_at_the_join() -> None:
    """Members agree on their protection, in words."""
    assert ("protection", "none") in Settings().agreement()
    assert ("protection", "keys") in Settings(keys="k").agreement()


def test_generate_is_what_keygen_calls(tmp_path: Path) -> None:
    """From Python: the line is returned."""
    line = generate(tmp_path / "keys", address="[::1]:25520", name="six")
    assert line == public_line(tmp_path / "keys")
    assert line.endswith(" [::1]:25520 six")
