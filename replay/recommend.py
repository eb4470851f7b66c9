"""The policy to use: the smallest peak KV whose loss and latency stay within the limits, or why there is none yet.

A policy is acceptable if it is non-inferior to `full` (`noninferior`), at the asked confidence over all policies
tested together (Holm), if no family of trajectories collapses, and if it is not slower than allowed where latency was
measured. Accuracy means answers with a known truth; agreement with the uncompacted run is never taken for it. A failed
cell rules its policy out, but where `full` failed too: no policy is to blame for that, and the trajectory is left out.

A run that went on until this answer was decided is judged by tests that allow for that (`looks`).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from ..errors import UserError
from ..traces.store import Store
from .looks import KEY, Look, drawn_by, look_at, said
from .noninferior import betting, by_draw, differences, needed, paired, unseen
from .results import find_run
from .scored import scorers
from .statistics import FEW, difference, holm

Guarantee = Literal["none", "paired-interval", "learn-then-test", "anytime-valid"]
UNDECIDED = "its loss may exceed the limit"
WITHIN = "within the limits"
MAX_LOSS, CONFIDENCE = 0.05, 0.95

_SCORES = (
    "SELECT policy, trajectory_id, any_value(family) AS family, sum(answer_accuracy * probes) / sum(probes) AS score, "
    "avg(kv_tokens_peak) AS peak FROM cells WHERE run_id = $1 AND measure = 'quality' AND status = 'ok' "
    "AND answer_accuracy IS NOT NULL AND probes > 0 GROUP BY ALL ORDER BY ALL"
)
_FAILED = (
    "SELECT policy, count(*) FILTER (status = 'failed' AND NOT lost) AS failed, count(DISTINCT trajectory_id) FILTER "
    "(policy = 'full' AND measure = 'quality' AND status = 'failed') AS lost FROM (SELECT *, bool_or(policy = 'full' "
    "AND status = 'failed') OVER (PARTITION BY trajectory_id, measure) AS lost FROM cells WHERE run_id = $1) "
    "GROUP BY 1 ORDER BY 1"
)
_MEDIANS = (
    "SELECT policy, median(ttft_s + decode_s) AS turn_s FROM turn_metrics "
    "WHERE run_id = $1 AND measure = 'latency' AND turn > 0 AND ttft_s + decode_s IS NOT NULL GROUP BY policy"
)


@dataclass(frozen=True, slots=True)
class FamilyLoss:
    """Relative loss of one family, 1 − Σ policy / Σ full, and its interval (null for fewer than two trajectories)."""

    family: str
    loss: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """One policy under test. `loss` is relative to `full`; `latency` the relative change of the median turn.

    `p_paired` is None where trajectories were drawn until the answer was decided: no test of a fixed sample holds then.
    """

    policy: str
    n: int
    kv_tokens_peak: float
    kv_saved: float
    loss: float | None
    p_paired: float | None
    p_betting: float
    latency: float | None
    worst_family: FamilyLoss | None
    needed: int | None
    failed: int
    verdict: str = ""


def recommend(
    store: Store,
    run_id: str | None = None,
    *,
    max_loss: float | None = None,
    max_latency: float = 0.10,
    confidence: float | None = None,
    max_family_loss: float | None = None,
) -> dict[str, Any]:
    """The object that `kvmill recommend --json` prints (DESIGN.md section 8).

    `max_loss` and `confidence` are those that the run was to decide by, else 0.05 and 0.95, unless given. No family may
    lose more than `max_family_loss`: max_loss + 0.10 unless given. UserError for limits that are none, and without such
    a run.
    """
    check_limits(MAX_LOSS if max_loss is None else max_loss, CONFIDENCE if confidence is None else confidence)
    if not max_latency >= 0:
        raise UserError(f"--max-latency {max_latency}: give 0 or more, as 0.10")
    info = find_run(store, run_id, recorded=True)
    until: dict[str, Any] | None = info.config.get(KEY)
    asked = until or {"max_loss": MAX_LOSS, "confidence": CONFIDENCE}
    max_loss = float(asked["max_loss"] if max_loss is None else max_loss)
    confidence = float(asked["confidence"] if confidence is None else confidence)
    limit = round(max_loss + 0.10, 9) if max_family_loss is None else max_family_loss
    rows = store.query(_SCORES, [info.run_id]).to_pylist()
    drawn = drawn_by(store, info) if until else []
    if until:
        known = set(drawn)
        rows = [row for row in rows if row["trajectory_id"] in known]
    names = sorted({row["trajectory_id"] for row in rows})
    place = {names[i]: rank for rank, i in enumerate(by_draw(names))}
    rows.sort(key=lambda row: place[row["trajectory_id"]])
    full = {row["trajectory_id"]: row for row in rows if row["policy"] == "full"}
    medians = _medians(store, info.run_id)
    fates = store.query(_FAILED, [info.run_id]).to_pylist()
    failed, left_out = {row["policy"]: row["failed"] for row in fates}, sum(row["lost"] for row in fates)
    others = [policy for policy in failed if policy != "full"]
    candidates = [
        _candidate(
            policy, [r for r in rows if r["policy"] == policy], full, medians, failed, max_loss, confidence, bool(until)
        )
        for policy in others
    ]
    look = None
    if until:
        look = look_at(
            rows,
            drawn,
            others,
            failed=[c.policy for c in candidates if c.failed],
            doubted=[c.policy for c in candidates if c.n < FEW or _collapses(c, limit)],
            available=until["available"],
            kinds=until["families"],
            max_loss=max_loss,
            family_loss=limit,
            confidence=confidence,
        )
        candidates = [_proven(c, look) for c in candidates]
    judged = _judged(candidates, max_latency, limit, confidence, look)
    good = [c for c, g in judged if g != "none" and (look is None or c.policy == look.decision.policy)]
    chosen = min(good, key=lambda c: (c.kv_tokens_peak, c.policy), default=None)
    guarantee = next((g for c, g in judged if c is chosen), "none")
    listed = sorted((c for c, _ in judged), key=lambda c: (c.kv_tokens_peak, c.policy))
    return {
        "run": info.run_id,
        "model": info.config.get("model"),
        "label_scorers": scorers(store, info.run_id),
        "policy": chosen.policy if chosen else None,
        "reason": _reason(chosen, listed, full, max_loss, confidence, look) + _without(left_out),
        "guarantee": guarantee,
        "kv_saved": chosen.kv_saved if chosen else None,
        "latency": chosen.latency if chosen else None,
        "enough_trajectories": look.decision.decided
        if look
        else chosen is not None or all(c.n >= FEW and c.needed is None for c in listed),
        "more_trajectories": look.decision.more or None if look else None if chosen else _more(listed),
        "decided": look.decision.decided if look else None,
        "n_used": look.drawn if look else None,
        "n_available": look.available if look else None,
        "left_out": left_out,
        "worst_family": asdict(chosen.worst_family) if chosen and chosen.worst_family else None,
        "unseen_failures": unseen(chosen.n, confidence) if chosen else None,
        "limits": {
            "max_loss": max_loss,
            "max_latency": max_latency,
            "max_family_loss": limit,
            "confidence": confidence,
        },
        "candidates": [asdict(candidate) for candidate in listed],
    }


def _candidate(
    policy: str,
    mine: list[dict[str, Any]],
    full: dict[str, dict[str, Any]],
    medians: dict[str, float],
    failed: dict[str, int],
    max_loss: float,
    confidence: float,
    anytime: bool,
) -> Candidate:
    """`mine`: the policy's rows in the order of draw, which `betting` needs."""
    both = [row for row in mine if row["trajectory_id"] in full]
    theirs = [full[row["trajectory_id"]] for row in both]
    scores, reference = [row["score"] for row in both], [row["score"] for row in theirs]
    d = differences(scores, reference, max_loss)
    peak, whole = _mean([row["peak"] for row in both]), _mean([row["peak"] for row in theirs])
    return Candidate(
        policy,
        len(both),
        peak,
        1 - peak / whole if whole else 0.0,
        1 - sum(scores) / sum(reference) if sum(reference) else None,
        None if anytime else paired(d),
        1.0 if anytime else betting(d, max_loss, confidence),
        medians[policy] / medians["full"] - 1 if policy in medians and "full" in medians else None,
        _worst(both, theirs),
        needed(d, confidence),
        failed.get(policy, 0),
    )


def _proven(c: Candidate, look: Look) -> Candidate:
    """The candidate with the p value that may be looked at at any time."""
    if (proof := look.proofs.get(c.policy)) is None:
        return replace(c, needed=None)
    more = proof.more(look.bar) if proof.mean > 0 else None
    return replace(c, p_betting=math.exp(-proof.good), needed=None if more is None else c.n + more)


def _collapses(c: Candidate, family_limit: float) -> bool:
    return c.worst_family is not None and c.worst_family.loss > family_limit


def _judged(
    candidates: list[Candidate], max_latency: float, family_limit: float, confidence: float, look: Look | None
) -> list[tuple[Candidate, Guarantee]]:
    """Each candidate with its verdict in words and the strongest guarantee that holds."""
    level = 1 - confidence
    out: list[tuple[Candidate, Guarantee]] = []
    corrected = [holm([1.0 if c.p_paired is None else c.p_paired for c in candidates])]
    corrected.append(holm([c.p_betting for c in candidates]))
    for c, p_paired, p_betting in zip(candidates, *corrected, strict=True):
        guarantee: Guarantee = "none"
        proof = look.proofs.get(c.policy) if look else None
        if c.failed:
            verdict = f"{c.failed} cells failed"
        elif c.n < FEW:
            verdict = f"{c.n} trajectories with answers: fewer than {FEW} decide nothing"
        elif c.latency is not None and c.latency > max_latency:
            verdict = f"the median turn takes {c.latency:+.0%}, more than {max_latency:+.0%}"
        elif look and proof and proof.is_bad(look.bar):
            verdict = "proven to exceed a limit"
        elif c.worst_family and _collapses(c, family_limit):
            verdict = f"family {c.worst_family.family} loses {c.worst_family.loss:.0%}, more than {family_limit:.0%}"
        elif look and proof:
            guarantee = "anytime-valid" if proof.is_good(look.bar) else "none"
            verdict = WITHIN if proof.is_good(look.bar) else UNDECIDED
        elif min(p_paired, p_betting) > level:
            verdict = UNDECIDED
        else:
            guarantee = "learn-then-test" if p_betting <= level else "paired-interval"
            verdict = WITHIN
        out.append((replace(c, verdict=verdict), guarantee))
    return out


def _worst(mine: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> FamilyLoss | None:
    """The family with the largest loss; one in which `full` itself answers nothing has none to lose."""
    found: dict[str, tuple[float, list[float], list[float]]] = {}
    for family in sorted({row["family"] for row in mine}):
        pairs = [(m["score"], f["score"]) for m, f in zip(mine, theirs, strict=True) if m["family"] == family]
        scores, full = [m for m, _ in pairs], [f for _, f in pairs]
        if sum(full):
            found[family] = 1 - sum(scores) / sum(full), scores, full
    if not found:
        return None
    family = max(found, key=lambda name: found[name][0])
    loss, scores, full = found[family]
    # Both as shares of the full score: 1 − ratio, with the bootstrap of the difference of means.
    change, mean = difference(scores, full), sum(full) / len(full)
    low, high = (None if end is None else -end / mean for end in (change.high, change.low))
    return FamilyLoss(family, loss, low, high, len(scores))


def _reason(
    chosen: Candidate | None,
    listed: list[Candidate],
    full: dict[str, Any],
    max_loss: float,
    confidence: float,
    look: Look | None,
) -> str:
    if look and listed and full:
        return said(look, max_loss, confidence)
    if chosen:
        spared = unseen(chosen.n, confidence)
        return (
            f"the smallest peak KV ({chosen.kv_tokens_peak:,.0f} tokens) whose loss is at most {max_loss:.0%} of "
            f"full's accuracy at {confidence:.0%} confidence, {chosen.n} trajectories; that up to {spared:.0%} of "
            "trajectories fail outright could have gone unseen"
        )
    if not listed:
        return "the run has no policy but full"
    if not full:
        return "no answer in this run has a known truth: agreement with the uncompacted run is not accuracy"
    more = _more(listed)
    if more is not None:
        if any(c.needed for c in listed):
            return f"not enough trajectories: about {more} more would decide"
        return f"not enough trajectories: fewer than {FEW} decide nothing, {more} more are the least"
    of: dict[str, list[str]] = {}
    for c in listed:
        of.setdefault(c.verdict, []).append(c.policy)
    told = "; ".join(f"{', '.join(policies)}: {verdict}" for verdict, policies in of.items())
    return f"no policy stays within the limits: {told}"


def _without(left_out: int) -> str:
    count = "a trajectory" if left_out == 1 else f"{left_out} trajectories"
    return f"; left out: {count} on which full itself failed" if left_out else ""


def _more(listed: list[Candidate]) -> int | None:
    """How many more trajectories would show that some policy is good enough, if its figures stay what they are; where
    none would be, how many are missing before anything can be said.
    """
    undecided = [c for c in listed if not c.failed and (c.n < FEW or (c.needed and c.verdict == UNDECIDED))]
    wanted = [max(FEW, c.needed or FEW) - c.n for c in undecided]
    return max(1, min(wanted)) if wanted else None


def _medians(store: Store, run_id: str) -> dict[str, float]:
    return {row["policy"]: row["turn_s"] for row in store.query(_MEDIANS, [run_id]).to_pylist()}


def check_limits(max_loss: float, confidence: float) -> None:
    """UserError unless both are shares that can be tested."""
    if not 0 < max_loss < 1:
        raise UserError(f"--max-loss {max_loss}: give a share between 0 and 1, as 0.05")
    if not 0.5 <= confidence < 1:
        raise UserError(f"--confidence {confidence}: give 0.5 or more and less than 1, as 0.95")


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
