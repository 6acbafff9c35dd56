"""`python -m bench failover`: each level of protection against each fault.

Decides which cells run and on what network, and where the figures go. Where something is cut the
members are in network namespaces of their own and no crash is proven, as between hosts; the other
faults run on loopback, where the kernel proves a crash. Called by `bench.__main__`.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import report
from bench.failover import beside, pages
from bench.failover.prediction import Windows, unavailable_s
from bench.failover.rounds import FAULTS, PAUSES, Picture, Rounds, Samples
from bench.failover.stores import EtcdOfOne, SqliteFile, Store
from bench.gossip.namespaces import Hosts, NotPossibleError, can_make_networks
from bench.partition.cluster import Cluster, LoopbackNetwork, NamespaceNetwork
from bench.partition.subject import BLOCK, SENT, SHARDED
from bench.processes import Members, NotSeenError
from bench.report import Row

LEVELS = ("none", "downing", "lease", "lease+guard")
UNDER_LEASE = ("lease", "lease+guard")
CUT = ("partition", "partition-store", "one-way", "store-cut-host")
STORE_CUT = ("partition-store", "store-cut-host")
"""An SQLite file cannot be cut off."""
OF_STORE = ("store-outage", *STORE_CUT)
TTL_S, QUICK_TTL_S = 15.0, 3.0
CLUSTERS_MAX = 3
UNITS = {"sent": "", "handled_once": "", "handled_twice": "", "lost": "", "fenced_off": "",
         "steps_after_pause": ""}  # fmt: skip
ZERO = ("acting_overlap_s", "authoritative_overlap_s", "steps_after_pause", "fenced_off")
"""Asked to be 0 in every round, wherever the level promises it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its flags."""
    parser.add_argument("--levels", type=_names(LEVELS), default=LEVELS, metavar="NAME,…")
    parser.add_argument(
        "--faults", type=_names(FAULTS), default=FAULTS, metavar="NAME,…", help=", ".join(FAULTS)
    )
    parser.add_argument(
        "--store",
        choices=("sqlite", "etcd"),
        default="sqlite",
        help="of the leases: a file, or a real etcd on a host of its own (sqlite)",
    )
    parser.add_argument(
        "--subject",
        choices=("singleton", "sharding"),
        default="singleton",
        help="what must be unique: a singleton, or a sharded entity (singleton)",
    )
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="of each cell (10)")
    parser.add_argument("--nodes", type=int, default=3, metavar="N", help="members (3)")
    parser.add_argument("--ttl-s", type=float, metavar="S", help="of the lease (15; --quick: 3)")
    parser.add_argument("--seed", type=int, default=1, help="of instants (1)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="failover.{json,md,svg,html} here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument("--quick", action="store_true", help="one round, not to be quoted")
    parser.add_argument(
        "--peers",
        type=_names(tuple(beside.ADAPTERS)),
        default=(),
        metavar="NAME,…",
        help=f"beside them, a kill of each of {', '.join(beside.ADAPTERS)}",
    )


def _names(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def names(text: str) -> tuple[str, ...]:
        chosen = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        unknown = [name for name in chosen if name not in known]
        if unknown or not chosen:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown) or 'nothing'} is not known: name some of {', '.join(known)}"
            )
        return chosen

    return names


def run(arguments: argparse.Namespace) -> int:
    """Run the cells, write and draw; 1 when a count does not add up."""
    from rich.progress import Progress

    rounds = 1 if arguments.quick else arguments.rounds
    ttl_s = arguments.ttl_s or (QUICK_TTL_S if arguments.quick else TTL_S)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
    settings = {
        "levels": list(arguments.levels), "faults": list(arguments.faults), "rounds": rounds,
        "store": arguments.store, "nodes": arguments.nodes, "ttl_s": ttl_s, "seed": arguments.seed,
        "quick": arguments.quick, "subject": arguments.subject,
    }  # fmt: skip
    rows: list[Row] = []
    notes: list[str] = []
    drawn: dict[tuple[str, str], Picture] = {}
    cells = [
        (level, fault)
        for fault in arguments.faults
        for level in arguments.levels
        if level in UNDER_LEASE or fault not in OF_STORE
        if arguments.store != "sqlite" or fault not in STORE_CUT
        if arguments.subject == "singleton" or fault not in STORE_CUT
    ]
    with Progress(disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("rounds", total=len(cells) * rounds)
        for level, fault in cells:
            samples, skipped = Samples(), ""
            try:
                _cell(
                    arguments, level, fault, rounds, ttl_s, samples, lambda: progress.advance(bar)
                )
            except NotPossibleError as error:
                skipped = str(error)
            if skipped:
                notes.append(f"{fault} at level {level} was not run: {skipped}.")
                continue
            proofs = ", ".join(f"{n} x {what}" for what, n in samples.proofs.items())
            notes.append(f"{fault} at level {level}: {proofs}.")
            about = (samples, level, fault, ttl_s, arguments.store)
            found = rows_of(*about, sharded=arguments.subject == "sharding")
            rows += found
            if samples.picture is not None:
                drawn[level, fault] = samples.picture
            _write(arguments, settings, rows, drawn, notes, ttl_s)
    for peer in arguments.peers:
        try:
            rows.append(beside.measure(peer, rounds))
        except beside.NotAvailableError as error:
            notes.append(f"{peer} was not run: {error}.")
        _write(arguments, settings, rows, drawn, notes, ttl_s)
    report.draw("bench failover", [row for row in rows if row.metric in SHOWN])
    for line in pages.matrix(rows, arguments.levels, arguments.faults):
        print(" | ".join(line))
    return 1 if any(row.error for row in rows) else 0


SHOWN = ("unavailable_s", "after_expiry_s", "acting_overlap_s", "steps_after_pause", "return_s")


def _write(
    arguments: argparse.Namespace,
    settings: dict[str, object],
    rows: Sequence[Row],
    drawn: dict[tuple[str, str], Picture],
    notes: Sequence[str],
    ttl_s: float,
) -> None:
    """A long run that is stopped leaves what it has."""
    content = report.report("failover", settings, rows)
    for entry in content["rows"]:  # type: ignore[attr-defined]
        about = entry["note"].partition(";")[0]
        entry["fault"], _, entry["level"] = about.partition(" at level ")
        entry["store"] = arguments.store if entry["level"] in UNDER_LEASE else None
    if arguments.json is not None:
        report.write(arguments.json, content)
    if arguments.out is None:
        return
    report.write(arguments.out / "failover.json", content)
    pages.draw(drawn, arguments.out / "failover.svg")
    levels, faults = arguments.levels, arguments.faults
    quick = " --quick" if arguments.quick else ""
    command = (
        f"python -m bench failover --levels {','.join(levels)} --faults {','.join(faults)} "
        f"{'--subject sharding ' if arguments.subject == 'sharding' else ''}"
        f"--store {arguments.store} --rounds {settings['rounds']} --ttl-s {ttl_s:g}{quick} "
        "--out DIR"
    )
    text = pages.markdown(rows, levels, faults, command, notes)
    (arguments.out / "failover.md").write_text(text)
    page = pages.page(rows, levels, faults, arguments.out / "failover.svg")
    (arguments.out / "failover.html").write_text(page)


def _cell(
    arguments: argparse.Namespace,
    level: str,
    fault: str,
    rounds: int,
    ttl_s: float,
    samples: Samples,
    one_more: Callable[[], None],
) -> None:
    """All rounds of one cell; a cluster that gave up is replaced a few times."""
    dice = random.Random(f"failover {arguments.seed} {level} {fault}")
    done = 0
    for _ in range(CLUSTERS_MAX):
        if done >= rounds:
            return
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tenure-")))
            network, store = _places(stack, arguments, level, fault, directory)
            on_a_host = store is not None and store.host is not None
            cluster = stack.enter_context(
                Cluster(
                    directory,
                    network,
                    _flags(level, store, ttl_s),
                    spare=1 if on_a_host else 0,
                    guarded=level == "lease+guard",
                    environment={
                        SENT: str(directory / "sent"),
                        BLOCK: f"{PAUSES['pause-mid'] * ttl_s:g}",
                        SHARDED: "1" if arguments.subject == "sharding" else "",
                    },
                )
            )
            sharded = arguments.subject == "sharding"
            sent = directory / "sent"
            one = Rounds(cluster, fault, ttl_s, store, sent, dice, samples, sharded=sharded)
            try:
                cluster.start()
                while done < rounds:
                    one.run()
                    done += 1
                    one_more()
            except NotSeenError as error:
                samples.failures.append(str(error).splitlines()[0])
                done += 1


def _places(
    stack: ExitStack, arguments: argparse.Namespace, level: str, fault: str, directory: Path
) -> tuple[NamespaceNetwork | LoopbackNetwork, Store | None]:
    """Where the members of a cell run, and the store of its leases."""
    etcd = level in UNDER_LEASE and arguments.store == "etcd"
    hosts = None
    if fault in CUT:
        if not can_make_networks():
            raise NotPossibleError("only root can make network namespaces")
        hosts = stack.enter_context(Hosts(arguments.nodes + (1 if etcd else 0)))
    store: Store | None = None
    if etcd:
        try:
            store = stack.enter_context(EtcdOfOne(directory, hosts))
        except RuntimeError as error:
            raise NotPossibleError(str(error)) from error
    elif level in UNDER_LEASE:
        store = SqliteFile(directory / "leases.db")
    if hosts is not None:
        return NamespaceNetwork(hosts), store
    with Members(directory) as members:
        return LoopbackNetwork(members.free_ports(arguments.nodes)), store


def _flags(level: str, store: Store | None, ttl_s: float) -> list[str]:
    if store is None:
        return ["--protection", level]
    lease = ["--lease", store.url, "--lease-ttl-s", f"{ttl_s:g}"]
    return ["--protection", "downing+lease", *lease]


def target_of(
    metric: str,
    level: str,
    fault: str,
    *,
    store: str = "sqlite",
    ttl_s: float = TTL_S,
    sharded: bool = False,
) -> float | None:
    """The most a figure should be; None where nothing is asked, or where it is to be shown only.

    sharded: of an entity, which is built at its next message, and whose lease is its coordinator's.
    """
    if metric in ZERO and level != "none":
        return 0.0
    if sharded:
        return _target_of_entity(metric, level, fault)
    match level, fault, metric:
        case "lease+guard", "crash", "unavailable_s":
            return 1.0
        case "none", "crash", "unavailable_s":
            return 0.5
        case "downing", "crash", "unavailable_s":
            return 0.6
        case "lease", "crash", "after_expiry_s":
            return 0.7 if store == "etcd" else 0.3
        case (("lease" | "lease+guard"), "store-cut-host", "return_s"):
            return ttl_s + 2.0
        case "downing", "partition", "unavailable_s":
            return 10.0
        case (("lease" | "lease+guard"), "leave", "unavailable_s"):
            return 0.06 + STEP_S
        case _, "leave", "unavailable_s":
            return 0.02 + STEP_S
        case (("lease" | "lease+guard"), "store-outage", "return_s"):
            return 5.5
        case _, "leave", "lost":
            return 0.0
    return None


def _target_of_entity(metric: str, level: str, fault: str) -> float | None:
    match level, fault, metric:
        case "downing", "crash", "unavailable_s":
            return 1.0
        case _, "leave", "unavailable_s":
            return 1.0
        case _, "leave", "lost":
            return 0.0
        case (("lease" | "lease+guard"), "store-outage", "unavailable_s"):
            return 0.1 + STEP_S  # whose shard has a home goes on
    return None


STEP_S = 0.05
"""The subject acts so often: a gap of that length is none."""


def rows_of(
    samples: Samples,
    level: str,
    fault: str,
    ttl_s: float,
    store: str = "sqlite",
    *,
    sharded: bool = False,
) -> list[Row]:
    """A row per metric that was asked for; what must never be is judged by the worst round."""
    expected_s = None if sharded else unavailable_s(level, fault, Windows(ttl_s=ttl_s))
    found = []
    for metric, expected in samples.asked.items():
        if metric == "overrun_s" and level == "none":
            continue  # it is about a step that outlives its instance, and there none is stopped
        note = f"{fault} at level {level}; ttl {ttl_s:g} s"
        if metric == "unavailable_s" and expected_s is not None:
            note += f"; predicted {expected_s[0]:.2g} to {expected_s[1]:.3g} s"
        values = samples.values.get(metric, [])
        one = report.row(
            metric,
            UNITS.get(metric, "s"),
            values,
            expected=expected,
            target=target_of(metric, level, fault, store=store, ttl_s=ttl_s, sharded=sharded),
            note=note,
            failures=samples.failures if len(values) != expected else (),
        )
        if one.target == 0.0 and one.max is not None:
            fields = {name: getattr(one, name) for name in one.__slots__}
            one = Row(**(fields | {"met": one.max <= 0.0}))
        found.append(one)
    return found
