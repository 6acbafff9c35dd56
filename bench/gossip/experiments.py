"""What an experiment is: a plan of runs, a function that simulates one, and rows of the outcomes.

Decides how runs are spread over processes, and that a run that fails is told in the rows that miss
it. Does not decide what an experiment does: that is in `experiments_*`. Called by `simulate`.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from bench.report import Row, row

Outcome = Mapping[str, Any]

SEEDS_MIN = 2  # of these all runs are made, however long it takes; of further ones what fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of it: `members` and `seeds` override what the experiment would take; `is_full` is
    the whole grid, `is_quick` the least that runs everything once."""

    members: tuple[int, ...] | None = None
    seeds: int | None = None
    is_full: bool = False
    is_quick: bool = False

    def sizes(
        self, *, quick: Sequence[int], usual: Sequence[int], full: Sequence[int]
    ) -> list[int]:
        """The numbers of members."""
        if self.members is not None:
            return list(self.members)
        return list(quick if self.is_quick else full if self.is_full else usual)

    def pick(self, *, quick: Any, usual: Any, full: Any) -> Any:
        """One of three, by the scale."""
        return quick if self.is_quick else full if self.is_full else usual

    def seeds_of(self, *, usual: int, full: int, quick: int = 1) -> range:
        """The seeds, from 1."""
        count = self.seeds or (quick if self.is_quick else full if self.is_full else usual)
        return range(1, count + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One simulation: what decides it besides the code. `cell` names the conditions."""

    experiment: str
    members: int
    seed: int
    cell: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = " ".join(f"{key}={value}" for key, value in self.cell.items())
        return f"{self.experiment} N={self.members} {words} seed={self.seed}".replace("  ", " ")


@dataclass(slots=True)
class Results:
    """The outcomes of a plan, and why some are missing."""

    outcomes: list[tuple[Run, Outcome]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    planned: int = 0

    def of(self, members: int | None = None, **cell: object) -> list[Outcome]:
        """The outcomes under these conditions, by seed."""
        found = [
            (run.seed, outcome)
            for run, outcome in self.outcomes
            if (members is None or run.members == members)
            and all(run.cell.get(key) == value for key, value in cell.items())
        ]
        return [outcome for _, outcome in sorted(found, key=lambda one: one[0])]

    def sizes(self, **cell: object) -> list[int]:
        """The numbers of members under these conditions, ascending."""
        return sorted(
            {
                run.members
                for run, _ in self.outcomes
                if all(run.cell.get(key) == value for key, value in cell.items())
            }
        )

    def values(self, key: str, **cell: Any) -> list[Any]:
        """One figure of each outcome; lists of them are joined."""
        found: list[Any] = []
        for outcome in self.of(**cell):
            value = outcome[key]
            if isinstance(value, list | tuple):
                found.extend(value)
            else:
                found.append(value)
        return found

    def row(
        self,
        metric: str,
        unit: str,
        samples: Sequence[float],
        *,
        target: float | None = None,
        at_least: bool = False,
        note: str = "",
        why_none: str = "",
    ) -> Row:
        """A row of these samples; an experiment with a failed run tells so in each. why_none: the
        reason when there is no sample at all."""
        return row(
            metric,
            unit,
            samples,
            expected=max(len(samples), 1),
            target=target,
            at_least=at_least,
            note=note,
            failures=[*self.failures, *([] if samples or not why_none else [why_none])],
        )


class Experiment(NamedTuple):
    """plan: the runs. simulate: one of them, in a process of its own. rows, plot, notes: what is
    written of the outcomes."""

    plan: Callable[[Scale], list[Run]]
    simulate: Callable[[Run], Outcome]
    rows: Callable[[Results], list[Row]]
    plot: Callable[[Results], str | None]
    notes: Callable[[Results], list[str]]


def run_all(
    runs: Sequence[Run],
    simulate: Callable[[Run], Outcome],
    jobs: int,
    *,
    extra_until: float = math.inf,
) -> Iterator[tuple[Run, Outcome | str]]:
    """Each run with its outcome, or with the reason that there is none, as they end. An outcome has
    `cpu_s` beside its own figures: what the run took of one core.

    With one job all runs are made here; otherwise each in a process of its own, so that a run that
    takes the memory of the machine takes one process and not the bench. Runs of seeds above
    `SEEDS_MIN` come last, and none of them begins after `extra_until` (of `time.monotonic`).
    """
    waiting = deque(sorted(runs, key=lambda run: max(SEEDS_MIN, run.seed)))

    def has_next() -> bool:
        if waiting and waiting[0].seed > SEEDS_MIN and time.monotonic() >= extra_until:
            waiting.clear()
        return bool(waiting)

    if jobs <= 1:
        while has_next():
            run = waiting.popleft()
            yield run, _outcome_of(simulate, run)
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.gossip.simulate"])
    running: dict[Connection, tuple[Run, Any]] = {}
    try:
        while has_next() or running:
            while len(running) < jobs and has_next():
                run = waiting.popleft()
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_simulate_into, args=(theirs, simulate, run))
                process.start()
                theirs.close()
                running[ours] = (run, process)
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                run, process = running.pop(ready)
                try:
                    yield run, ready.recv()
                except EOFError:
                    process.join()
                    yield run, f"{run}: its process ended with {process.exitcode}"
                ready.close()
                process.join()
    finally:
        for _, process in running.values():
            process.kill()
            process.join()


def _simulate_into(
    pipe: Connection, simulate: Callable[[Run], Outcome], run: Run
) -> None:  # fmt: skip
    pipe.send(_outcome_of(simulate, run))
    pipe.close()


def _outcome_of(simulate: Callable[[Run], Outcome], run: Run) -> Outcome | str:
    began = time.process_time()
    # A network is millions of objects that live as long as the run, and makes next to no cycles:
    # looking for them again and again would take a third of the time.
    gc.disable()
    try:
        return {**simulate(run), "cpu_s": time.process_time() - began}
    except Exception:  # noqa: BLE001 - a bench goes on and tells which run failed
        return f"{run}: {traceback.format_exc(limit=-2)}"
    finally:
        gc.enable()
        gc.collect()
