"""Which trajectories a night replays: the pinned ones, and the newest of the store with families in turn."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UserError
from ..replay.recorded import by_id
from ..traces.select import select
from ..traces.store import Store
from ..traces.trajectory import Trajectory
from .config import NightConfig

_NEWEST = (
    "SELECT trajectory_id, any_value(family) AS family, max(created_at) AS added FROM trajectories "
    "JOIN runs USING (run_id) GROUP BY trajectory_id ORDER BY added DESC, trajectory_id"
)


@dataclass(frozen=True, slots=True)
class Choice:
    """`pinned` are ids that every night has; the others may change from night to night."""

    trajectories: tuple[Trajectory, ...]
    pinned: frozenset[str]

    @property
    def newest(self) -> int:
        """How many are there only for being new."""
        return len(self.trajectories) - len(self.pinned)


def choose(store: Store, config: NightConfig) -> Choice:
    """The trajectories of a night, pinned ones first, each once. UserError where there are none."""
    pinned: dict[str, Trajectory] = {}
    for spec in config.pinned:
        pinned |= {trajectory.id: trajectory for trajectory in select(store, spec)}
    kept = _per_family(list(pinned.values()), config.per_family)
    fresh = _newest(store, config, {trajectory.id for trajectory in kept})
    if not kept and not fresh:
        raise UserError(f"nothing to replay: {store} has no trajectories; ingest some or pin a bundled set")
    return Choice((*kept, *fresh), frozenset(trajectory.id for trajectory in kept))


def _per_family(trajectories: Sequence[Trajectory], most: int | None) -> list[Trajectory]:
    families: dict[str, list[Trajectory]] = {}
    for trajectory in sorted(trajectories, key=lambda t: t.id):
        families.setdefault(trajectory.family, []).append(trajectory)
    return [trajectory for _, family in sorted(families.items()) for trajectory in family[:most]]


def _newest(store: Store, config: NightConfig, taken: set[str]) -> list[Trajectory]:
    """The newest ingested ones that are not pinned: of each family its newest, then its second newest, and so on."""
    if not config.newest:
        return []
    allowed = None if config.newest_from == "all" else {t.id for t in select(store, config.newest_from)}
    families: dict[str, list[str]] = {}
    for row in store.query(_NEWEST).to_pylist():
        if row["trajectory_id"] not in taken and (allowed is None or row["trajectory_id"] in allowed):
            families.setdefault(row["family"], []).append(row["trajectory_id"])
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*(ids for _, ids in sorted(families.items()))))
    chosen = list(itertools.islice((name for name in in_turn if name is not None), config.newest))
    found = by_id(store, chosen)
    return [found[name] for name in chosen]
