"""From the spans of a trace to runs: every model call is a record of its own, and of a chain the longest stays.

Shared by the formats that record one span per model call. What they give is a `Call` for each model call, a `ToolRun`
for each tool that ran, and who was inside whom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..chain import CHAIN, CLOCK_DIGITS, ONE_CALL, START, Chains
from ..checks import unmatched
from ..reading import Reject
from ..trajectory import Message, Trajectory, Turn, Usage
from .chat import Told, trajectory_of
from .clock import between
from .messages import Said

WHOLE, AGGREGATE, TEXT = 2, 1, 0
_MOST_FAMILY = 60


@dataclass(frozen=True, slots=True)
class Call:
    """One model call: what it was given, what it answered. `rank`: how good a record of it the span is."""

    id: str | None
    said: Said
    answer: dict[str, Any]
    model: str | None = None
    usage: Usage | None = None
    started_s: float | None = None
    ended_s: float | None = None
    family: str = ""
    rank: int = WHOLE
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolRun:
    """One run of a tool, with what it returned."""

    name: str
    result: str
    call_id: str | None = None
    started_s: float | None = None
    ended_s: float | None = None


@dataclass(slots=True)
class Trace:
    """What is known of one trace. `chain` names its session, or the trace where there is none."""

    chain: str | None = None
    calls: list[Call] = field(default_factory=list)
    tools: list[ToolRun] = field(default_factory=list)
    parents: dict[str, str | None] = field(default_factory=dict)
    unread: dict[str | None, str] = field(default_factory=dict)

    def refuse(self, id: str | None, reason: object) -> None:
        """A model call that cannot be read; it is forgiven if a span around it or inside it can."""
        self.unread[id] = str(reason)


def runs(source: str, trace: Trace) -> Iterator[Trajectory | Reject]:
    """The runs of a trace, and why some of its calls cannot be read."""
    calls = _once_each(trace)
    related = {id for call in calls for id in _line(call.id, trace.parents)}
    for id, reason in trace.unread.items():
        if id is None or not (id in related or any(call.id in _line(id, trace.parents) for call in calls)):
            yield Reject(reason)
    chains: Chains[None] = Chains()
    for call in sorted(calls, key=lambda call: (call.started_s is None, call.started_s or 0.0)):
        _fill(call, calls)
        try:
            single = _single(source, trace, call)
        except Reject as error:
            yield error
            continue
        for held in chains.add(single, None):
            yield _with_last_results(held.trajectory, trace.tools)
    for held in chains.rest():
        yield _with_last_results(held.trajectory, trace.tools)


def family_of(*names: Any, default: str) -> str:
    """The first usable name, as a word to group by."""
    usable = (name.strip().lower()[:_MOST_FAMILY] for name in names if isinstance(name, str))
    return next((name for name in usable if name and not name.startswith("unknown")), default)


def _line(id: str | None, parents: Mapping[str, str | None]) -> list[str]:
    """A span and the spans around it, from the inside."""
    line: list[str] = []
    while id is not None and id not in line and len(line) < 1000:
        line.append(id)
        id = parents.get(id)
    return line


def _once_each(trace: Trace) -> list[Call]:
    """One span for each model call: SDKs and their instrumentations often record a call twice, one inside the other.
    The better record stays, of equal ones the inner.
    """
    by_id = {call.id: call for call in trace.calls if call.id is not None}
    dropped: set[str] = set()
    for call in by_id.values():
        for outer in _line(call.id, trace.parents)[1:]:
            if outer in by_id and call.id is not None:
                dropped.add(outer if call.rank >= by_id[outer].rank else call.id)
    return [call for call in trace.calls if call.id not in dropped]


def _fill(call: Call, calls: Sequence[Call]) -> None:
    """Put in an assistant message that the source dropped, if an earlier call of the trace answered just there."""
    messages = call.said.messages
    for place, message in enumerate(messages):
        if message is None:
            before = messages[:place]
            found = next((c.answer for c in calls if c is not call and _same(c.said.messages, before)), None)
            messages[place] = found
    if None in messages:
        call.said.losses.add("truncated_source")
        call.said.messages = [message for message in messages if message is not None]


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(
        a and b and (a["role"], a.get("content")) == (b["role"], b.get("content"))
        for a, b in zip(one, other, strict=True)
    )


def _single(source: str, trace: Trace, call: Call) -> Trajectory:
    took = between(call.started_s, call.ended_s)
    told = Told(call.usage, call.started_s, None if took is None else round(took, CLOCK_DIGITS))
    messages = [*call.said.messages, call.answer]
    answers = sum(1 for message in messages if message and message.get("role") == "assistant")
    meta = {**call.meta, ONE_CALL: True}
    if trace.chain is not None:
        meta[CHAIN] = trace.chain
    if call.started_s is not None:
        meta[START] = call.started_s
    return trajectory_of(
        source,
        call.family or source,
        messages,
        tools=tuple(call.said.tools),
        losses=set(call.said.losses),
        told=[None] * (answers - 1) + [told],
        model=call.model,
        meta=meta,
    )


def _with_last_results(run: Trajectory, tools: Sequence[ToolRun]) -> Trajectory:
    """The run with the results of its last calls, if tools ran for them: no later call repeats those. In the middle of
    a run a result that the next call does not repeat never reached the model, and is not added.
    """
    last = run.turns[-1]
    missing, _ = unmatched(last)
    if not missing:
        return run
    zero = run.meta.get(START)
    began = None if zero is None or last.started_s is None else zero + last.started_s
    made: list[Message] = []
    ends: list[float] = []
    free = [tool for tool in tools if began is None or tool.started_s is None or tool.started_s >= began]
    for call in last.assistant.tool_calls:
        if call.id not in missing:
            continue
        found = next((t for t in free if t.call_id == call.id), None)
        found = found or next((t for t in free if t.call_id is None and t.name == call.name), None)
        if found is not None:
            free.remove(found)
            made.append(Message("tool", found.result, tool_call_id=call.id, name=found.name or None))
            ends += [] if found.ended_s is None else [found.ended_s]
    if not made:
        return run
    turn = replace(last, tools=(*last.tools, *made), tool_wait_s=_last_wait(last, began, ends))
    losses = set(run.losses)
    if not unmatched(turn)[0]:
        losses -= {"ends_with_call"}
        if not any(unmatched(before)[0] for before in run.turns[:-1]):
            losses -= {"call_without_result"}
    return replace(run, turns=(*run.turns[:-1], turn), losses=tuple(sorted(losses)))


def _last_wait(turn: Turn, began: float | None, ends: Sequence[float]) -> float | None:
    if turn.tool_wait_s is not None or began is None or turn.duration_s is None or not ends:
        return turn.tool_wait_s
    return max(0.0, round(max(ends) - began - turn.duration_s, CLOCK_DIGITS))
