"""`Crew`: workers of a Ray cluster that hold one object each, and the jobs streamed to them.

A worker that dies is replaced. The job it was at is tried once more, after the others and by another worker; what
waited behind it is merely given to others. So a job is lost only if it takes two workers with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...console import note
from ...errors import UserError
from .cluster import machines, ray_itself
from .host import Host
from .shares import Share, share_out

WAITING_JOBS = 2  # of one worker: the one it is at, and the next, so that it never waits for the driver
_LOOK_S = 30.0
_END_S = 10.0
_MOST_STARTS = 3  # of workers that die before they have begun, one after the other


@dataclass(frozen=True, slots=True)
class Lost:
    """The outcome of a job whose workers died."""

    why: str


@dataclass(slots=True)
class _Task:
    job: Any
    arguments: tuple[Any, ...]
    deaths: int = 0


@dataclass(eq=False, slots=True)
class _Member:
    actor: Any
    opening: Any  # the reference to what `open` returns, None once it is there
    machine: str = ""
    flight: list[tuple[Any, _Task]] = field(default_factory=list)  # references and tasks, oldest first


class Crew:
    """`share.workers` workers; `make(*arguments)` is called in each. `welcome` gets what each says of itself.

    The arguments are put into the cluster once. Close it: its workers live until then.
    """

    def __init__(
        self, share: Share, make: Callable[..., Any], *arguments: Any, welcome: Callable[[Any], None] = lambda _: None
    ) -> None:
        self._ray, self._share, self._welcome = ray_itself(), share, welcome
        self._make, self._arguments = make, [self._ray.put(argument) for argument in arguments]
        self._failed_starts = 0
        self._members = [self._hired() for _ in range(share.workers)]

    def stream(
        self, jobs: Sequence[Any], method: str, *, arguments: Callable[[Any], tuple[Any, ...]], alone: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        """Call `method(*arguments(job))` of the workers for every job; yields (job, outcome) in whatever order.

        The outcome is what the method returned, or `Lost`. `alone`: one job at a time on each machine, and none while a
        worker starts anywhere. What a method raises is raised here.
        """
        waiting = deque(_Task(job, arguments(job)) for job in jobs)
        while waiting or any(member.flight for member in self._members):
            self._hand_out(waiting, method, alone)
            pending = {m.opening: m for m in self._members if m.opening is not None}
            pending |= {reference: m for m in self._members for reference, _ in m.flight}
            ready, _ = self._ray.wait(list(pending), num_returns=1, timeout=_LOOK_S)
            if not ready:
                self._look_around(alone)
                continue
            member = pending[ready[0]]
            if member.opening is not None:
                self._opened(member)
            else:
                yield from self._finished(member, waiting)

    def close(self) -> None:
        """End all workers, whatever they are at, and wait until they have ended."""
        pending = [member.opening for member in self._members if member.opening is not None]
        pending += [reference for member in self._members for reference, _ in member.flight]
        for member in self._members:
            self._ray.kill(member.actor)
        self._members = []
        if pending:
            self._ray.wait(pending, num_returns=len(pending), timeout=_END_S)

    def _hired(self) -> _Member:
        share = self._share
        kind = self._ray.remote(Host).options(num_cpus=share.threads, num_gpus=share.gpus, max_restarts=0)
        actor = kind.remote(str(Path.cwd()))
        return _Member(actor, actor.open.remote(self._make, *self._arguments))

    def _hand_out(self, waiting: deque[_Task], method: str, alone: bool) -> None:
        """A job to every worker without one; then a second one each, as long as more wait than there are workers."""
        able = [member for member in self._members if member.opening is None]
        if alone and len(able) < len(self._members):
            return  # one that loads its model is heard in what its machine measures, and may be on any
        if alone:
            able = list({member.machine: member for member in reversed(able)}.values())
        for depth in range(1 if alone else WAITING_JOBS):
            for member in able:
                if len(member.flight) == depth and len(waiting) > depth * len(able):
                    task = waiting.popleft()
                    member.flight.append((member.actor.call.remote(method, *task.arguments), task))

    def _opened(self, member: _Member) -> None:
        try:
            member.machine, about = self._ray.get(member.opening)
        except Exception as error:
            why = self._death(error)
            self._members.remove(member)
            self._failed_starts += 1
            if self._failed_starts >= _MOST_STARTS:
                raise UserError(f"{self._failed_starts} workers died while they started: {why}") from None
            self._members.append(self._hired())
            return
        self._failed_starts = 0
        self._welcome(about)
        member.opening = None

    def _finished(self, member: _Member, waiting: deque[_Task]) -> Iterator[tuple[Any, Any]]:
        """The outcomes of a member's oldest jobs that are done; if it died, its jobs go to others."""
        while member.flight:
            reference, task = member.flight[0]
            if not self._ray.wait([reference], timeout=0)[0]:
                return
            try:
                outcome = self._ray.get(reference)
            except Exception as error:
                yield from self._died(member, waiting, self._death(error))
                return
            member.flight.pop(0)
            yield task.job, outcome

    def _died(self, member: _Member, waiting: deque[_Task], why: str) -> Iterator[tuple[Any, Any]]:
        (_, guilty), *innocent = member.flight
        self._members.remove(member)
        self._ray.kill(member.actor)  # where it only could not be reached
        self._members.append(self._hired())
        waiting.extendleft(task for _, task in reversed(innocent))
        guilty.deaths += 1
        if guilty.deaths > 1:
            yield guilty.job, Lost(why)
        else:
            note(f"a worker died ({why}): its work is given to another one")
            waiting.append(guilty)

    def _death(self, error: Any) -> str:
        """How the worker died; what it raised itself is raised here as what it was."""
        ended = self._ray.exceptions
        if isinstance(error, ended.RayTaskError):
            raise error.cause if isinstance(error.cause, (UserError, OSError)) else error from None
        deaths = (ended.RayActorError, ended.WorkerCrashedError, ended.OutOfMemoryError, ended.ObjectLostError)
        if not isinstance(error, deaths):
            raise error
        _, _, detail = str(error).partition("Worker exit detail: ")
        return " ".join((detail or str(error)).partition("Some common causes")[0].split())[:300].rstrip(". ")

    def _look_around(self, alone: bool) -> None:
        """Nothing has happened for a while. UserError where nothing can: no machine has room for a worker any more.

        What runs alone waits for all workers, so those for whom a machine that is gone has left no room are given up.
        """
        opening = [member for member in self._members if member.opening is not None]
        if opening and (alone or len(opening) == len(self._members)):
            share = self._share
            room = share_out(machines(), threads=share.threads, gpus=share.gpus or None, on_gpus=share.gpus > 0).workers
            for member in opening[: max(0, len(self._members) - room)] if alone else ():
                self._ray.kill(member.actor)
                self._members.remove(member)
            note("waiting for the cluster to have room for a worker, or for workers to start")
