"""Judges of what was done: gold actions, recorded reward, choice by likelihood.

A task of tau-bench is right if the agent changed what the gold actions change and nothing else. Without its database
the calls themselves are compared: those of tools that write, name and arguments, as multisets. That is stricter than
the reward where two ways lead to one state, and blind to what the user should have been told. Inaction is right
wherever nothing should be written, so every judgement comes with that of an agent that does nothing (`no_op`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ...traces.trajectory import Label, Trajectory
from .verdict import Call, Context, Verdict, decided, undecided

# What writes in tau-bench (sierra-research/tau-bench, tau_bench/envs/{airline,retail}/tools): its gold actions list
# look-ups, too, which leave the database as it is.
TAU_BENCH_WRITES = frozenset(
    {
        "book_reservation",
        "cancel_reservation",
        "send_certificate",
        "update_reservation_baggages",
        "update_reservation_flights",
        "update_reservation_passengers",
        "cancel_pending_order",
        "exchange_delivered_order_items",
        "modify_pending_order_address",
        "modify_pending_order_items",
        "modify_pending_order_payment",
        "modify_user_address",
        "return_delivered_order_items",
    }
)
REFUSED = "Error"  # how results of refused calls begin in tau-bench


def actions(label: Label, answer: str, context: Context) -> Verdict:
    """The calls that write equal the gold ones, in any order. `score` is 1 or 0.

    `parts`: `missing` and `extra` calls. Undecided without gold actions and without a list of tools that write.
    """
    writing = context.writing
    if writing is None:
        writing = frozenset(action.name for action in label.gold_actions)
        if not writing:
            return undecided("no gold action, and no list of the tools that write")
    gold = Counter(spelled(call) for call in label.gold_actions if call.name in writing)
    done = Counter(spelled(call) for call in context.actions if call.name in writing)
    missing, extra = gold - done, done - gold
    if not missing and not extra:
        what = f"{gold.total()} calls as they should be" if gold else "nothing was to be written, and nothing was"
        return decided(True, what, missing=0, extra=0)
    named = [f"missing {name}" for name, _ in missing] + [f"extra {name}" for name, _ in extra]
    return decided(False, ", ".join(named), missing=missing.total(), extra=extra.total())


def reward(label: Label, answer: str, context: Context) -> Verdict:
    """What the source recorded of its own run: a fact about that run, no judgement of this answer."""
    if not isinstance(label.value, (int, float)):
        return undecided("no reward was recorded")
    return Verdict(None, float(label.value), "the recorded run's own reward; this answer was not judged")


def choice(label: Label, answer: str, context: Context) -> Verdict:
    """The share of probes whose right candidate was the likeliest."""
    if not context.choices:
        return undecided("no probe was answered")
    right, asked = sum(context.choices), len(context.choices)
    return Verdict(right == asked, right / asked, f"{right} of {asked} probes")


def writing_tools(trajectory: Trajectory) -> frozenset[str] | None:
    """The tools that change something, where the source is known; None leaves it to the gold actions."""
    return TAU_BENCH_WRITES if trajectory.source in ("tau-bench", "tau2-bench") else None


def recorded_actions(trajectory: Trajectory) -> tuple[Call, ...]:
    """The calls of a recorded run that were carried out: those whose result is no refusal."""
    done: list[Call] = []
    for turn in trajectory.turns:
        refused = {result.tool_call_id for result in turn.tools if result.content.startswith(REFUSED)}
        done += [call for call in turn.assistant.tool_calls if call.id not in refused]
    return tuple(done)


def spelled(call: Call) -> tuple[str, str]:
    """Name and arguments in one spelling for equal JSON values: order of keys and white space do not count."""
    if call.parsed is None:
        return call.name, call.arguments.strip()
    return call.name, json.dumps(_plain(dict(call.parsed)), ensure_ascii=False, sort_keys=True)


def _plain(value: Any) -> Any:
    """A JSON value with 1.0 as 1."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return _list(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _list(values: Iterable[Any]) -> list[Any]:
    return [_plain(value) for value in values]
