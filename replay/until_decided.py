"""`kvmill replay --until-decided`: draw trajectories at random until no further one would change the recommendation.

The order of draws follows from the seed and is listed in the run's config beforehand; a batch at a time is replayed and
looked at with tests that allow for it (`looks`). A run that was broken off goes on with the same draws. All policies
stay in the run to its end, those out of the question too: in lockstep they share most of a pass, and every policy has
rows of the same trajectories.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..errors import NoAnswer, UserError
from ..traces.select import stream
from ..traces.store import Run, Store
from ..traces.trajectory import Trajectory
from .looks import KEY
from .noninferior import by_draw
from .recommend import CONFIDENCE, MAX_LOSS, check_limits, recommend
from .recorded import by_id
from .results import summary

BATCH, POOL = 8, 2_000
_FAMILIES = "SELECT count(DISTINCT family) AS n FROM trajectories WHERE trajectory_id IN (SELECT unnest($1::VARCHAR[]))"
_COUNTS = ("n_used", "n_available", "more_trajectories", "left_out")
_SAID = ("policy", "reason", "guarantee", "kv_saved", "decided", *_COUNTS, "limits")


class _Keyed(Protocol):
    @property
    def key(self) -> str: ...


Job = TypeVar("Job", bound=_Keyed)


@dataclass(frozen=True, slots=True)
class Until:
    """When to stop: at the confidence asked, looked at every `batch` trajectories, after `most` of them at the latest.

    `most` is of one call: a run that was not decided by then is resumed with a larger one, or with none.
    """

    max_loss: float = MAX_LOSS
    confidence: float = CONFIDENCE
    batch: int = BATCH
    most: int | None = None

    @classmethod
    def of(cls, asked: bool | None, before: Mapping[str, Any] | None, most: int | None, **given: Any) -> Until | None:
        """From flags, and from what the resumed run was to decide by (`before`). None for an ordinary run.

        UserError for limits without `--until-decided`, and for limits that are none.
        """
        if not asked and before is None:
            flags = {**given, "max_trajectories": most}
            if extra := [f"--{name.replace('_', '-')}" for name, value in flags.items() if value is not None]:
                raise UserError(f"{', '.join(extra)}: only for --until-decided; `kvmill recommend` decides afterwards")
            return None
        known = {name: (before or {}).get(name) if value is None else value for name, value in given.items()}
        until = cls(**{name: value for name, value in known.items() if value is not None}, most=most)
        check_limits(until.max_loss, until.confidence)
        for name, value in (("batch", until.batch), ("max-trajectories", until.most)):
            if value is not None and value < 1:
                raise UserError(f"--{name} {value}: give 1 or more")
        return until

    def drawn_first(self, store: Store, spec: str, seed: int) -> tuple[list[Trajectory], dict[str, int]]:
        """The trajectories of `spec` that are drawn first, and how many trajectories (`available`) and `families` there
        are in all: of a large set no more than 2,000 (or `most`) are ever read.
        """
        ids, _ = stream(store, spec)
        first = [ids[at] for at in by_draw(ids, seed)[: max(POOL, self.most or 0)]]
        found = by_id(store, first)
        trajectories = [found[name] for name in first]
        families = len({trajectory.family for trajectory in trajectories})
        if len(first) < len(ids):
            families = max(families, store.query(_FAMILIES, [ids])["n"][0].as_py())
        return trajectories, {"available": len(ids), "families": families}

    def drawn(self, trajectories: Sequence[Trajectory], seed: int) -> list[Trajectory]:
        """All of them in the order in which they are drawn. UserError if none has a probe to decide by."""
        if not any(trajectory.probes for trajectory in trajectories):
            raise UserError(
                "--until-decided needs answers with a known truth: no trajectory has a probe (see --probes)"
            )
        return [trajectories[at] for at in by_draw([trajectory.id for trajectory in trajectories], seed)]

    def config(self, trajectories: Sequence[Trajectory], counted: Mapping[str, int]) -> dict[str, Any]:
        """What the run's config keeps under `until_decided`. `counted` is that of `drawn_first`, or of the run that is
        resumed; empty where all are at hand.
        """
        families = len({trajectory.family for trajectory in trajectories})
        limits = {"max_loss": self.max_loss, "confidence": self.confidence, "batch": self.batch}
        return {**limits, "families": families, "available": len(trajectories), **counted}

    def batches(self, run: Run, jobs: Sequence[Job]) -> Iterator[list[Job]]:
        """The jobs (one per trajectory, in the order of draws) that are not in yet, batch by batch, until decided.

        A batch must be in the store before the next one is asked for.
        """
        done = run.keys()
        if done and self._over(run):
            return
        reach = jobs[: self.most]
        for start in range(0, len(reach), self.batch):
            if batch := [job for job in reach[start : start + self.batch] if job.key not in done]:
                yield batch
                if self._over(run):
                    return

    def _over(self, run: Run) -> bool:
        """Whether further draws could change nothing: decided, or no policy is left without failed cells.

        Nor are further ones tried where `full` itself has failed on all so far.
        """
        found = recommend(run.store, run.id)
        failed = {candidate["policy"] for candidate in found["candidates"] if candidate["failed"]}
        lost = 0 < found["n_used"] == found["left_out"]
        return found["decided"] or lost or failed >= {*run.info.config["policies"]} - {"full"}


def outcome(store: Store, run_id: str) -> dict[str, Any]:
    """The `results` of a run; of one that was to go on until decided also its answer: the keys of `recommend`."""
    found = summary(store, run_id)
    if found[KEY] is None:
        return found
    advice = recommend(store, run_id)
    return found | {name: advice[name] for name in _SAID}


def require_decided(found: Mapping[str, Any]) -> None:
    """NoAnswer (exit 4) where a run that was to be decided is not, or where no policy is good enough."""
    if found[KEY] is not None and not (found["decided"] and found["policy"]):
        raise NoAnswer(found["reason"], "accuracy" if found["decided"] else "trajectories")
