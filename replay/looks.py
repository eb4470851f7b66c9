"""A look at a run that goes on until its recommendation is decided: what its draws so far prove of every policy.

Such a run (`kvmill replay --until-decided`) draws trajectories in a seeded order that its config lists beforehand, and
is looked at after every batch. Fixed-sample tests are not valid then; those of `sequential` are, at every look.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..traces.manifest import RunInfo
from ..traces.store import Store
from .noninferior import unseen
from .sequential import Decision, Proof, bar_for, decide, prove
from .statistics import FEW

KEY = "until_decided"
MARGIN = 0.01
"""Peaks nearer to each other than this share of full's peak count as equal."""
_BEGUN = "SELECT DISTINCT trajectory_id FROM cells WHERE run_id = $1 AND measure = 'quality'"


@dataclass(frozen=True, slots=True)
class Look:
    """`drawn` of `available` trajectories, `answered` of them with a known truth; `bar` is the log capital of proof.

    Of the policies in `failed` nothing is claimed, and nothing that is claimed of "every policy" includes them.
    """

    drawn: int
    available: int
    answered: int
    bar: float
    proofs: Mapping[str, Proof]
    decision: Decision
    failed: tuple[str, ...] = ()


def drawn_by(store: Store, info: RunInfo) -> list[str]:
    """The trajectories of such a run that count: the longest beginning of its order without a gap.

    Of a batch that was broken off, those that ended first may be the short ones: they are no random draw.
    """
    begun = set(store.query(_BEGUN, [info.run_id])["trajectory_id"].to_pylist())
    order: list[str] = info.config["trajectory_ids"]
    end = next((at for at, name in enumerate(order) if name not in begun), len(order))
    return order[:end]


def look_at(
    rows: Iterable[Mapping[str, Any]],
    drawn: Sequence[str],
    policies: Collection[str],
    *,
    failed: Collection[str],
    doubted: Collection[str],
    available: int,
    kinds: int,
    max_loss: float,
    family_loss: float,
    confidence: float,
) -> Look:
    """What `rows` (policy, trajectory_id, family, score, peak) of the trajectories `drawn`, in that order, prove.

    `failed` policies are out of the question; `doubted` ones may not be named yet (a family collapsed in what was
    drawn, or fewer than ten trajectories have their score). Fewer than ten answered trajectories decide nothing.
    """
    found = {(row["policy"], row["trajectory_id"]): row for row in rows}
    full = [found.get(("full", name)) for name in drawn]
    families = ["" if row is None else row["family"] for row in full]
    bar, answered = bar_for(len(policies), confidence), sum(row is not None for row in full)
    proofs: dict[str, Proof] = {}
    for policy in sorted(set(policies) - set(failed)) if answered else ():
        mine = [found.get((policy, name)) for name in drawn]
        proofs[policy] = prove(
            _column(mine, "score"),
            _column(full, "score"),
            families,
            max_loss,
            family_loss=family_loss,
            available=available,
            kinds=kinds,
        )
    shared = [name for name in drawn if all((policy, name) in found for policy in ("full", *proofs))]
    whole = np.array([found["full", name]["peak"] for name in shared])
    decision = decide(
        proofs,
        {policy: [found[policy, name]["peak"] for name in shared] for policy in proofs},
        doubted,
        bar=bar,
        margin=MARGIN * float(whole.mean()) if len(whole) else 0.0,
        level=(1 - confidence) / max(1, len(policies)),
    )
    if not proofs:
        decision = Decision(False, None, (), None)
    if answered < FEW:
        more = None if decision.more is None else max(decision.more, FEW - answered)
        decision = replace(decision, decided=False, policy=None, more=more)
    return Look(len(drawn), available, answered, bar, proofs, decision, tuple(sorted(failed)))


def said(look: Look, max_loss: float, confidence: float) -> str:
    """The answer of a look in words."""
    if look.failed and not look.proofs:
        return "nothing can be decided: every policy has failed cells"
    left_out = f"; nothing is said of {', '.join(look.failed)}: cells failed" if look.failed else ""
    return _answer(look, max_loss, confidence) + left_out


def _answer(look: Look, max_loss: float, confidence: float) -> str:
    at, found = f"after {look.drawn} of {look.available} trajectories", look.decision
    sure = f"at {confidence:.0%} confidence, however often one looks"
    within = f"loses at most {max_loss:.0%} of full's accuracy"
    if found.decided and found.policy:
        spared = unseen(look.answered, confidence)
        return (
            f"decided {at}: it {within}, {sure}, and no policy that does has a peak KV smaller by more than "
            f"{MARGIN:.0%} of full's; that up to {spared:.0%} of trajectories fail outright could have gone unseen"
        )
    if found.decided:
        return f"decided {at}: every policy exceeds a limit, {sure}"
    left = look.available - look.drawn
    about = "how many more would decide cannot be told yet"
    if found.more is not None:
        short = f", more than the {left} that are left" if found.more > left else ""
        about = f"about {found.more} more would decide (estimated){short}"
    good = f"; it {within}, {sure}, but {', '.join(found.open)} could still be better" if found.policy else ""
    return f"not decided {at}: {about}{good}"


def _column(rows: Sequence[Mapping[str, Any] | None], name: str) -> list[float]:
    return [float("nan") if row is None else row[name] for row in rows]
