"""From what the engine measured to rows of the store, and the identity of a cell."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from ..traces.recall import scored_as
from ..traces.tokens import TokenTrajectory
from ..traces.trajectory import Trajectory
from .behaviour import Columns, cell_columns
from .engine import BranchRun, TurnRecord
from .latency import CallLatency
from .model import LoadedModel
from .policies.base import KvShape, Policy
from .policies.options import show_value

Rows = dict[str, list[dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Identity:
    """What makes two cells the same: equal identity, equal rows."""

    trajectory_id: str
    source: str
    family: str
    seed: int
    model: str
    fingerprint: str
    dtype: str
    device: str
    threads: int
    mode: str
    label_scorer: str | None = None  # how its probes are scored
    asked: str = ""  # how its actions are generated and read

    def cell(self, policy: Policy, measure: str) -> dict[str, Any]:
        """Key columns of one cell's row."""
        options = {f.name: _exact(getattr(policy, f.name)) for f in dataclasses.fields(policy) if f.name != "given"}
        own = dataclasses.astuple(self) if self.asked else dataclasses.astuple(self)[:-1]
        spelled = json.dumps([own, policy.name, options, measure])
        return {
            "cell_id": hashlib.sha256(spelled.encode()).hexdigest()[:16],
            "trajectory_id": self.trajectory_id,
            "family": self.family,
            "policy": str(policy),
        }

    def columns(self) -> dict[str, Any]:
        """The other identity columns of `cells`."""
        return {
            "source": self.source,
            "seed": self.seed,
            "model": self.model,
            "dtype": self.dtype,
            "device": self.device,
            "threads": self.threads,
            "mode": self.mode,
            "label_scorer": self.label_scorer,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Who:
    """What a cell's identity takes from the model and its machine: the same for all cells and workers of a run.

    `ways` says by source how actions are generated and read, where they are.
    """

    model: str
    fingerprint: str
    dtype: str
    device: str
    threads: int
    seed: int
    mode: str
    ways: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, model: LoadedModel, seed: int, mode: str, ways: Mapping[str, str]) -> Who:
        """For a model loaded on this machine."""
        return cls(
            model.name,
            f"{model.fingerprint}/{model.tokenizer.fingerprint}",
            model.dtype_name,
            f"{model.device}/{platform.machine()}",
            model.threads,
            seed,
            mode,
            ways,
        )

    def identity(self, trajectory: Trajectory) -> Identity:
        """The identity of a trajectory's cells."""
        return Identity(
            trajectory.id,
            trajectory.source,
            trajectory.family,
            self.seed,
            self.model,
            self.fingerprint,
            self.dtype,
            self.device,
            self.threads,
            self.mode,
            scored_as(trajectory),
            self.ways.get(trajectory.source, ""),
        )


def _exact(value: Any) -> str:
    """An option's value; a number in its one spelling, since keep=0.20 is the same policy as keep=0.2."""
    return show_value(value) if isinstance(value, Decimal) else str(value)


def failed_rows(identity: Identity, policies: Sequence[Policy], measure: str, error: str) -> Rows:
    """One failed `cells` row per policy."""
    return _without_figures(identity, policies, measure, "failed", error)


def skipped_rows(identity: Identity, policies: Sequence[Policy], measure: str, reason: str) -> Rows:
    """One skipped `cells` row per policy: not replayed, for a reason that is no failure."""
    return _without_figures(identity, policies, measure, "skipped", reason)


def _without_figures(identity: Identity, policies: Sequence[Policy], measure: str, status: str, why: str) -> Rows:
    shared = {**identity.columns(), "measure": measure, "status": status, "error": why}
    return {"cells": [{**identity.cell(policy, measure), **shared} for policy in policies]}


def quality_rows(
    identity: Identity,
    trajectory: Trajectory,
    tokens: TokenTrajectory,
    runs: Sequence[BranchRun],
    model: LoadedModel,
    *,
    cut_turns: int = 0,
    actions: Sequence[Sequence[Columns]] = (),
    answers: Sequence[Columns] = (),
) -> Rows:
    """All rows of a trajectory's quality cells. Likelihood figures are over turns 2…last, per scored token.

    `actions`: by run and turn, what `behaviour.action_columns` found; `answers`: by run, what `last_answer` did.
    """
    rows: Rows = {"cells": [], "turn_metrics": [], "probes": [], "kept": []}
    shape = model.shape()
    reference = [record.quality for record in runs[0].turns]
    spelled = _tokens(tokens, model, runs[0])
    chances = [1 / len(probe.candidates) for probe in trajectory.probes]
    shared = {"cut_turns": cut_turns, "chance_accuracy": sum(chances) / len(chances) if chances else None}
    for number, run in enumerate(runs):
        key = identity.cell(run.policy, "quality")
        done = actions[number] if actions else [{} for _ in run.turns]
        if run.error is not None:
            rows["cells"] += failed_rows(identity, [run.policy], "quality", run.error)["cells"]
            continue
        figures = {**_quality_cell(run, runs[0]), **cell_columns(done), **shared}
        figures |= answers[number] if answers else {}
        if wrong := [name for name, x in figures.items() if isinstance(x, float) and not math.isfinite(x)]:
            why = f"{', '.join(wrong)} came out as NaN or infinite: the model's numbers overflow in {identity.dtype}"
            rows["cells"] += failed_rows(identity, [run.policy], "quality", why)["cells"]
            continue
        rows["cells"].append({**key, **identity.columns(), **figures})
        rows["turn_metrics"] += [
            {**key, "measure": "quality", **_turn(record, full.nll, shape), **said}
            for record, full, said in zip(run.turns, reference, done, strict=True)
        ]
        rows["probes"] += [
            {
                **key,
                "probe_id": probe.id,
                "kind": probe.kind,
                "age_turns": len(trajectory.turns) - 1 - probe.fact_turn,
                "choice": found.choice,
                "correct": found.correct,
                "answer_ll": found.answer_ll,
                "answer_margin": found.answer_margin,
            }
            for probe, found in zip(trajectory.probes, run.probes, strict=True)
        ]
        assert run.kept is not None
        rows["kept"] += [
            {**key, **token, "share": share} for token, share in zip(spelled, run.kept.tolist(), strict=True)
        ]
    return rows


def _quality_cell(run: BranchRun, full: BranchRun) -> dict[str, Any]:
    later, reference = run.turns[1:], full.turns[1:]
    scored = sum(r.quality.tokens for r in later)
    last = run.turns[-1]

    def mean(total: float) -> float | None:
        return total / scored if scored else None

    probes = run.probes
    margins = [p.answer_margin for p in probes if p.answer_margin is not None]
    nll = sum(r.quality.nll for r in later)
    return {
        "measure": "quality",
        "status": "ok",
        "turns": len(run.turns),
        "logical_tokens": last.logical_tokens,
        "scored_tokens": scored,
        "nll": mean(nll),
        "delta_nll": mean(nll - sum(r.quality.nll for r in reference)),
        "kl": mean(sum(r.quality.kl for r in later)),
        "top1_agreement": mean(sum(r.quality.agreed for r in later)),
        "probes": len(probes),
        "answer_accuracy": sum(p.correct for p in probes) / len(probes) if probes else None,
        "answer_ll": sum(p.answer_ll for p in probes) / len(probes) if probes else None,
        "answer_margin": sum(margins) / len(margins) if margins else None,
        "kv_tokens_final": last.kv_rows,
        "kv_tokens_peak": max(r.counters.held_peak for r in run.turns),
        "kv_bytes_final": last.kv_bytes,
        "kv_bytes_peak": max(r.counters.kv_bytes_peak for r in run.turns),
        "aux_bytes_peak": max(r.counters.aux_bytes_peak for r in run.turns),
        "process_bytes": run.process_bytes,
        "reprefill_tokens": sum(r.counters.reprefill_tokens for r in run.turns),
        "copied_tokens": sum(r.counters.copied_tokens for r in run.turns),
        "compaction_flops": sum(r.work.flops for r in run.turns),
    }


def _turn(record: TurnRecord, full_nll: float, shape: KvShape) -> dict[str, Any]:
    quality, counters = record.quality, record.counters
    tokens = quality.tokens
    return {
        "turn": record.turn,
        "logical_tokens": record.logical_tokens,
        "scored_tokens": tokens,
        "nll": quality.nll / tokens if tokens else None,
        "delta_nll": (quality.nll - full_nll) / tokens if tokens else None,
        "kl": quality.kl / tokens if tokens else None,
        "top1_agreement": quality.agreed / tokens if tokens else None,
        "kv_tokens": record.kv_rows,
        "kv_tokens_peak": counters.held_peak,
        "kv_bytes": record.kv_bytes,
        "aux_bytes": record.aux_bytes,
        "transient_tokens": counters.transient_rows,
        "reprefill_tokens": counters.reprefill_tokens,
        "copied_tokens": counters.copied_tokens,
        "compactions": counters.compactions,
        "compaction_flops": record.work.flops,
    }


def _tokens(tokens: TokenTrajectory, model: LoadedModel, full: BranchRun) -> list[dict[str, Any]]:
    """Turn, kind, position, id, text and attention mass in the full run (None if not measured) of every token."""
    spelled = {token: model.tokenizer.token_text(token) for segment in tokens.segments for token in segment.ids}
    flat = [(segment, token) for segment in tokens.segments for token in segment.ids]
    mass = [None] * len(flat) if full.mass is None else full.mass.tolist()
    return [
        {"turn": s.turn, "kind": s.kind, "position": at, "token_id": token, "text": spelled[token], "mass_full": m}
        for at, ((s, token), m) in enumerate(zip(flat, mass, strict=True))
    ]


def latency_rows(
    identity: Identity,
    policy: Policy,
    calls: Sequence[CallLatency],
    repeats: int,
    wall_s: float,
    cut_turns: int = 0,
) -> Rows:
    """Rows of one latency cell; its figures are over the timed calls but the first turn's.

    `turn_spread`: the calls' spreads over their medians, as a ratio of sums; None for a single repeat.
    """
    key = identity.cell(policy, "latency")
    later = [call for call in calls if call.turn > 0] or list(calls)
    decoded = sum(call.decode_tokens for call in later)
    count = len(later)
    decode_s = sum(call.decode_s for call in later) / decoded if decoded else None
    spreads = [call.spread_s for call in later if call.spread_s is not None]
    cell = {
        **key,
        **identity.columns(),
        "measure": "latency",
        "status": "ok",
        "turns": count,
        "repeats": repeats,
        "cut_turns": cut_turns,
        "ttft_s": sum(call.ttft_s for call in later) / count,
        "tpot_s": decode_s,
        "prefill_s_per_turn": sum(call.prefill_s for call in later) / count,
        "compaction_s_per_turn": sum(call.compaction_s for call in later) / count,
        "decode_s_per_token": decode_s,
        "turn_spread": sum(spreads) / sum(call.turn_s for call in later) if spreads else None,
        "wall_s": wall_s,
    }
    turns = [
        {
            **key,
            "measure": "latency",
            "turn": call.turn,
            "ttft_s": call.ttft_s,
            "tpot_s": call.tpot_s,
            "prefill_s": call.prefill_s,
            "compaction_s": call.compaction_s,
            "decode_s": call.decode_s,
            "decode_tokens": call.decode_tokens,
            "spread_s": call.spread_s,
        }
        for call in calls
    ]
    return {"cells": [cell], "turn_metrics": turns}
