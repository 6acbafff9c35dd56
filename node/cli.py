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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any, Self

from node.addresses import parse_address
from node.client import COMMANDS, Parser, run_command
from node.errors import AddressInUseError, NoSeedError, SettingsError, TenureError
from node.logs import configure_logging
from node.settings import DEFAULT_PORT, Settings, nearest, setting_types
from node.settings_loader import flag_name, load_settings, service_variables
from node.tuning import tune_process

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
LEFT_OVER_TIMEOUT_S = 1.0

LOOPS = ("auto", "uvloop", "asyncio")

PROCESSES_FLAG, NO_RESTART_FLAG = "--processes", "--no-restart"
PORT_MAX = 65_535
UNNAMED_SEEDS = ("127.0.0.1:1",)
"""In the place of seeds that nobody named: members of one supervisor have the first one of them."""
KEYGEN = "keygen"
SIMULATE = "simulate"
SIMULATE_TEXT = "random faults of a whole cluster in virtual time, judged from outside"
KEYGEN_TEXT = "make the keys of a node, for --keys"

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
    "keys": ("DIR", "talk only to nodes whose keys are trusted in DIR (`keygen` makes it)"),
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
    "protection": (
        "LEVEL",
        "how unique singletons are: none, downing (keep-majority unless --downing says otherwise) "
        "or downing+lease (with --lease)",
    ),
    "downing": (
        "STRATEGY",
        "which side of a split lives: none, keep-majority, static-quorum:quorum_size=N, "
        "keep-oldest, keep-referee:referee=HOST:PORT, lease-majority, down-all; each with "
        "role=ROLE, as keep-majority:role=core (none)",
    ),
    "down_after_s": ("S", "decide on a view that was stable for so long (5; wan 10)"),
    "contact_s": ("S", "what is unique acts so long without new contact (2.5; wan 6)"),
    "down_all_when_unstable_s": ("S", "down everything when a view does not settle (off)"),
    "lease": (
        "URL",
        "the store of leases: sqlite:///var/lib/x.db, etcd://host:port, kubernetes://namespace",
    ),
    "lease_ttl_s": ("S", "a holder that crashed is respected for so long (15)"),
    "acquire_retry_interval_s": ("S", "a lease that somebody holds is asked for so often (5)"),
    "hand_over_timeout_s": ("S", "host without an answer of the old host after (10)"),
    "stop_timeout_s": ("S", "an actor may take so long to stop (5)"),
    "leave_timeout_s": ("S", "wait so long until all know of our leave (5)"),
    "shutdown_timeout_s": ("S", "the whole ordered shutdown takes at most (20)"),
    "buffer_size": ("N", "messages a singleton's proxy keeps while there is no host (1000)"),
    "frame_bytes_max": ("N", "the largest message that is sent or taken (8388608)"),
    "pending_bytes_max": ("N", "so much may wait for one peer; more is a dead letter (67108864)"),
    "blocked_after_s": ("S", "report a handler that keeps the event loop for so long (0.1)"),
}

EXIT_CODES = """\
exit codes: 0 left or SIGTERM in order, 2 usage or setting, 3 refused at join, 4 no seed resolves,
5 address in use, 6 application failed, 10 downed by strategy, 11 by operator, 12 no longer a
member, 70 a bug, or a singleton that would not stop. Commands: 0, 1 the node says no, 2 usage,
69 not reachable.
"""


# Files whose lines a user cannot mend: ours, and those of Python.
_ROOT = Path(__file__).parent.parent
NOT_APPLICATION = (
    *(f"{_ROOT / name}{os.sep}" for name in ("node", "downing", "gossip", "lease", "singleton")),
    f"{Path(os.__file__).parent}{os.sep}",
    "<frozen ",
)


class ApplicationError(TenureError):
    """The application given with --app could not be imported, or its setup raised."""


class InterruptedBySignalError(BaseException):
    """A signal cut code of the application short that does not give the loop back by itself."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. argparse exits with 2 by itself."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in COMMANDS:
        return run_command(arguments[0], arguments[1:], os.environ)
    if arguments and arguments[0] == KEYGEN:
        return make_keys(arguments[1:])
    if arguments and arguments[0] == SIMULATE:
        from node.testkit.simulate import main as simulate  # no member needs it

        return simulate(arguments[1:])
    if arguments and not arguments[0].startswith("-"):
        return _unknown_command(arguments[0])
    parsed, unknown = _member_parser().parse_known_args(arguments)
    if unknown:
        return _unknown_flag(unknown[0])
    flags = vars(parsed)
    loop, config = flags.pop("loop"), flags.pop("config")
    processes, restarts = flags.pop("processes"), not flags.pop("no_restart")
    guard_fd = flags.pop("guard_fd")
    try:
        defaults: dict[str, object] = {"port": DEFAULT_PORT}
        if processes is not None:
            defaults["seeds"] = UNNAMED_SEEDS
        settings = load_settings(flags, os.environ, config, defaults=defaults)
        new_loop = loop_factory(loop)
        if processes is not None:
            check_processes(processes, settings)
    except SettingsError as error:
        return _say(error, WRONG_USAGE)
    configure_logging(settings.log, settings.log_level)
    if processes is not None:
        return _supervise(arguments, settings, processes, restarts=restarts)
    ignored = service_variables(os.environ)
    if ignored:
        logger.info(
            "variables that Kubernetes sets for a Service are no settings, and ignored",
            extra={"variables": " ".join(ignored)},
        )
    _raise_descriptor_limit()
    with Signals() as signals:
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                code = runner.run(run_member(settings, signals, guard_fd))
                end_left_over_tasks(runner.get_loop(), code)
                return code
        except (Exception, asyncio.CancelledError, KeyboardInterrupt):  # no signal raises the last
            logger.exception("a bug ended this member; please report the lines below")
            return BUG


def end_left_over_tasks(loop: asyncio.AbstractEventLoop, code: int) -> None:
    """Cancel the tasks that the application left running; one that will not end is not waited for.

    The node has said that nothing of it acts any more, so the process must not live on: it ends
    here and now, with the exit code it would have had.
    """
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    _, running = loop.run_until_complete(asyncio.wait(tasks, timeout=LEFT_OVER_TIMEOUT_S))
    if running:
        names = ", ".join(sorted(repr(task.get_coro()) for task in running))
        logger.error("tasks of the application ignore cancellation", extra={"tasks": names})
        logging.shutdown()
        sys.stderr.flush()
        os._exit(code)


async def run_member(settings: Settings, signals: Signals, guard_fd: int | None = None) -> int:
    """Start a member, stay until it terminated, and return its exit code; a bug is raised.

    guard_fd: where to tell of its leases, for the crash guard of a supervisor.
    """
    try:
        return await _run_member(settings, signals, guard_fd)
    except SettingsError as error:
        return _say(error, WRONG_USAGE)
    except NoSeedError as error:
        return _say(error, NO_SEED)
    except AddressInUseError as error:
        return _say(error, ADDRESS_IN_USE)
    except ApplicationError as error:
        return _say(error, APPLICATION_FAILED)


async def _run_member(settings: Settings, signals: Signals, guard_fd: int | None) -> int:
    try:
        system = await _start(settings, signals, guard_fd)
    except (asyncio.CancelledError, InterruptedBySignalError):
        if signals.first is None:
            raise
        logger.info("ended before it looked for the cluster", extra={"signal": signals.first.name})
        return LEFT_IN_ORDER
    _settle_memory()
    ended = await system.terminated
    if ended.exit_code == LEFT_IN_ORDER:
        logger.info("ended in order", extra={"reason": ended.reason})
        return LEFT_IN_ORDER
    return _say(ended.reason, ended.exit_code)


async def _start(settings: Settings, signals: Signals, guard_fd: int | None) -> ActorSystem:
    """Bind, set the application up, and begin to look for the cluster."""
    from node.system import ActorSystem  # not at the top: the client commands need no node

    report = None
    if guard_fd is not None:
        from node.crash_guard import Report

        report = Report(guard_fd)
    application = None
    if settings.app is not None:
        with signals.interrupting():
            application = load_application(settings.app)
    if settings.http_token_file is not None:
        from node.management import read_token

        read_token("http_token_file", settings.http_token_file)
    door = None if settings.http is None else Door(settings)
    if report is not None:
        report.watch(asyncio.get_running_loop())
    system = ActorSystem(settings, report=report)

    async def before_join() -> None:
        if door is not None:
            door.open(system)
        if application is not None:
            await set_up(application, settings.app or "", system, signals)
        tune_process()

    loop = asyncio.get_running_loop()
    opening = loop.create_task(
        system.open(before_join=before_join, before_close=door.close if door is not None else None)
    )
    leaving: list[asyncio.Task[None]] = []

    def leave() -> None:
        """Begin the ordered leave, or give the start up while it is `opening`."""
        logger.info(
            "leaving; a second signal ends at once",
            extra={"signal": signals.first.name if signals.first else None},
        )
        if not opening.done():
            opening.cancel()
        elif not leaving:
            leaving.append(loop.create_task(system.leave()))

    signals.then(loop, leave)
    await opening
    if signals.first is not None and not leaving:
        leave()  # the setup swallowed the cancellation
    return system


def check_processes(count: int, settings: Settings) -> None:
    """Raises `SettingsError` for a number of members that cannot be, and for one that could not
    find each other."""
    from node.processes import PROCESSES_MAX

    if not 1 <= count <= PROCESSES_MAX:
        raise SettingsError(f"--processes {count} must be from 1 to {PROCESSES_MAX}")
    if not settings.port and settings.seeds == UNNAMED_SEEDS:
        raise SettingsError(
            f"--processes {count} without a port: the members could not find each other; give "
            "--port (each has the next one) or --seed"
        )
    _check_counted_ports(count, settings)


def _check_counted_ports(count: int, settings: Settings) -> None:
    """The ports of all members are counted up from the given ones: none may be two members'."""
    owners: dict[tuple[str, int], tuple[str, int]] = {}
    for key, (host, first) in settings.given_ports().items():
        flag = flag_name(key)
        if first + count - 1 > PORT_MAX:
            raise SettingsError(
                f"--processes {count} from {flag} {getattr(settings, key)} on goes beyond "
                f"{PORT_MAX}: begin lower"
            )
        for number in range(count):
            other, member = owners.setdefault((host, first + number), (flag, number))
            if other != flag:
                raise SettingsError(
                    f"--processes {count}: port {first + number} would be {other} of member "
                    f"{member} and {flag} of member {number}: give {other} and {flag} at least "
                    f"{count} apart"
                )


def _supervise(
    arguments: Sequence[str], settings: Settings, processes: int, *, restarts: bool
) -> int:
    from node.processes import Supervisor  # one member alone needs none

    async def supervise() -> int:
        given = without_own_flags(arguments)
        has_seeds = settings.seeds != UNNAMED_SEEDS
        supervisor = Supervisor(given, settings, processes, has_seeds=has_seeds, restarts=restarts)
        return await supervisor.run()

    return asyncio.run(supervise())


def without_own_flags(arguments: Sequence[str]) -> list[str]:
    """The flags of the members: all but those of their supervisor."""
    kept, values = [], 0
    for argument in arguments:
        if values:
            values = 0
        elif argument == PROCESSES_FLAG:
            values = 1
        elif argument != NO_RESTART_FLAG and not argument.startswith(f"{PROCESSES_FLAG}="):
            kept.append(argument)
    return kept


class Signals:
    """SIGTERM and SIGINT from `with` on: the first one ends in order, the second one at once.

    They are handled between two steps of Python code, not by the event loop: an application that
    does not give the loop back must not keep its operator from ending the process.
    """

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self._interrupting = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._act: Callable[[], None] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def then(self, loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
        """From now on the first signal calls `act` in `loop`; at once when it came before."""
        self._loop, self._act = loop, act
        if self.first is not None:
            act()

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """Around plain code of the application: the first signal cuts it short.

        Raises `InterruptedBySignalError` in it; before and after it in any case once a signal came.
        """
        if self.first is not None:
            raise InterruptedBySignalError
        self._interrupting = True
        try:
            yield
        finally:
            self._interrupting = False
            if self.first is not None:
                raise InterruptedBySignalError

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.first is not None:
            # The operator does not want to wait any longer: nothing else is done.
            os._exit(128 + number)
        self.first = signal.Signals(number)
        if self._interrupting:
            raise InterruptedBySignalError
        if self._loop is not None and self._act is not None:
            with contextlib.suppress(RuntimeError):  # closed: the end has come already
                self._loop.call_soon_threadsafe(self._act)


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
    except InterruptedBySignalError:
        raise
    except BaseException as error:
        raise _application_error(spec, "cannot be imported", error) from error
    function = getattr(module, function_name, None)
    if callable(function):
        found: Callable[[ActorSystem], object] = function
        return found
    guess = nearest(function_name, _functions_of(module))
    raise ApplicationError(
        f"app={spec!r}: {module_name} has no function {function_name!r}: "
        + (f"did you mean {module_name}:{guess}?" if guess else "define `def setup(system)` there")
    )


def _functions_of(module: object) -> list[str]:
    """The public functions a module defines itself; what it imported is no setup."""
    name = getattr(module, "__name__", "")
    return [
        key
        for key, value in vars(module).items()
        if key[0] != "_" and isinstance(value, FunctionType) and value.__module__ == name
    ]


async def set_up(
    application: Callable[[ActorSystem], object],
    spec: str,
    system: ActorSystem,
    signals: Signals,
) -> None:
    """Call the application's setup, plain or async.

    Raises `ApplicationError` for whatever it raises, a cancellation included, unless a signal
    has caused it.
    """
    try:
        with signals.interrupting():
            result = application(system)
        if inspect.isawaitable(result):
            await result
    except InterruptedBySignalError:
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and signals.first is not None:
            raise
        raise _application_error(spec, "raised in its setup", error, application) from error
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise ApplicationError(
            f"app={spec!r} has a yield in its setup, so nothing of it was run"
            f"{_defined_at(application)}: mend it there"
        )


def make_keys(argv: Sequence[str]) -> int:
    """`keygen`: make a key directory and say what to do with it; returns the exit code."""
    parser = Parser(
        prog=f"python -m node {KEYGEN}",
        description=f"{KEYGEN_TEXT[0].upper()}{KEYGEN_TEXT[1:]}. No file is ever overwritten.",
        allow_abbrev=False,
    )
    parser.add_argument("directory", metavar="DIR", help="made if there is none")
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        default="",
        help="where the node will be reached (its --host and --port): seeds need it",
    )
    parser.add_argument("--name", metavar="NAME", default="", help="for people: whose key this is")
    parsed = parser.parse_args(argv)
    from node import keys  # a member without keys never needs it

    try:
        line = keys.generate(parsed.directory, address=parsed.address, name=parsed.name)
    except SettingsError as error:
        return _say(error, WRONG_USAGE)
    directory = Path(parsed.directory)
    print(
        f"made in {directory}:\n"
        f"  {keys.SECRET_FILE:<8} the secret key: it stays on this node\n"
        f"  {keys.PUBLIC_FILE:<8} {line}\n"
        f"  {keys.TRUSTED_FILE:<8} who may connect: so far this node alone\n"
        f"next: add the line of {directory / keys.PUBLIC_FILE} to `{keys.TRUSTED_FILE}` of every "
        f"other node, and theirs to\n{directory / keys.TRUSTED_FILE}; then start with "
        f"--keys {directory}. A changed `{keys.TRUSTED_FILE}` is read\nwhile the node runs: a line "
        "that is removed revokes its key."
    )
    if not parsed.address:
        print(
            "note: without --address the line names no address: nodes that have this one as a "
            "seed need\nHOST:PORT behind the key."
        )
    return 0


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


def _member_parser() -> argparse.ArgumentParser:
    texts = {
        **{name: text for name, (_, text) in COMMANDS.items()},
        KEYGEN: KEYGEN_TEXT,
        SIMULATE: SIMULATE_TEXT,
    }
    commands = "\n".join(f"  {name:<9} {text}" for name, text in texts.items())
    parser = Parser(
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
        PROCESSES_FLAG,
        type=int,
        metavar="N",
        help="start N members, on ports from --port on, watch over them, and give back at once the "
        "leases of one that crashed",
    )
    parser.add_argument(
        NO_RESTART_FLAG,
        action="store_true",
        help="with --processes: members that end are not started again",
    )
    parser.add_argument("--guard-fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument(
        "--loop",
        metavar="|".join(LOOPS),
        default=os.environ.get("TENURE_LOOP") or "auto",
        help="event loop; auto is uvloop where it is installed (auto)",
    )
    return parser


def _unknown_command(word: str) -> int:
    known = [*COMMANDS, KEYGEN, SIMULATE]
    guess = nearest(word, known)
    mend = f"did you mean {guess}?" if guess else f"commands are {', '.join(known)}"
    return _say(f"{word!r} is no command: {mend}", WRONG_USAGE)


def _unknown_flag(word: str) -> int:
    flags = [*(flag_name(name) for name in setting_types()), "--config", "--loop", "--help"]
    bare = {flag.removeprefix("--"): flag for flag in flags}
    guess = nearest(word.partition("=")[0].lstrip("-"), bare)
    mend = f"did you mean {bare[guess]}?" if guess else "`python -m node --help` lists all"
    return _say(f"{word} is no flag: {mend}", WRONG_USAGE)


def _application_error(
    spec: str, what: str, error: BaseException, application: object = None
) -> ApplicationError:
    """Names the line of the application at which it can be mended."""
    from node.supervision import failure_text

    logger.debug("the application failed", exc_info=error)
    text = f"{type(error).__name__}: {failure_text(error)}".removesuffix(": ")
    where = _raised_at(error) or _defined_at(application)
    return ApplicationError(
        f"app={spec!r} {what}: {text}{where}: mend it there; --log-level debug shows the traceback"
    )


def _raised_at(error: BaseException) -> str:
    """`, file:line` of the application's innermost frame; of a package's where there is none."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f", {error.filename}:{error.lineno}"
    places, trace = [], error.__traceback__
    while trace is not None:
        places.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    installed = [place for place in places if "site-packages" in place[0]]
    others = [place for place in places if not place[0].startswith(NOT_APPLICATION)]
    own = [place for place in others if place not in installed]
    for file, line in (own or installed)[-1:]:
        return f", {file}:{line}"
    return ""


def _defined_at(application: object) -> str:
    """`, file:line` of a function; empty for what is none."""
    if not isinstance(application, FunctionType):
        return ""
    code = application.__code__
    return f", {code.co_filename}:{code.co_firstlineno}"


def _say(what: object, exit_code: int) -> int:
    print(f"tenure: {what}", file=sys.stderr)
    return exit_code
