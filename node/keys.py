"""The directory of keys that `--keys DIR` names: made, read, and read again when it changes.

Decides what a key file may look like. Does not decide who may speak for whom: that is
`node.key_book`. Called by the command line (`keygen`), `node.zmq_environment` and
`node.zmq_transport`.

`DIR/secret` holds this node's secret key, for its owner alone (mode 0600). `DIR/public` holds the
line that other nodes put into their `trusted`. `DIR/trusted` holds one line per key that may
connect: `KEY [HOST:PORT] [name…]`; `#` begins a comment. Keys are 64 hex digits.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

import zmq
from zmq.utils import z85

from node.addresses import parse_address
from node.errors import SettingsError

log = logging.getLogger(__name__)

SECRET_FILE = "secret"
PUBLIC_FILE = "public"
TRUSTED_FILE = "trusted"

FILE_BYTES_MAX = 1024 * 1024
TRUSTED_MAX = 10_000
NAME_LENGTH_MAX = 255

_KEY = re.compile(r"[0-9a-fA-F]{64}")
_SECRET_HEAD = "# The secret key of one node: it stays here, and nobody else may read it.\n"
_TRUSTED_HEAD = "# Who may connect: KEY [HOST:PORT] [name], one per line. A removed line revokes.\n"

Stamp = tuple[int, int, int, int]


class KeyPair(NamedTuple):
    """A CURVE key pair, 32 bytes each; never log it."""

    public: bytes
    secret: bytes


class TrustedKey(NamedTuple):
    """One line of `trusted`. `host` is empty where the key is not held to an address."""

    key: bytes
    host: str = ""
    port: int = 0
    name: str = ""


class KeyDirectory:
    """What `--keys DIR` holds: this node's `pair`, and whom it `trusted` when last read."""

    def __init__(self, directory: str | Path) -> None:
        """Raises `SettingsError` for a missing or damaged file, for a `secret` that others may
        read, for a `trusted` that others may write, and for one without keys."""
        self._directory = Path(directory)
        self.pair = _read_pair(self._directory)
        self._path = self._directory / TRUSTED_FILE
        self._read_at = _stamp(self._path)
        self._seen = self._read_at
        self.trusted = _read_trusted(self._path)

    @property
    def trusted_path(self) -> Path:
        """The file that an operator changes."""
        return self._path

    def reread(self) -> bool:
        """Read `trusted` again if it was changed; True when the list is a new one.

        A file is read once two looks in a row found it the same: an editor may be half-way. Never
        raises: a file that is missing or wrong is logged, once, and the former list stays.
        """
        stamp = _stamp(self._path)
        if stamp == self._read_at:
            self._seen = stamp
            return False
        if stamp != self._seen:
            self._seen = stamp
            return False
        self._read_at = stamp
        try:
            trusted = _read_trusted(self._path)
        except SettingsError as error:
            log.error(
                "the trusted keys cannot be read again, so the former ones stay",
                extra={"error": str(error)},
            )
            return False
        before, self.trusted = self.trusted, trusted
        old, new = {line.key for line in before}, {line.key for line in trusted}
        log.info(
            "the trusted keys were read again",
            extra={
                "path": str(self._path),
                "added": " ".join(sorted(key.hex() for key in new - old)),
                "revoked": " ".join(sorted(key.hex() for key in old - new)),
            },
        )
        return True


def new_pair() -> KeyPair:
    """A key pair that nobody has had before."""
    public, secret = zmq.curve_keypair()
    return KeyPair(z85.decode(public), z85.decode(secret))


def generate(directory: str | Path, *, address: str = "", name: str = "") -> str:
    """Make a key directory; returns the line of `public`, without its end.

    `address`: `HOST:PORT` at which the node will be reached; others need it to dial the node as a
    seed, and hold its key to it. Raises `SettingsError` when one of the files exists already (no
    key is ever overwritten), when the directory cannot be written, and for a wrong address or name.
    """
    folder = Path(directory)
    line = _public_line(pair := new_pair(), address, name)
    contents = {
        SECRET_FILE: (0o600, f"{_SECRET_HEAD}{pair.secret.hex()}\n"),
        PUBLIC_FILE: (0o644, f"{line}\n"),
        TRUSTED_FILE: (0o644, f"{_TRUSTED_HEAD}{line}\n"),
    }
    made: list[Path] = []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file, (mode, text) in contents.items():
            path = folder / file
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            made.append(path)
            with open(descriptor, "w", encoding="utf-8") as stream:
                os.fchmod(descriptor, mode)  # whatever the umask
                stream.write(text)
    except (OSError, ValueError) as error:
        for path in made:
            with contextlib.suppress(OSError):
                path.unlink()
        if isinstance(error, FileExistsError):
            raise SettingsError(
                f"{error.filename} exists, and a key is never overwritten: name another directory, "
                "or move the old one away if no node uses it any more"
            ) from error
        what = getattr(error, "strerror", None) or error
        raise SettingsError(
            f"keys cannot be written to {str(directory)!r} ({what}): name a directory that this "
            "user may write to"
        ) from error
    return line


def _public_line(pair: KeyPair, address: str, name: str) -> str:
    if address:
        host, port = parse_address("address", address)
        if port == 0:
            raise SettingsError(
                f"address={address!r}: port 0 is nobody's: give the one that the node binds"
            )
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if len(name) > NAME_LENGTH_MAX or not name.isprintable() or name != " ".join(name.split()):
        raise SettingsError(
            f"name={name[:80]!r} must be at most {NAME_LENGTH_MAX} printable characters, single "
            "spaces between words: choose another"
        )
    if "#" in name or ":" in name.partition(" ")[0]:
        raise SettingsError(
            f"name={name!r} would be read as an address or a comment: leave out ':' and '#'"
        )
    return " ".join(part for part in (pair.public.hex(), address, name) if part)


def parse_trusted(text: str) -> tuple[TrustedKey, ...]:
    """The keys of a `trusted` file, in its order.

    Raises ValueError, naming the line, for what is neither a key nor a comment; no name is looked
    up.
    """
    found: list[TrustedKey] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if not _KEY.fullmatch(words[0]):
            raise ValueError(f"line {number}: {words[0][:80]!r} is no key of 64 hex digits")
        key, host, port = bytes.fromhex(words[0]), "", 0
        rest = words[1:]
        if rest and ":" in rest[0]:
            try:
                host, port = parse_address("address", rest.pop(0))
            except SettingsError as error:
                raise ValueError(f"line {number}: {error}") from error
            if port == 0:
                raise ValueError(f"line {number}: port 0 is nobody's")
        found.append(TrustedKey(key, host, port, " ".join(rest)))
        if len(found) > TRUSTED_MAX:
            raise ValueError(f"it has more than {TRUSTED_MAX} keys")
    return tuple(found)


def _read_pair(directory: Path) -> KeyPair:
    path = directory / SECRET_FILE
    text, mode = _read(path)
    if mode & 0o077:
        raise SettingsError(
            f"{path} has mode {mode:04o}, so others than its owner may have it: make new keys if "
            f"somebody could have read it, else `chmod 600 {path}`"
        )
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    keys = [line for line in lines if line]
    if len(keys) != 1 or not _KEY.fullmatch(keys[0]):
        raise SettingsError(
            f"{path} holds no secret key (one line of 64 hex digits): make one with "
            "`python -m node keygen DIR`"
        )
    secret = bytes.fromhex(keys[0])
    public = z85.decode(zmq.curve_public(z85.encode(secret)))
    _check_public(directory / PUBLIC_FILE, public)
    return KeyPair(public, secret)


def _check_public(path: Path, public: bytes) -> None:
    """A `public` of another pair would be handed to others, who then refuse this node."""
    if not path.exists():
        return
    text, _ = _read(path)
    words = text.split()
    if not words or words[0].lower() != public.hex():
        raise SettingsError(
            f"{path} does not belong to the secret key beside it, whose public key is "
            f"{public.hex()}: put that into it, and into the trusted files of the other nodes"
        )


def _read_trusted(path: Path) -> tuple[TrustedKey, ...]:
    text, mode = _read(path)
    if mode & 0o022:
        raise SettingsError(
            f"{path} has mode {mode:04o}, so others than its owner may add keys to it: "
            f"look through it, then `chmod go-w {path}`"
        )
    try:
        trusted = parse_trusted(text)
    except ValueError as error:
        raise SettingsError(
            f"{path}, {error}: mend it there, `KEY [HOST:PORT] [name]` per line"
        ) from error
    if not trusted:
        raise SettingsError(
            f"{path} holds no key, so nobody could connect: put the lines of the other nodes' "
            f"`{PUBLIC_FILE}` into it"
        )
    return trusted


def _read(path: Path) -> tuple[str, int]:
    """A small text file and its mode bits."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            packed = file.read(FILE_BYTES_MAX + 1)
        if len(packed) > FILE_BYTES_MAX:
            raise SettingsError(f"{path} has more than {FILE_BYTES_MAX} bytes: it is no key file")
        return packed.decode(), stat.S_IMODE(found.st_mode)
    except FileNotFoundError as error:
        raise SettingsError(
            f"keys: there is no {path}: make a key directory with `python -m node keygen DIR`, "
            "and name it"
        ) from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is no text, so it is no key file: name another") from error
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or error
        raise SettingsError(
            f"{path} cannot be read ({what}): let the user of this node read it"
        ) from error


def _stamp(path: Path) -> Stamp | None:
    """What changes when a file does; None when there is none."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
