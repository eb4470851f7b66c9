"""From closed-loop runs to rows of the store: how a run ended, what it asked, how right it was, what it held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...errors import UserError
from ...traces.trajectory import Trajectory
from ..judges.calls import REFUSED, recorded_actions
from ..judges.registry import LLM, judge_answer, scorer_of
from ..probes import ProbeAnswer
from ..session import Held
from .agent import Ran
from .environment import How, search_query
from .episode import Episode, Step
from .repeats import Similarity, repeats

Row = dict[str, Any]
HOWS: tuple[How, ...] = ("exact", "searched", "error")


def cell_columns(trajectory: Trajectory, episode: Episode, ran: Ran, similar: Similarity) -> Row:
    """The columns of one cell of `cells` that are not its identity."""
    answers = [answer for step in episode.steps for answer in step.answers]
    asked = [answer.query for answer in answers if answer.query]
    before = [query for call in episode.environment.seeded if (query := search_query(call))]
    same, near = repeats(asked, before, similar)
    by_how = Counter(answer.how for answer in answers)
    return {
        "status": "ok",
        "turns": episode.turns,
        "seed_turns": episode.seeds,
        "recorded_turns": len(trajectory.turns),
        "end_reason": episode.end,
        "generated_tokens": sum(step.said.tokens for step in episode.steps),
        "calls": len(answers),
        **{f"calls_{how}": by_how[how] for how in HOWS},
        "repeated_calls": sum(answer.repeated for answer in answers),
        "searches": len(asked),
        "repeated_searches": same,
        "near_repeats": near,
        "answer": episode.answer,
        **_judged(trajectory, episode, ran.probes),
        **_probed(ran.probes),
        **_held(ran.held),
        "compaction_flops": ran.compaction_flops,
    }


def turn_rows(episode: Episode, ran: Ran) -> list[Row]:
    """A row of `turn_metrics` per turn, the seed turns among them."""
    steps: list[Step | None] = [*[None] * episode.seeds, *episode.steps]
    rows: list[Row] = []
    for turn, (held, step) in enumerate(zip(ran.held, steps, strict=True)):
        counters = held.counters
        rows.append(
            {
                "turn": turn,
                "logical_tokens": held.logical_tokens,
                "kv_tokens": held.kv_rows,
                "kv_tokens_peak": counters.held_peak,
                "kv_bytes": held.kv_bytes,
                "aux_bytes": held.aux_bytes,
                "transient_tokens": counters.transient_rows,
                "reprefill_tokens": counters.reprefill_tokens,
                "copied_tokens": counters.copied_tokens,
                "compactions": counters.compactions,
                **({} if step is None else _said(step)),
            }
        )
    return rows


def probe_rows(trajectory: Trajectory, ran: Ran) -> list[Row]:
    """A row of `probes` per probe. How old a fact is cannot be told: the run may never have read it."""
    return [
        {
            "probe_id": probe.id,
            "kind": probe.kind,
            "choice": found.choice,
            "correct": found.correct,
            "answer_ll": found.answer_ll,
            "answer_margin": found.answer_margin,
        }
        for probe, found in zip(trajectory.probes, ran.probes, strict=True)
    ]


def _said(step: Step) -> Row:
    by_how = Counter(answer.how for answer in step.answers)
    return {
        "generated_tokens": step.said.tokens,
        "said": step.said.text,
        "reply": step.reply.kind,
        "calls": len(step.answers),
        **{f"calls_{how}": by_how[how] for how in HOWS},
    }


def _judged(trajectory: Trajectory, episode: Episode, probes: Sequence[ProbeAnswer]) -> Row:
    """The verdict on the answer and on the calls that were answered, by the trajectory's label."""
    scorer = scorer_of(trajectory)
    if scorer in (None, LLM):
        return {}  # no label, or one that asks another model: none is asked here
    seeded = recorded_actions(replace(trajectory, turns=trajectory.turns[: episode.seeds]))
    # A call that nobody recorded was an attempt to do something; one whose recorded result is a refusal did nothing.
    own = [answer for step in episode.steps for answer in step.answers]
    done = [*seeded, *(a.call for a in own if a.how != "exact" or not a.text.startswith(REFUSED))]
    choices = [probe.correct for probe in probes]
    try:
        found = judge_answer(trajectory, episode.answer or "", done, choices=choices)
        idle = judge_answer(trajectory, "", seeded).verdict  # nothing is done after what was recorded
    except UserError as error:
        return {"answer_verdict": str(error)}
    known = found.verdict.correct is not None
    return {
        "answer_scorer": found.scorer,
        "answer_correct": found.verdict.correct,
        "answer_score": found.verdict.score if known else None,
        "answer_verdict": found.verdict.reason,
        "no_op_accuracy": None if idle.correct is None else float(idle.correct),
    }


def _probed(probes: Sequence[ProbeAnswer]) -> Row:
    if not probes:
        return {"probes": 0}
    margins = [probe.answer_margin for probe in probes if probe.answer_margin is not None]
    return {
        "probes": len(probes),
        "answer_accuracy": sum(probe.correct for probe in probes) / len(probes),
        "answer_ll": sum(probe.answer_ll for probe in probes) / len(probes),
        "answer_margin": sum(margins) / len(margins) if margins else None,
    }


def _held(held: Sequence[Held]) -> Row:
    if not held:
        return {}
    return {
        "logical_tokens": held[-1].logical_tokens,
        "kv_tokens_final": held[-1].kv_rows,
        "kv_tokens_peak": max(turn.counters.held_peak for turn in held),
        "kv_bytes_final": held[-1].kv_bytes,
        "kv_bytes_peak": max(turn.counters.kv_bytes_peak for turn in held),
        "aux_bytes_peak": max(turn.counters.aux_bytes_peak for turn in held),
        "reprefill_tokens": sum(turn.counters.reprefill_tokens for turn in held),
        "copied_tokens": sum(turn.counters.copied_tokens for turn in held),
    }
