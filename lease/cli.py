"""`python -m lease show|watch|acquire|release URL NAME`, for operators.

Decides what is printed and the exit code: 0; 1 the lease says no (somebody else holds it, it was
lost, the token is another one); 2 usage; 69 the store does not answer; of `acquire … -- COMMAND`
that of the command, 127 when it cannot be started. Everything else is `lease.lease` and the stores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import datetime
import json
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NoReturn

from lease.errors import LeaseUnavailableError, WriteConflict
from lease.events import LeaseAwaited, LeaseDenied, LeaseGranted, LeaseLost, LeaseUnknown
from lease.lease import Lease
from lease.record import LeaseRecord, trusted_ttl_s
from lease.settings import LeaseSettings
from lease.sqlite import SqliteStore
from lease.store import LeaseStore
from lease.urls import from_url

OK, SAYS_NO, USAGE, NOT_REACHABLE, NOT_FOUND, INTERRUPTED = 0, 1, 2, 69, 127, 130
RETRY_S = 1.0
LOOK_S = 5.0
"""A store that is silent for so long is asked whether it is there."""
RELEASE_S = 5.0
WAIT_MAX_S = 1e7
PR_SET_PDEATHSIG = 1
TTL_S = 15.0


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Print the line and exit with 2."""
        print(f"tenure: {message}: `{self.prog} --help` lists what there is", file=sys.stderr)
        sys.exit(USAGE)


class _SaysNoError(Exception):
    """The lease says no."""


def main(argv: Sequence[str]) -> int:
    """Carry out one command; returns the exit code. argparse exits with 2 by itself."""
    words, command = _split(argv)
    arguments = _parser().parse_args(words)
    if command and arguments.run is not _acquire:
        print("tenure: only `acquire` takes a command after --", file=sys.stderr)
        return USAGE
    arguments.command = command
    try:
        store = from_url(arguments.url)
        if isinstance(store, SqliteStore) and arguments.run is not _acquire:
            _check_exists(store)
        settings = LeaseSettings(
            name=arguments.name,
            owner=_owner(arguments),
            ttl_s=getattr(arguments, "ttl_s", TTL_S),
        )
    except ValueError as error:
        print(f"tenure: {error}", file=sys.stderr)
        return USAGE
    try:
        return asyncio.run(_run(arguments.run, store, settings, arguments))
    except LeaseUnavailableError as error:
        print(f"tenure: nobody can tell: {error}", file=sys.stderr)
        return NOT_REACHABLE
    except _SaysNoError as error:
        print(f"tenure: {error}", file=sys.stderr)
        return SAYS_NO
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our words has read enough; nor is there anybody for the last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _owner(arguments: argparse.Namespace) -> str:
    given: str | None = getattr(arguments, "owner", None)
    return f"{socket.gethostname()}:{os.getpid()}" if given is None else given


def _check_exists(store: SqliteStore) -> None:
    if not store.path.exists():
        raise ValueError(f"there is no lease store {store.path}: nobody has held a lease there yet")


def _wait(text: str) -> float:
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= WAIT_MAX_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0 up")
    return wait_s


async def _run(
    command: Callable[..., Coroutine[Any, Any, int]],
    store: LeaseStore,
    settings: LeaseSettings,
    arguments: argparse.Namespace,
) -> int:
    try:
        return await command(store, settings, arguments)
    finally:
        await store.close()


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    words = list(argv)
    if "--" not in words:
        return words, []
    cut = words.index("--")
    return words[:cut], words[cut + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m lease",
        description="Look at leases, hold one, give one back.",
        epilog="URL: sqlite:///var/lib/app/leases.db, etcd://host:port[,host:port], "
        "kubernetes://namespace. Exit codes: 0; 1 the lease says no; 2 usage; 69 the store does "
        "not answer.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for name, run, text in (
        ("show", _show, "Who holds it, since when, its token, and how long it lasts."),
        ("watch", _watch, "Print each change until interrupted."),
        (
            "acquire",
            _acquire,
            "Hold it until interrupted, or while a command runs: acquire URL NAME -- COMMAND. The "
            "command finds its token in TENURE_LEASE_TOKEN. When the lease is lost it is killed "
            "with all of its process group, and what it leaves there at its end is killed too. "
            "The exit code is the command's, 127 when there is none.",
        ),
        (
            "release",
            _release,
            "Take it away from its holder, as after a crash. A holder that lives goes on acting "
            "until its next renewal, so stop it first.",
        ),
    ):
        one = commands.add_parser(name, help=text.split(".")[0], description=text)
        one.set_defaults(run=run)
        one.add_argument("url", metavar="URL", help="the store")
        one.add_argument("name", metavar="NAME", help="of the lease")
        if name in ("show", "watch"):
            one.add_argument("--json", action="store_true", help="one JSON object per line")
        if name == "acquire":
            one.add_argument("--owner", metavar="TEXT", help="who holds it, for people (host:pid)")
            one.add_argument(
                "--ttl-s", type=float, default=TTL_S, metavar="S",
                help=f"others wait so long after our end without a release ({TTL_S:g})",
            )  # fmt: skip
            one.add_argument(
                "--wait-s", type=_wait, default=0.0, metavar="S",
                help="wait so long for one who holds it (0)",
            )  # fmt: skip
        if name == "release":
            one.add_argument(
                "--token", type=int, required=True, metavar="N",
                help="of the holder, as `show` says: nobody else's lease is touched",
            )  # fmt: skip
    return parser


# -- looking


async def _show(store: LeaseStore, settings: LeaseSettings, arguments: argparse.Namespace) -> int:
    record = await store.read(settings.name)
    left_s = None if record is None else store.remaining_s(record)
    if arguments.json:
        print(json.dumps(_as_json(settings.name, store, record, left_s)))
    else:
        print("\n".join(_in_words(settings.name, store, record, left_s)))
    return OK


async def _watch(store: LeaseStore, settings: LeaseSettings, arguments: argparse.Namespace) -> int:
    before: LeaseRecord | None = None
    first = True
    while True:
        try:
            record = await store.read(settings.name)
            if first or _differs(record, before):
                _print_change(store, settings.name, record, before, as_json=arguments.json)
            first, before = False, record
            if record is None:
                await asyncio.sleep(RETRY_S)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await store.changed(settings.name, record.version)
        except LeaseUnavailableError as error:
            print(f"tenure: nobody can tell: {error}", file=sys.stderr, flush=True)
            await asyncio.sleep(RETRY_S)


def _differs(record: LeaseRecord | None, before: LeaseRecord | None) -> bool:
    return (record and record.version) != (before and before.version)


def _print_change(
    store: LeaseStore,
    name: str,
    record: LeaseRecord | None,
    before: LeaseRecord | None,
    *,
    as_json: bool,
) -> None:
    left_s = None if record is None else store.remaining_s(record)
    if as_json:
        print(json.dumps(_as_json(name, store, record, left_s)), flush=True)
        return
    if record is None:
        words = "there is no record"
    elif record.free:
        words = f"free, last token {record.token}"
    else:
        same = before is not None and before.token == record.token
        words = f"{'renewed' if same else 'held'} by {record.owner}, token {record.token}"
    print(f"{_time_of(time.time())}  {words}", flush=True)


def _in_words(
    name: str, store: LeaseStore, record: LeaseRecord | None, left_s: float | None
) -> list[str]:
    if record is None:
        return [f"{name}: nobody has held it, or its record was deleted"]
    if record.free:
        return [f"{name}: free, last token {record.token}"]
    lines = [
        f"{name}: held by {record.owner}",
        f"  holder   {record.holder}",
        f"  token    {record.token}",
    ]
    if record.acquired_at_wall_s is not None:
        age_s = max(0.0, time.time() - record.acquired_at_wall_s)
        lines.append(f"  since    {_time_of(record.acquired_at_wall_s)} ({_span(age_s)})")
    lines.append(f"  ttl      {trusted_ttl_s(record):g} s")
    if left_s is None:
        lines.append(
            "  expires  when nothing renews it for its ttl; this store has no clock that tells "
            "when it was renewed last: see `watch`"
        )
    elif left_s > 0:
        lines.append(f"  expires  in {left_s:.1f} s unless it is renewed")
    else:
        lines.append(f"  expired  {_span(-left_s)} ago: whoever asks next gets it")
    return lines


def _as_json(
    name: str, store: LeaseStore, record: LeaseRecord | None, left_s: float | None
) -> dict[str, object]:
    held = record is not None and not record.free
    since = record.acquired_at_wall_s if record is not None and held else None
    return {
        "name": name,
        "store": store.identity,
        "held": held,
        "owner": record.owner if record is not None and held else None,
        "holder": record.holder if record is not None and held else None,
        # A string, as uids are: JavaScript's numbers end at 2**53.
        "token": None if record is None or record.token is None else str(record.token),
        "since": None if since is None else _time_of(since),
        "ttl_s": None if record is None else trusted_ttl_s(record),
        "expires_in_s": round(left_s, 3) if held and left_s is not None else None,
    }


def _time_of(wall_s: float) -> str:
    try:
        instant = datetime.datetime.fromtimestamp(wall_s, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return "at no time"  # others may have written anything
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, left_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left_s} s"


# -- holding


async def _acquire(
    store: LeaseStore, settings: LeaseSettings, arguments: argparse.Namespace
) -> int:
    lease = Lease(store, settings)
    facts: asyncio.Queue[object] = asyncio.Queue()
    lease.follow(facts.put_nowait)
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, interrupted.set)
    try:
        if not await _got(lease, facts, arguments.wait_s, interrupted):
            return INTERRUPTED
        if interrupted.is_set():
            await _give_back(lease)
            return INTERRUPTED
        if arguments.command:
            code = await _while_held(arguments.command, lease, facts, interrupted)
        else:
            print(f"held, token {lease.token}, until interrupted", flush=True)
            await _until_over(facts, interrupted)
            code = OK
        await _release_after(lease, settings.name)
        return code
    finally:
        await lease.close()


async def _got(
    lease: Lease, facts: asyncio.Queue[object], wait_s: float, interrupted: asyncio.Event
) -> bool:
    """True: held. False: interrupted, and given back. Raises when it is not to be had in time."""
    give_up_at = time.monotonic() + wait_s
    stop = asyncio.ensure_future(interrupted.wait())
    refused: Exception | None = None
    lease.want()
    try:
        while not interrupted.is_set():
            left_s = max(0.0, give_up_at - time.monotonic())
            # The first answer is waited for, however short the time: the store bounds it.
            timeout_s = None if refused is None else left_s
            told = asyncio.ensure_future(facts.get())
            await asyncio.wait({told, stop}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not told.done():
                told.cancel()
                if refused is not None and not interrupted.is_set():
                    break
                continue
            match told.result():
                case LeaseGranted():
                    return True
                case LeaseDenied() as fact:
                    refused = _SaysNoError(f"{fact.name} is held by {fact.holder}")
                case LeaseAwaited() as fact:
                    refused = _SaysNoError(
                        f"{fact.name} is held by {fact.holder}, or was a moment ago: this store "
                        "tells no ages; wait for it with --wait-s"
                    )
                case LeaseUnknown() as fact:
                    refused = LeaseUnavailableError(fact.why)
                case _:
                    continue
            if time.monotonic() >= give_up_at:
                break
    finally:
        stop.cancel()
    await _give_back(lease)
    if refused is not None and not interrupted.is_set():
        raise refused
    return False


async def _until_over(facts: asyncio.Queue[object], interrupted: asyncio.Event) -> None:
    """Until a signal; raises when the lease is lost first."""
    stop = asyncio.ensure_future(interrupted.wait())
    try:
        while not interrupted.is_set():
            told = asyncio.ensure_future(facts.get())
            await asyncio.wait({told, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not told.done():
                told.cancel()
            elif isinstance(fact := told.result(), LeaseLost):
                raise _SaysNoError(f"{fact.name} was lost: {fact.why}")
    finally:
        stop.cancel()


async def _give_back(lease: Lease) -> None:
    with contextlib.suppress(LeaseUnavailableError, TimeoutError):
        async with asyncio.timeout(RELEASE_S):
            await lease.release()


async def _release_after(lease: Lease, name: str) -> None:
    """The work is done: a store that can not be told changes nothing of how it ended."""
    try:
        async with asyncio.timeout(RELEASE_S):
            await lease.release()
    except (LeaseUnavailableError, TimeoutError):
        ttl_s = lease.settings.ttl_s
        print(
            f"tenure: {name} could not be released: others wait for its ttl of {ttl_s:g} s",
            file=sys.stderr,
        )


async def _while_held(
    command: list[str],
    lease: Lease,
    facts: asyncio.Queue[object],
    interrupted: asyncio.Event,
) -> int:
    """Run it in a process group of its own. A signal to us is passed on to all of it, each time; a
    loss kills all of it, and so does its own end what it has left behind."""
    environment = {**os.environ, "TENURE_LEASE_TOKEN": str(lease.token)}
    try:
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, process_group=0, preexec_fn=_dies_with_us()
        )
    except OSError as error:
        await _give_back(lease)
        print(f"tenure: {command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return NOT_FOUND
    terminal = _lend_terminal(process.pid)
    ended = asyncio.ensure_future(process.wait())
    over = asyncio.ensure_future(_until_over(facts, interrupted))
    try:
        while not ended.done():
            await asyncio.wait({ended, over}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done() or not over.done():
                continue
            over.result()  # raises when the lease is lost
            interrupted.clear()
            _signal_group(process.pid, signal.SIGTERM)
            over = asyncio.ensure_future(_until_over(facts, interrupted))
    finally:
        over.cancel()
        _signal_group(process.pid, signal.SIGKILL)
        code = await ended
        _take_terminal_back(terminal)
    return 128 - code if code < 0 else code


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _dies_with_us() -> Callable[[], object] | None:
    """What the child does before it begins, to be killed by the kernel when we are. Linux only."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)  # loaded here: a child must take no lock
    return lambda: library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _lend_terminal(group: int) -> int | None:
    """A command that asks for a password reads the terminal: only its foreground group may."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.tcgetpgrp(terminal) == os.getpgrp():
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            os.tcsetpgrp(terminal, group)
            return terminal
    except OSError:
        pass
    os.close(terminal)
    return None


def _take_terminal_back(terminal: int | None) -> None:
    if terminal is not None:
        with contextlib.suppress(OSError):
            os.tcsetpgrp(terminal, os.getpgrp())
        os.close(terminal)


async def _release(
    store: LeaseStore, settings: LeaseSettings, arguments: argparse.Namespace
) -> int:
    record = await store.read(settings.name)
    if record is None or record.free:
        print(f"{settings.name} is free already")
        return OK
    if record.token != arguments.token:
        raise _SaysNoError(
            f"{settings.name} is held by {record.owner} with token {record.token}, not "
            f"{arguments.token}: nothing was done"
        )
    free = LeaseRecord(
        name=settings.name,
        holder="",
        token=record.token,
        ttl_s=record.ttl_s,
        write_id=f"operator.{secrets.token_hex(8)}",
    )
    try:
        await store.write(free, if_version=record.version)
    except WriteConflict as conflict:
        raise _SaysNoError(
            f"{settings.name} was renewed at this moment: its holder lives. Stop it first"
        ) from conflict
    print(f"{settings.name} is free; {record.owner} had it")
    return OK
