"""`Bench`: runs simulations, remembers them, and spreads replications over a few processes or a Ray cluster.

Workers get the scenarios once. The results do not depend on how many there are, nor on where they are.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType

from ..errors import Incomplete
from ..replay.executors.choice import Executing
from ..replay.executors.cluster import machines
from ..replay.executors.crew import Crew, Lost
from ..replay.executors.shares import share_out
from .outcome import SimResult
from .run import Scenario, run_fleet

MOST_WORKERS = 8  # each holds the session plans of every policy
LOCAL = Executing()


@dataclass(frozen=True, slots=True)
class Variant:
    """Scenario `index` of the bench, on machines `slowdown` times slower, with `extra_turns` beyond its own, with
    `growth` times its tokens beyond the prefix, with or without its `shared` prefix, under `load` times its load, and
    `without` some effects of compaction.
    """

    index: int
    slowdown: float = 1.0
    extra_turns: float = 0.0
    growth: float = 1.0
    shared: bool = True
    load: float = 1.0
    without: frozenset[str] = frozenset()


Job = tuple[Variant, int, int]  # variant, replicas, seed


class Shelf:
    """The scenarios of one process, with their session plans: the plain ones for good, one variant at a time."""

    def __init__(self, scenarios: Sequence[Scenario]) -> None:
        self.scenarios = list(scenarios)
        self.last: tuple[Variant, Scenario] | None = None

    def get(self, variant: Variant) -> Scenario:
        """The scenario of a variant. One that differs in speed or load alone reuses the session plans."""
        plain = self.scenarios[variant.index]
        if variant == Variant(variant.index):
            return plain
        if self.last is None or self.last[0] != variant:
            self.last = (variant, _varied(plain, variant))
        return self.last[1]

    def run(self, job: Job) -> SimResult:
        """Simulate."""
        variant, replicas, seed = job
        return run_fleet(self.get(variant), replicas, seed)


def _varied(plain: Scenario, variant: Variant) -> Scenario:
    """`plain` changed as the variant says."""
    load = plain.workload.reshaped(variant.growth, variant.shared).at_load(variant.load)
    same_sessions = replace(variant, slowdown=1.0, load=1.0) == Variant(variant.index)
    return replace(
        plain,
        workload=load,
        slowdown=plain.slowdown * variant.slowdown,
        extra_turns=(1 + plain.extra_turns) * (1 + variant.extra_turns) - 1,
        without=plain.without | variant.without,
        twin=plain if same_sessions else None,
    )


_shelf: Shelf | None = None


def _open(scenarios: Sequence[Scenario]) -> None:
    global _shelf  # noqa: PLW0603 - a worker's state: the only way an executor's initialiser can hand it over
    _shelf = Shelf(scenarios)


def _run(job: Job) -> SimResult:
    assert _shelf is not None
    return _shelf.run(job)


class Bench:
    """`run` gives the results of a variant at a fleet size for several seeds; nothing is simulated twice.

    `workers` processes of this machine simulate, or those of the connected Ray cluster (`executing`).
    """

    def __init__(
        self,
        scenarios: Sequence[Scenario],
        workers: int = 1,
        tick: Callable[[str], None] = lambda _: None,
        executing: Executing = LOCAL,
    ) -> None:
        self.scenarios, self.tick = list(scenarios), tick
        self.results: dict[Job, SimResult] = {}
        self.shelf = Shelf(scenarios)
        self.firsts: dict[int, int] = {}  # scenario → the first one that is the same to a replica
        self.pool: ProcessPoolExecutor | None = None
        self.crew: Crew | None = None
        if executing.executor == "ray":
            share = share_out(machines(), workers=executing.workers, threads=1, on_gpus=False)
            self.crew = Crew(share, Shelf, self.scenarios)
        elif min(workers, MOST_WORKERS) > 1:
            self.pool = ProcessPoolExecutor(
                min(workers, MOST_WORKERS),
                multiprocessing.get_context("spawn"),
                initializer=_open,
                initargs=(self.scenarios,),
            )

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)
        if self.crew is not None:
            self.crew.close()

    def run(self, variant: Variant, replicas: int, seeds: Sequence[int]) -> list[SimResult]:
        """One result per seed, in order."""
        if variant == Variant(variant.index, variant.slowdown, load=variant.load):
            variant = replace(variant, index=self.first_like(variant.index))
        missing = [(variant, replicas, seed) for seed in seeds if (variant, replicas, seed) not in self.results]
        for job, result in self._simulated(missing):
            self.results[job] = result
            self.tick(f"{self.scenarios[variant.index].policy} on {result.gpus} GPUs")
        return [self.results[variant, replicas, seed] for seed in seeds]

    def _simulated(self, jobs: Sequence[Job]) -> Iterable[tuple[Job, SimResult]]:
        if self.crew is not None:
            return self._on_crew(self.crew, jobs)
        return zip(jobs, self.pool.map(_run, jobs) if self.pool else map(self.shelf.run, jobs), strict=True)

    def _on_crew(self, crew: Crew, jobs: Sequence[Job]) -> Iterator[tuple[Job, SimResult]]:
        for job, outcome in crew.stream(jobs, "run", arguments=lambda job: (job,)):
            if isinstance(outcome, Lost):
                what = f"{self.scenarios[job[0].index].policy} on {job[1]} replicas"
                raise Incomplete(f"the worker processes died that simulated {what} ({outcome.why})")
            yield job, outcome

    def first_like(self, index: int) -> int:
        """The first scenario whose sessions are the same to a replica: on a log of single turns every policy that
        waits a turn does what `full` does, and need not be simulated again.
        """
        if index not in self.firsts:
            one = self.scenarios[index]
            self.firsts[index] = next(i for i, other in enumerate(self.scenarios[: index + 1]) if _alike(one, other))
        return self.firsts[index]


def _alike(one: Scenario, other: Scenario) -> bool:
    if replace(one, policy=other.policy, keep_measured=other.keep_measured, pace=other.pace) != other:
        return False
    return all(one.plan_of(index) == other.plan_of(index) for index in one.positions.usable)
