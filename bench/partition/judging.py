"""What happened in a round, read from the steps file alone.

Decides what an instance is, when it acted first and last, and how long two acted at once. Every
instant is CLOCK_BOOTTIME as the acting process wrote it. Pure: text in, figures out. Called by
`bench.partition.rounds` and `tests/processes`.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from pathlib import Path

from bench.partition.subject import DONE, STOP


@dataclass(frozen=True, slots=True)
class Handled:
    """An order that an instance handled; `token` as it stood in the line."""

    at_s: float
    instance: str
    number: int
    token: int | None


@dataclass(eq=False)
class Instance:
    """One life of the subject. `steps` are instants at which it began one, `authoritative` those
    at which it said to have authority, `done` at which one ended; all in order. `token` is that of
    its lease, None without one."""

    name: str
    node: str
    steps: list[float] = field(default_factory=list)
    authoritative: list[float] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    token: int | None = None

    def steps_from(self, at_s: float) -> list[float]:
        """The steps begun at this instant or later."""
        return self.steps[bisect.bisect_left(self.steps, at_s) :]


class StepsFile:
    """All instances that a steps file tells of, by name; `read` takes in what is new."""

    def __init__(self, path: Path) -> None:
        self.instances: dict[str, Instance] = {}
        self.handled: list[Handled] = []
        self._path = path
        self._read_bytes = 0

    def read(self) -> None:
        """Take in the lines written since the last time."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.decode().splitlines():
            at_s, node, name, kind, held, token, work = line.split(" ")
            instance = self.instances.setdefault(name, Instance(name, node))
            if kind == DONE:
                instance.done.append(float(at_s))
                continue
            if kind == STOP:
                continue
            instance.steps.append(float(at_s))
            if held == "1":
                instance.authoritative.append(float(at_s))
            instance.token = instance.token if token == "-" else int(token)
            if work != "-":
                self.handled.append(Handled(float(at_s), name, int(work), instance.token))

    def acting(self, since_s: float) -> list[Instance]:
        """Those that began a step at this instant or later, the newest first."""
        found = [one for one in self.instances.values() if one.steps and one.steps[-1] >= since_s]
        return sorted(found, key=lambda one: one.steps[0], reverse=True)

    def first_of_another(self, old: Instance, since_s: float) -> float | None:
        """When an instance that is not `old` first acted at this instant or later."""
        return min(
            (
                later[0]
                for one in self.instances.values()
                if one is not old and (later := one.steps_from(since_s))
            ),
            default=None,
        )

    def overlap_s(self, since_s: float) -> float:
        """For how long at most two instances acted at once: from the first step of the younger one
        to the last of the older. 0 when the older had begun its last step before."""
        return self._latest_after_younger(since_s, [(one, one.steps) for one in self._alive()])

    def authoritative_overlap_s(self, since_s: float) -> float:
        """As `overlap_s`, of the steps alone at which an instance said to have authority."""
        return self._latest_after_younger(
            since_s, [(one, one.authoritative) for one in self._alive()]
        )

    def overrun_s(self, since_s: float) -> float:
        """For how long at most a step that an older instance had begun ran on while a younger one
        acted."""
        return self._latest_after_younger(since_s, [(one, one.done) for one in self._alive()])

    def _alive(self) -> list[Instance]:
        return sorted(
            (one for one in self.instances.values() if one.steps), key=lambda one: one.steps[0]
        )

    def _latest_after_younger(
        self, since_s: float, written: list[tuple[Instance, list[float]]]
    ) -> float:
        worst_s = 0.0
        for place, (_, lines) in enumerate(written):
            if not lines or lines[-1] < since_s:
                continue
            for younger, _ in written[place + 1 :]:
                worst_s = max(worst_s, lines[-1] - younger.steps[0])
        return worst_s
