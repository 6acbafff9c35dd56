"""The commands that talk to a running member over HTTP: status, members, shards, leave, down, ….

Decides what is printed and the exit code: 0, 1 the node says no, 2 usage, 69 not reachable.
Called by `node.cli`. Loads no aiohttp; http.client and rich only where they are used.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from node.addresses import parse_address
from node.errors import SettingsError

SAYS_NO = 1
USAGE = 2
NOT_REACHABLE = 69
INTERRUPTED = 130

TIMEOUT_S = 5.0
DOWN_TIMEOUT_S = 30.0
ANSWER_S = 5.0  # after the time given for an order, until the member has said how it ended
TIMEOUT_MAX_S = 3600.0
RETRY_S = 0.05


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one line, in the form of all others."""

    def error(self, message: str) -> NoReturn:
        """Print the line and exit with 2."""
        print(f"tenure: {message}: `{self.prog} --help` lists what there is", file=sys.stderr)
        sys.exit(USAGE)


class NotReachableError(Exception):
    """Nobody answered in HTTP at the address."""


class StrangerError(Exception):
    """Something else than a member answered at the address."""


class RefusedError(Exception):
    """The node answered, and the answer is no."""


def run_command(name: str, argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Carry out the command `name`; returns the exit code. argparse exits with 2 by itself."""
    command, text = COMMANDS[name]
    arguments = _parser(name, text).parse_args(argv)
    address = arguments.http or environ.get("TENURE_HTTP")
    if not address:
        print(
            "tenure: which member? Give --http HOST:PORT, the address it serves HTTP at",
            file=sys.stderr,
        )
        return USAGE
    try:
        host, port = parse_address("--http", address)
        return command(arguments, Connection(host, port, arguments.timeout_s))
    except SettingsError as error:
        print(f"tenure: {error}", file=sys.stderr)
        return USAGE
    except NotReachableError as error:
        print(
            f"tenure: no member answers at {address} ({error}): is it running, "
            f"and was it started with --http {address}?",
            file=sys.stderr,
        )
        return NOT_REACHABLE
    except StrangerError as error:
        print(
            f"tenure: no member answers at {address}, but something else ({error}): "
            f"give the address that a member was started with as --http",
            file=sys.stderr,
        )
        return NOT_REACHABLE
    except RefusedError as error:
        print(f"tenure: {address} says no: {error}", file=sys.stderr)
        return SAYS_NO
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser(name: str, text: str) -> argparse.ArgumentParser:
    parser = Parser(prog=f"python -m node {name}", description=f"{text}.", allow_abbrev=False)
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="where the member serves HTTP (or environment variable TENURE_HTTP)",
    )
    waits = "wait so long for its answer, and for it to start"
    timeout_s = TIMEOUT_S
    if name == DOWN:
        parser.add_argument("address", metavar="ADDRESS", help="HOST:PORT of the member to down")
        waits = "wait so long until it is down"
        timeout_s = DOWN_TIMEOUT_S
    if name == MOVE:
        parser.add_argument("name", metavar="NAME", help="the singleton, as /singletons shows it")
        parser.add_argument(
            "to", metavar="TO", nargs="?", help="HOST:PORT of the member that is to host it"
        )
        waits = "wait so long until it is there"
        timeout_s = DOWN_TIMEOUT_S
    if name == REBALANCE:
        parser.add_argument("type", metavar="TYPE", help="the sharded type, as /shards shows it")
    parser.add_argument(
        "--timeout-s",
        type=_timeout,
        default=timeout_s,
        metavar="S",
        help=f"{waits} ({timeout_s:g})",
    )
    if name in ORDERS:
        parser.add_argument(
            "--token-file", metavar="FILE", help="the token of the member, if it wants one"
        )
    else:
        parser.add_argument("--json", action="store_true", help="print the member's JSON")
    return parser


def _timeout(text: str) -> float:
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s <= TIMEOUT_MAX_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of seconds greater than 0 and at most {TIMEOUT_MAX_S:g}"
        )
    return timeout_s


class Connection:
    """One member's HTTP door. It may open within `timeout_s`: a member that was just started
    needs a moment."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._host = host
        self._port = port
        self._timeout_s = timeout_s

    def ask(
        self,
        method: str,
        path: str,
        headers: dict[str, str] | None = None,
        *,
        body: object = None,
        answer_s: float = 0.0,
    ) -> Any:
        """The JSON of the answer. Raises `NotReachableError`, `StrangerError` or `RefusedError`.

        body: sent as JSON, None for none. answer_s: so much more time for the answer alone.
        """
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._ask_once(method, path, headers or {}, body, answer_s)
            except ConnectionRefusedError as error:
                if time.monotonic() + RETRY_S > until:
                    raise NotReachableError(str(error)) from error
                time.sleep(RETRY_S)

    def _ask_once(
        self, method: str, path: str, headers: dict[str, str], body: object, answer_s: float
    ) -> Any:
        import http.client  # a member that starts never needs it

        connection = http.client.HTTPConnection(
            self._host, self._port, timeout=self._timeout_s + answer_s
        )
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, headers)
            response = connection.getresponse()
            answer = response.read()
        except ConnectionRefusedError:
            raise  # nothing was sent
        except (OSError, http.client.IncompleteRead) as error:
            raise NotReachableError(str(error) or type(error).__name__) from error
        except http.client.HTTPException as error:
            raise StrangerError("what it says is not HTTP") from error
        finally:
            connection.close()
        try:
            body = json.loads(answer)
        except ValueError as error:
            raise StrangerError(f"HTTP {response.status} without JSON") from error
        if response.status < 400:
            return body
        if isinstance(body, dict) and "error" in body:
            raise RefusedError(f"{body['error']}: {body.get('do', '')}")
        raise StrangerError(f"HTTP {response.status} without a reason")

    def cluster(self) -> dict[str, Any]:
        """The cluster as the member sees it. Raises as `ask`."""
        answer = self.ask("GET", "/cluster")
        if isinstance(answer, dict) and isinstance(answer.get("members"), list):
            return answer
        raise StrangerError("its /cluster has no members")


def _status(arguments: argparse.Namespace, member: Connection) -> int:
    cluster = member.cluster()
    singletons = member.ask("GET", "/singletons")
    shards, leases = _newer(member, "/shards"), _newer(member, "/leases")
    if arguments.json:
        more = {"singletons": singletons, "shards": shards, "leases": leases}
        print(json.dumps({**cluster, **more}, indent=2))
    else:
        _draw(cluster, singletons, shards, leases)
    return 0


def _newer(member: Connection, path: str) -> list[dict[str, Any]]:
    """What a member of an older version has not to show."""
    try:
        rows: list[dict[str, Any]] = member.ask("GET", path)
    except RefusedError:
        return []
    return rows


def _shards(arguments: argparse.Namespace, member: Connection) -> int:
    rows = member.ask("GET", "/shards")
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        print(row["type"], f"{row['shard_count']} shards", row["coordinator"] or "-", sep="  ")
        for address, shards in row["homes"].items():
            print(f"  {address}  {len(shards)}  {_ranges(shards)}")
        for move in row["moves"]:
            print(f"  shard {move['shard']} at {move['node']}: {move['state']}")
        print(f"  {row['explain']}")
    return 0


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3,7,9-12`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _members(arguments: argparse.Namespace, member: Connection) -> int:
    members = member.cluster()["members"]
    if arguments.json:
        print(json.dumps(members, indent=2))
        return 0
    for row in members:
        reachable = "reachable" if row["reachable"] else "unreachable"
        roles = ",".join(row["roles"]) or "-"
        print(row["address"], row["status"], reachable, row["name"] or "-", roles, row["uid"])
    return 0


def _leave(arguments: argparse.Namespace, member: Connection) -> int:
    member.ask("POST", "/cluster/leave", _authorization(arguments))
    print("the member hands over, leaves and ends")
    return 0


def _down(arguments: argparse.Namespace, member: Connection) -> int:
    address = arguments.address
    parse_address("ADDRESS", address)
    order = {"address": address, "timeout_s": arguments.timeout_s}
    answer = member.ask(
        "POST", "/cluster/down", _authorization(arguments), body=order, answer_s=ANSWER_S
    )
    ends_itself = isinstance(answer, dict) and answer.get("ending")
    print(f"{address} ends" if ends_itself else f"{address} is down")
    return 0


def _move(arguments: argparse.Namespace, member: Connection) -> int:
    order = {"name": arguments.name, "timeout_s": arguments.timeout_s}
    if arguments.to is not None:
        parse_address("TO", arguments.to)
        order["to"] = arguments.to
    answer = member.ask(
        "POST", "/singletons/move", _authorization(arguments), body=order, answer_s=ANSWER_S
    )
    host = answer.get("host") if isinstance(answer, dict) else None
    print(f"{arguments.name} is at {host or arguments.to}")
    return 0


def _rebalance(arguments: argparse.Namespace, member: Connection) -> int:
    order = {"type": arguments.type}
    answer = member.ask("POST", "/shards/rebalance", _authorization(arguments), body=order)
    explain = answer.get("explain") if isinstance(answer, dict) else None
    print(f"{arguments.type} is rebalanced, a round at a time; now {explain or '-'}")
    return 0


def _authorization(arguments: argparse.Namespace) -> dict[str, str]:
    """The header that gives the token, if there is one."""
    if arguments.token_file is None:
        return {}
    from node.management import read_token

    return {"Authorization": f"Bearer {read_token('--token-file', arguments.token_file)}"}


def _reachable(row: dict[str, Any]) -> tuple[str, str]:
    """A word, and its colour."""
    if not row["reachable"]:
        return "no", "bold red"
    if row.get("unresponsive"):  # a member of an older version does not say
        return "unresponsive", "yellow"
    return ("suspect", "yellow") if row.get("suspect") else ("yes", "green")


def _draw(
    cluster: dict[str, Any],
    singletons: list[dict[str, Any]],
    shards: list[dict[str, Any]],
    leases: list[dict[str, Any]],
) -> None:
    """The tables of `status`; colours only on a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    members = Table(title=_title(cluster), title_justify="left", title_style="bold")
    for heading in ("address", "name", "status", "reachable", "age", "roles", ""):
        members.add_column(heading)
    for row in cluster["members"]:
        reachable = Text(*_reachable(row))
        members.add_row(
            Text(row["address"]),
            Text(row["name"]),
            Text(row["status"], "green" if row["status"] == "up" else "yellow"),
            reachable,
            str(row["up_number"] or "-"),
            Text(" ".join(row["roles"])),
            Text(", ".join(_marks(cluster, row)), "dim"),
        )
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(members)
    for link in cluster["links"]:
        console.print(Text(f"{link['observer']} does not reach {link['subject']}", "yellow"))
    for line, colour in _downing_lines(cluster):
        console.print(Text(line, colour))
    for table in _tables(singletons, shards, leases):
        console.print(table)
    if not cluster["converged"]:
        console.print(Text(cluster["explain"], "yellow"))


def _tables(
    singletons: list[dict[str, Any]], shards: list[dict[str, Any]], leases: list[dict[str, Any]]
) -> Iterator[object]:
    """Of all that is not empty."""
    from rich.text import Text

    yield from _table(
        "singletons",
        ("name", "host", "here", "started", "why"),
        [
            (
                row["name"],
                Text(row["host"] or "nobody", "" if row["host"] else "bold red"),
                row["state"],
                row["started_at"] or "-",
                row["explain"] or "",
            )
            for row in singletons
        ],
    )
    yield from _table(
        "sharded types",
        ("type", "coordinator", "shards per node", "entities here", "held", "why"),
        [
            (
                row["type"],
                Text(row["coordinator"] or "nobody", "" if row["coordinator"] else "bold red"),
                ", ".join(f"{count} at {node}" for node, count in row["counts"].items()) or "-",
                row["entities_here"],
                Text(str(row["held"]), "yellow" if row["held"] else ""),
                row["explain"],
            )
            for row in shards
        ],
    )
    yield from _table(
        "leases",
        ("name", "holder", "token", "valid for", "why"),
        [
            (
                row["name"],
                row["holder"] or "nobody that it knows of",
                row["token"] or "-",
                "-" if row["valid_for_s"] is None else f"{row['valid_for_s']:.1f} s",
                row["explain"],
            )
            for row in leases
        ],
    )


def _table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[object]]
) -> Iterator[object]:
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    table = Table(title=title, title_justify="left", title_style="bold")
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        cells = [cell if isinstance(cell, Text) else Text(str(cell)) for cell in row]
        table.add_row(*cells)
    yield table


def _downing_lines(cluster: dict[str, Any]) -> list[tuple[str, str]]:
    """What `status` says of downing, each line with its colour; nothing of an older version."""
    downing = cluster.get("downing")
    if not isinstance(downing, dict):
        return []
    verdict, decides_in_s = downing.get("verdict"), downing.get("decides_in_s")
    words = [f"downing {downing.get('strategy')}"]
    if verdict:
        words.append(str(verdict))
    if decides_in_s:
        words.append(f"decides in {decides_in_s:.1f} s")
    line = f"{', '.join(words)}: {downing.get('explain', '')}"
    lines = [(line, "yellow" if verdict or downing.get("doomed") else "dim")]
    contact = downing.get("contact")
    if contact and contact["asked"]:
        lost = not contact["held"]
        line = f"contact {'lost: ' if lost else ''}{contact['explain']}"
        lines.append((line, "bold red" if lost else "dim"))
    return lines + [(f"warning: {warning}", "yellow") for warning in downing.get("warnings", ())]


def _title(cluster: dict[str, Any]) -> str:
    converged = "converged" if cluster["converged"] else "not converged"
    return f"{cluster['cluster']} as {cluster['self']['address']} sees it, {converged}"


def _marks(cluster: dict[str, Any], row: dict[str, Any]) -> list[str]:
    """What is special about a member: asked, leader, oldest."""
    own = cluster["self"]
    marks = {
        "this one": row["address"] == own["address"] and row["uid"] == own["uid"],
        "leader": row["address"] == cluster["leader"],
        "oldest": row["address"] == cluster["oldest"],
    }
    return [mark for mark, holds in marks.items() if holds]


DOWN, MOVE, REBALANCE = "down", "move", "rebalance"
ORDERS = ("leave", DOWN, MOVE, REBALANCE)  # they may need a token

COMMANDS: dict[str, tuple[Callable[[argparse.Namespace, Connection], int], str]] = {
    "status": (_status, "show members and singletons as one member sees them"),
    "members": (_members, "list the members, one line each"),
    "leave": (_leave, "ask a member to hand over, leave and end"),
    DOWN: (_down, "let a member down another one for good, dead or alive"),
    MOVE: (_move, "move a singleton to another member, in order"),
    "shards": (_shards, "show which shards live where, as one member sees them"),
    REBALANCE: (_rebalance, "spread the shards of a sharded type evenly, a round of it now"),
}
