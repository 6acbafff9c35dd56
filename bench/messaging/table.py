"""What is judged: each metric, the figures it is made of, and its target.

Decides names, units, targets and which figures are divided by which. Ratios are made within a
round, from figures taken side by side, and their median counts; absolute figures are reported for
reading, since they move with the machine. Called by `rounds` and `results`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.messaging.child import NotMeasuredError
from bench.messaging.environments import PEERS
from bench.report import Row, row

OURS = "tenure"
CURVE = "tenure with CURVE"
RAW = "raw"
FLOOR = "floor"
OFF = "metrics off"
ON = "metrics on"


class Figure(NamedTuple):
    """A number of one row of one side."""

    side: str
    row: str
    key: str


# The figures of one round, or why there are none.
Round = Mapping[tuple[str, str], Mapping[str, float] | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """`value`, or `value` divided by `over`; with `loss`, what is missing to 1 in percent."""

    name: str
    unit: str
    value: Figure
    over: Figure | None = None
    loss: bool = False
    target: float | None = None
    at_least: bool = False
    note: str = ""

    @property
    def peers(self) -> set[str]:
        """The peers without which it does not exist."""
        return {figure.side for figure in (self.value, self.over) if figure} & PEERS.keys()

    def of(self, one: Round) -> float:
        """Its value in a round. Raises `NotMeasuredError` with the reason that there is none."""
        value = _number(one, self.value)
        if self.over is None:
            return value
        ratio = value / _number(one, self.over)
        # Negative losses are noise of the machine, and no gain.
        return max(0.0, (1.0 - ratio) * 100.0) if self.loss else ratio


def _number(one: Round, figure: Figure) -> float:
    figures = one.get((figure.side, figure.row), "not measured: the round ended before it")
    if isinstance(figures, str):
        raise NotMeasuredError(f"{figure.side}, {figure.row}: {figures}")
    return figures[figure.key]


def _ours(row: str, key: str) -> Figure:
    return Figure(OURS, row, key)


def _absolute(
    name: str, value: Figure, unit: str, least: float | None = None, note: str = ""
) -> Metric:
    return Metric(name=name, unit=unit, value=value, target=least, at_least=True, note=note)


def _at_most(name: str, value: Figure, unit: str, most: float | None, note: str = "") -> Metric:
    return Metric(name=name, unit=unit, value=value, target=most, note=note)


def _faster(name: str, row: str, key: str, other: str, least: float | None, note: str) -> Metric:
    return Metric(
        name=name,
        unit="×",
        value=_ours(row, key),
        over=Figure(other, row, key),
        target=least,
        at_least=True,
        note=note,
    )


def _slower(name: str, value: Figure, over: Figure, most: float, note: str) -> Metric:
    return Metric(name=name, unit="×", value=value, over=over, target=most, note=note)


_P50 = _ours("ask1", "p50_us")
_LOCAL = (
    _absolute("local_tell_per_s", _ours("local_tell", "per_s"), "/s", 1e6, "one actor, one system"),
    Metric(
        name="local_tell_vs_floor",
        unit="×",
        value=_ours("local_tell", "per_s"),
        over=Figure(FLOOR, "local_tell", "per_s"),
        target=0.2,
        at_least=True,
        note="of a deque with call_soon",
    ),
    _faster("local_tell_vs_casty", "local_tell", "per_s", "casty", 2.5, "of casty in one process"),
    _absolute("local_ask_per_s", _ours("local_ask1", "per_s"), "/s", 120e3, "one by one"),
    _at_most("local_ask_p50_us", _ours("local_ask1", "p50_us"), "µs", 8, "with a timeout"),
    _at_most("local_ask_p99_us", _ours("local_ask1", "p99_us"), "µs", 25, "with a timeout"),
    _absolute("local_asks64_per_s", _ours("local_ask64", "per_s"), "/s", 200e3, "64 askers"),
    _absolute("spawn_per_s", _ours("spawn", "per_s"), "/s", 100e3, "100,000 actors"),
    _at_most("idle_actor_bytes", _ours("spawn", "bytes"), "B", 1500, "resident, user object too"),
)
_ASKS = (
    _at_most("remote_ask_p50_us", _P50, "µs", None, "one outstanding"),
    _slower(
        "remote_ask_p50_vs_raw",
        _P50,
        Figure(RAW, "ask1", "p50_us"),
        1.35,
        "of a pyzmq echo through its descriptor",
    ),
    _slower("remote_ask_p99_vs_p50", _ours("ask1", "p99_us"), _P50, 4, "of our own median"),
    _slower(
        "remote_ask_p50_vs_casty", _P50, Figure("casty", "ask1", "p50_us"), 0.9, "of casty's median"
    ),
    _faster("remote_asks64_vs_raw", "ask64", "per_s", RAW, 1.2, "of the raw echo, 64 under way"),
    Metric(
        name="remote_asks64_vs_raw_tuned",
        unit="×",
        value=_ours("ask64", "per_s"),
        over=Figure(RAW, "ask64_tuned", "per_s"),
        note="of the raw echo taken part by part",
    ),
    _faster("remote_asks64_vs_casty", "ask64", "per_s", "casty", 2, "64 askers"),
    _faster("remote_asks1024_vs_casty", "ask1024", "per_s", "casty", 3, "1,024 askers"),
)
_TELLS = (
    _faster("remote_tell_vs_raw", "tell_100", "per_s", RAW, 1.5, "100 B, of DEALER to ROUTER"),
    _faster("remote_tell_vs_casty", "tell_100", "per_s", "casty", 3, "100 B"),
    _faster("bulk_1k_vs_raw", "tell_1k", "mb_per_s", RAW, 0.5, "of PUSH to PULL, copied"),
    _faster("bulk_64k_vs_raw", "tell_64k", "mb_per_s", RAW, 0.7, "of PUSH to PULL, copied"),
    _faster("bulk_1m_vs_raw", "tell_1m", "mb_per_s", RAW, 0.9, "of PUSH to PULL, copied"),
    _faster("bulk_1k_vs_casty", "tell_1k", "mb_per_s", "casty", 1.3, "1 KiB"),
    _faster("bulk_64k_vs_xoscar", "tell_64k", "mb_per_s", "xoscar", 1.5, "64 KiB"),
    _faster("bulk_1m_vs_casty", "tell_1m", "mb_per_s", "casty", 2.5, "1 MiB"),
)
_REST = (
    _slower("curve_ask_p50_vs_plain", Figure(CURVE, "ask1", "p50_us"), _P50, 1.5, "with keys"),
    Metric(
        name="probe_p99_ms_under_bulk",
        unit="ms",
        value=_ours("probe", "p99_ms"),
        target=20,
        note="control lane, 1 MiB messages to the same peer",
    ),
    _absolute("probe_bulk_mb_per_s", _ours("probe_bulk", "mb_per_s"), "MB/s", note="meanwhile"),
    Metric(
        name="metrics_cost_local",
        unit="%",
        value=Figure(ON, "local_tell", "per_s"),
        over=Figure(OFF, "local_tell", "per_s"),
        loss=True,
        target=5,
        note="of local tells, scraped every second",
    ),
    Metric(
        name="metrics_cost_remote",
        unit="%",
        value=Figure(ON, "tell_100", "per_s"),
        over=Figure(OFF, "tell_100", "per_s"),
        loss=True,
        target=3,
        note="of remote tells, both sides scraped",
    ),
)

# In this order they are shown.
JUDGED: tuple[Metric, ...] = (*_LOCAL, *_ASKS, *_TELLS, *_REST)

_REPORTED_ROWS = (
    ("ask_p50_us", "ask1", "p50_us", "µs"),
    ("ask_p99_us", "ask1", "p99_us", "µs"),
    ("asks64_per_s", "ask64", "per_s", "/s"),
    ("asks1024_per_s", "ask1024", "per_s", "/s"),
    ("tell_per_s", "tell_100", "per_s", "/s"),
    ("bulk_1k_mb_per_s", "tell_1k", "mb_per_s", "MB/s"),
    ("bulk_64k_mb_per_s", "tell_64k", "mb_per_s", "MB/s"),
    ("bulk_1m_mb_per_s", "tell_1m", "mb_per_s", "MB/s"),
)
_REPORTED_LOCAL_ROWS = (
    ("local_tell_per_s", "local_tell", "per_s", "/s"),
    ("local_ask_per_s", "local_ask1", "per_s", "/s"),
    ("local_asks64_per_s", "local_ask64", "per_s", "/s"),
    ("spawn_per_s", "spawn", "per_s", "/s"),
    ("idle_actor_bytes", "spawn", "bytes", "B"),
)


def reported(peers: Sequence[str]) -> list[Metric]:
    """The absolute figures of every side that was asked for, as far as the side has the row."""
    found: list[Metric] = []
    known = {metric.name for metric in JUDGED}
    for side, prefix in ((OURS, "remote"), (CURVE, "curve"), (RAW, "raw")):
        for name, row_name, key, unit in _REPORTED_ROWS:
            if f"{prefix}_{name}" not in known and not (side == RAW and row_name == "ask1024"):
                found.append(
                    _absolute(f"{prefix}_{name}", Figure(side, row_name, key), unit, note=side)
                )
    found.append(
        _absolute("raw_tuned_asks64_per_s", Figure(RAW, "ask64_tuned", "per_s"), "/s", note=RAW)
    )
    found.append(
        _absolute("floor_tell_per_s", Figure(FLOOR, "local_tell", "per_s"), "/s", note=FLOOR)
    )
    for peer in peers:
        parts, rows = PEERS[peer].parts, PEERS[peer].rows
        names = [
            one for one in _REPORTED_ROWS if "drive" in parts and one[1] in (rows or (one[1],))
        ]
        names += _REPORTED_LOCAL_ROWS if "local" in parts else ()
        found += [
            _absolute(f"{peer}_{name}", Figure(peer, row_name, key), unit, note=peer)
            for name, row_name, key, unit in names
        ]
    return found


def judge(metric: Metric, rounds: Sequence[Round], peers: Sequence[str]) -> Row:
    """The row of a metric over all rounds; one that needs a peer nobody asked for is empty."""
    not_asked = metric.peers.difference(peers)
    values: list[float] = []
    reasons: dict[str, None] = {}
    for one in () if not_asked else rounds:
        try:
            values.append(metric.of(one))
        except NotMeasuredError as reason:
            reasons[str(reason)] = None
    return row(
        metric.name,
        metric.unit,
        values,
        expected=0 if not_asked else len(rounds),
        target=metric.target,
        at_least=metric.at_least,
        note=f"not asked for: --peers {','.join(sorted(not_asked))}" if not_asked else metric.note,
        failures=list(reasons),
    )
