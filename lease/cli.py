"""`python -m lease show|watch|acquire|release URL NAME`, for operators.

Decides what is printed and the exit code: 0; 1 the lease says no (somebody else holds it, it was
lost, the token is another one); 2 usage; 69 the store does not answer; of `acquire … -- COMMAND`
that of the command. Everything else is `lease.lease` and the stores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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
from lease.events import LeaseLost
from lease.lease import Lease
from lease.record import LeaseRecord, trusted_ttl_s
from lease.settings import LeaseSettings
from lease.store import LeaseStore
from lease.urls import from_url

OK, SAYS_NO, USAGE, NOT_REACHABLE = 0, 1, 2, 69
RETRY_S = 1.0
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
        settings = LeaseSettings(
            name=arguments.name,
            owner=getattr(arguments, "owner", None) or f"{socket.gethostname()}:{os.getpid()}",
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
        return 130


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
            "command finds its token in TENURE_LEASE_TOKEN and is killed when the lease is lost.",
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
                "--wait-s", type=float, default=0.0, metavar="S",
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
    over = asyncio.Event()
    lost: list[LeaseLost] = []

    def lose(fact: LeaseLost) -> None:
        lost.append(fact)
        over.set()

    lease.on_lost(lose)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    try:
        if not await _got(lease, arguments.wait_s, over):
            held = await store.read(settings.name)
            by = "somebody else" if held is None or held.free else held.owner
            raise _SaysNoError(f"{settings.name} is held by {by}")
        if arguments.command:
            code = await _while_held(arguments.command, lease, over)
        else:
            print(f"held, token {lease.token}, until interrupted", flush=True)
            await over.wait()
            code = OK
        if lost:
            raise _SaysNoError(f"{settings.name} was lost: {lost[0].why}")
        await lease.release()
        return code
    finally:
        await lease.close()


async def _got(lease: Lease, wait_s: float, over: asyncio.Event) -> bool:
    give_up_at = time.monotonic() + wait_s
    while not over.is_set():
        if await lease.acquire():
            return True
        left_s = give_up_at - time.monotonic()
        if left_s <= 0:
            return False
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), min(RETRY_S, left_s))
    return False


async def _while_held(command: list[str], lease: Lease, over: asyncio.Event) -> int:
    environment = {**os.environ, "TENURE_LEASE_TOKEN": str(lease.token)}
    try:
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, start_new_session=True
        )
    except OSError as error:
        await lease.release()
        raise _SaysNoError(f"{command[0]} cannot be started: {error}") from error
    ended = asyncio.ensure_future(process.wait())
    stopped = asyncio.ensure_future(over.wait())
    await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not ended.done():
        # Its whole group: what it started must not act on either.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM if lease.check_alive() else signal.SIGKILL)
    code = await ended
    return 128 - code if code < 0 else code


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
