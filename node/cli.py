"""The command line: the only place that reads flags, handles signals and ends its process.

Decides exit codes, the event loop, and the order start → app → join → leave → end. Does not
decide what a setting means (`node.settings`) or how a node leaves (`node.system`). Called by
`python -m node` and the `tenure` script.

A user's mistake is one line on stderr, what, why and what to do; a traceback is always a bug.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import importlib
import inspect
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from node.client import COMMANDS, parse_address, run_command
from node.errors import AddressInUseError, NoSeedError, SettingsError, TenureError
from node.logs import configure_logging
from node.settings import DEFAULT_PORT, Settings
from node.settings_loader import flag_name, load_settings, nearest, setting_types

if TYPE_CHECKING:
    from node.management import Management
    from node.system import ActorSystem

logger = logging.getLogger(__name__)

LEFT_IN_ORDER = 0
WRONG_USAGE = 2
REFUSED_AT_JOIN = 3  # by `system.terminated`, as 10, 11 and 12 are
NO_SEED = 4
ADDRESS_IN_USE = 5
APPLICATION_FAILED = 6
BUG = 70

DESCRIPTORS_WANTED = 65_536

LOOPS = ("auto", "uvloop", "asyncio")

# Setting → (how its value is written, what it means). One line per flag of `--help`.
HELP: dict[str, tuple[str, str]] = {
    "cluster_name": ("NAME", "only members of one name join each other (tenure)"),
    "name": ("NAME", "what people call this member; its identity is the address"),
    "roles": ("ROLE", "a role of this member; repeat for more"),
    "host": ("HOST", "bind here, and be reached here by the others (127.0.0.1)"),
    "port": ("PORT", f"control lane, and the member's address; 0 = chosen ({DEFAULT_PORT})"),
    "data_port": ("PORT", "data lane; told to the others by itself; 0 = chosen (0)"),
    "seeds": ("HOST:PORT", "a member to ask for the cluster; repeat for more, name your own too"),
    "state_dir": ("DIR", "remember the members here over restarts"),
    "found": ("", "begin a new cluster whoever else may be out there: the operator's word"),
    "insecure": ("", "allow binding outside loopback without keys: anybody there can join"),
    "app": ("MODULE:FUNCTION", "setup(system), plain or async, called before the join"),
    "http": ("HOST:PORT", "serve health, state and metrics here (off)"),
    "http_token_file": ("FILE", "orders over HTTP need this file's content as bearer token"),
    "history": ("FILE", "append what happens to this file, one JSON line per fact"),
    "log": ("text|json", "form of the log on stderr (text)"),
    "log_level": ("LEVEL", "debug, info, warning or error (info)"),
    "preset": ("local|lan|wan", "timings of failure detection (lan)"),
    "probe_interval_s": ("S", "one member is probed so often (by preset)"),
    "ack_timeout_s": ("S", "a probe is answered within this time (by preset)"),
    "weakly_up_after_s": ("S", "a joiner the cluster cannot agree on is let in weakly after (7)"),
    "crash_evidence": ("same-host|never", "whose word proves a crash: this host's kernel, or none"),
    "hand_over_timeout_s": ("S", "host without an answer of the old host after (10)"),
    "stop_timeout_s": ("S", "an actor may take so long to stop (5)"),
    "leave_timeout_s": ("S", "wait so long until all know of our leave (5)"),
    "shutdown_timeout_s": ("S", "the whole ordered shutdown takes at most (20)"),
    "buffer_size": ("N", "messages a singleton's proxy keeps while there is no host (1000)"),
    "frame_bytes_max": ("N", "the largest frame that is sent or taken (8388608)"),
}

EXIT_CODES = """\
exit codes: 0 left or SIGTERM in order, 2 usage or setting, 3 refused at join, 4 no seed resolves,
5 address in use, 6 application failed, 10 downed by strategy, 11 by operator, 12 no longer a
member, 70 a bug. Commands: 0, 1 the node says no, 2 usage, 69 not reachable.
"""


class ApplicationError(TenureError):
    """The application given with --app could not be imported, or its setup raised."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. argparse exits with 2 by itself."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in COMMANDS:
        return run_command(arguments[0], arguments[1:], os.environ)
    if arguments and not arguments[0].startswith("-"):
        return _unknown_command(arguments[0])
    parsed, unknown = _member_parser().parse_known_args(arguments)
    if unknown:
        return _unknown_flag(unknown[0])
    flags = vars(parsed)
    loop, config = flags.pop("loop"), flags.pop("config")
    try:
        settings = load_settings(flags, os.environ, config, defaults={"port": DEFAULT_PORT})
        new_loop = loop_factory(loop)
    except SettingsError as error:
        return _say(error, WRONG_USAGE)
    configure_logging(settings.log, settings.log_level)
    _raise_descriptor_limit()
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(run_member(settings))
    except Exception:
        logger.exception("a bug ended this member; please report the lines below")
        return BUG


async def run_member(settings: Settings) -> int:
    """Start a member, stay until it terminated, and return its exit code; a bug is raised."""
    try:
        return await _run_member(settings)
    except SettingsError as error:
        return _say(error, WRONG_USAGE)
    except NoSeedError as error:
        return _say(error, NO_SEED)
    except AddressInUseError as error:
        return _say(error, ADDRESS_IN_USE)
    except ApplicationError as error:
        return _say(error, APPLICATION_FAILED)


async def _run_member(settings: Settings) -> int:
    from node.system import ActorSystem  # not at the top: the client commands need no node

    application = None if settings.app is None else load_application(settings.app)
    door = None if settings.http is None else Door(settings)
    system = ActorSystem(settings)

    async def before_join() -> None:
        if door is not None:
            door.open(system)
        if application is not None:
            await set_up(application, settings.app or "", system)

    opening = asyncio.get_running_loop().create_task(
        system.open(before_join=before_join, before_close=door.close if door is not None else None)
    )
    end_on_signals(system, opening)
    try:
        await opening
    except asyncio.CancelledError:
        logger.info("ended before it looked for the cluster")
        return LEFT_IN_ORDER
    _settle_memory()
    ended = await system.terminated
    if ended.exit_code == LEFT_IN_ORDER:
        logger.info("ended in order", extra={"reason": ended.reason})
        return LEFT_IN_ORDER
    return _say(ended.reason, ended.exit_code)


class Door:
    """The HTTP of a member: reserved at once, served while the node already joins.

    The constructor raises `AddressInUseError` or `SettingsError`: before anything else is bound.
    """

    def __init__(self, settings: Settings) -> None:
        from node.management import reserve

        self._token_file = settings.http_token_file
        self._listener = reserve(*parse_address("http", settings.http or ""))
        self._serving: asyncio.Task[Management] | None = None

    def open(self, system: ActorSystem) -> None:
        """Begin to serve; not awaited, so that importing a server never delays the join."""
        from node.management import start_management

        self._serving = asyncio.get_running_loop().create_task(
            start_management(system, self._listener, token_file=self._token_file)
        )

    async def close(self) -> None:
        """Stop serving, and close the socket in any case; harmless when closed. Raises what
        serving raised."""
        serving, self._serving = self._serving, None
        try:
            if serving is not None:
                await (await serving).close()
        finally:
            self._listener.close()


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    """The event loop called `name`; `auto` is uvloop where it is installed.

    Raises `SettingsError` for a name that is none, and for `uvloop` where it is missing.
    """
    if name not in LOOPS:
        raise SettingsError(f"loop={name!r} is none of {', '.join(LOOPS)}: take one")
    if name == "asyncio":
        return asyncio.SelectorEventLoop
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError as error:
        if name == "auto":
            return asyncio.SelectorEventLoop
        raise SettingsError(
            f"loop=uvloop cannot be imported ({error}): install uvloop, or take --loop asyncio"
        ) from error
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def load_application(spec: str) -> Callable[[ActorSystem], object]:
    """The function `module:function` names, looked for from the working directory on.

    Raises `SettingsError` when it is no such pair, `ApplicationError` when it cannot be had.
    """
    module_name, colon, function_name = spec.partition(":")
    if not (module_name and colon and function_name):
        raise SettingsError(f"app={spec!r} is no MODULE:FUNCTION: write e.g. jobs.app:setup")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _application_error(spec, "cannot be imported", error) from error
        raise ApplicationError(
            f"app={spec!r}: there is no module {error.name!r} in {os.getcwd()} or among the "
            "installed packages: start in the directory that holds it, or install it"
        ) from error
    except (Exception, SystemExit) as error:
        raise _application_error(spec, "cannot be imported", error) from error
    function = getattr(module, function_name, None)
    if callable(function):
        found: Callable[[ActorSystem], object] = function
        return found
    guess = nearest(function_name, (name for name in vars(module) if name[0] != "_"))
    raise ApplicationError(
        f"app={spec!r}: {module_name} has no function {function_name!r}: "
        + (f"did you mean {module_name}:{guess}?" if guess else "define `def setup(system)` there")
    )


async def set_up(
    application: Callable[[ActorSystem], object], spec: str, system: ActorSystem
) -> None:
    """Call the application's setup, plain or async. Raises `ApplicationError` when it does."""
    try:
        result = application(system)
        if inspect.isawaitable(result):
            await result
    except (Exception, SystemExit) as error:
        raise _application_error(spec, "raised in its setup", error) from error


def end_on_signals(system: ActorSystem, opening: asyncio.Task[None]) -> None:
    """SIGTERM and SIGINT begin an ordered leave, or give the start up while it is `opening`; the
    second signal ends the process at once."""
    loop = asyncio.get_running_loop()
    leaving: list[asyncio.Task[None]] = []

    def on_signal(number: signal.Signals) -> None:
        if leaving:
            # The operator does not want to wait any longer: nothing else is done.
            os._exit(128 + number)
        logger.info("leaving; a second signal ends at once", extra={"signal": number.name})
        if opening.done():
            leaving.append(loop.create_task(system.leave()))
        else:
            opening.cancel()
            leaving.append(opening)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


def _raise_descriptor_limit() -> None:
    """Each peer costs about ten descriptors; the usual soft limit of 1,024 is for old programs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS has a lower bound of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _settle_memory() -> None:
    """What was built at start stays for good: no collection need look at it again."""
    gc.collect()
    gc.freeze()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(
            f"tenure: {message}: `python -m node --help` lists flags and commands",
            file=sys.stderr,
        )
        sys.exit(WRONG_USAGE)


def _member_parser() -> argparse.ArgumentParser:
    commands = "\n".join(f"  {name:<9} {text}" for name, (_, text) in COMMANDS.items())
    parser = _Parser(
        prog="python -m node",
        usage="python -m node [flags]  |  python -m node COMMAND [--help]",
        description="Starts a member of an actor cluster; with a command, talks to one.",
        epilog=f"commands:\n{commands}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for name, kind in setting_types().items():
        metavar, text = HELP[name]
        if kind is bool:
            parser.add_argument(
                flag_name(name), dest=name, help=text, action="store_const", const=True
            )
        else:
            parser.add_argument(
                flag_name(name),
                dest=name,
                help=text,
                metavar=metavar,
                action="append" if kind is tuple else "store",
            )
    parser.add_argument(
        "--config",
        metavar="FILE",
        default=os.environ.get("TENURE_CONFIG") or None,
        help="TOML file with settings; flags and TENURE_… variables go before it",
    )
    parser.add_argument(
        "--loop",
        metavar="|".join(LOOPS),
        default=os.environ.get("TENURE_LOOP") or "auto",
        help="event loop; auto is uvloop where it is installed (auto)",
    )
    return parser


def _unknown_command(word: str) -> int:
    guess = nearest(word, COMMANDS)
    mend = f"did you mean {guess}?" if guess else f"commands are {', '.join(COMMANDS)}"
    return _say(f"{word!r} is no command: {mend}", WRONG_USAGE)


def _unknown_flag(word: str) -> int:
    flags = [*(flag_name(name) for name in setting_types()), "--config", "--loop", "--help"]
    bare = {flag.removeprefix("--"): flag for flag in flags}
    guess = nearest(word.partition("=")[0].lstrip("-"), bare)
    mend = f"did you mean {bare[guess]}?" if guess else "`python -m node --help` lists all"
    return _say(f"{word} is no flag: {mend}", WRONG_USAGE)


def _application_error(spec: str, what: str, error: BaseException) -> ApplicationError:
    """Names the line of the application, the last one in the traceback that is not ours."""
    trace, where = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename != __file__ and "importlib" not in code.co_filename:
            where = f", {code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    logger.debug("the application failed", exc_info=error)
    return ApplicationError(
        f"app={spec!r} {what}: {type(error).__name__}: {error}{where}: "
        "mend it there; --log-level debug shows the traceback"
    )


def _say(what: object, exit_code: int) -> int:
    print(f"tenure: {what}", file=sys.stderr)
    return exit_code
