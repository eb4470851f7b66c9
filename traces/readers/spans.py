"""From the spans of a trace to runs: every model call is a record of its own, and of a chain the longest stays.

Shared by the formats that record one span per model call. What they give is a `Call` for each model call, a `ToolRun`
for each tool that ran, and who was inside whom.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..chain import CHAIN, CLOCK_DIGITS, ONE_CALL, START, Chains
from ..checks import unmatched
from ..reading import Reject
from ..trajectory import Message, ToolCall, Trajectory, Turn, Usage
from .chat import Told, trajectory_of
from .clock import between
from .content import text_of
from .messages import Said
from .parts import shown

WHOLE, AGGREGATE, TEXT = 2, 1, 0
_MOST_FAMILY = 60
_MOST_COMPARED = 100
_DEEPEST = 1000


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
    """One run of a tool, with what it returned, as text. `was_object`: the text that the model saw is not known."""

    name: str
    result: str
    call_id: str | None = None
    started_s: float | None = None
    ended_s: float | None = None
    was_object: bool = False


@dataclass(slots=True)
class Trace:
    """What is known of one trace. `piece`: there is more of it elsewhere in the file."""

    id: str | None = None
    calls: list[Call] = field(default_factory=list)
    tools: list[ToolRun] = field(default_factory=list)
    parents: dict[str, str | None] = field(default_factory=dict)
    unread: dict[str | None, str] = field(default_factory=dict)
    session: str | None = None
    piece: bool = False

    def chain(self, calls: int) -> str | None:
        """What ingest may join its runs with: others of the session, else of the trace. Where every call is a trace of
        its own, as without spans around them, only the words tell what continues what.
        """
        return self.session or (self.id if calls > 1 or self.piece else None)

    def refuse(self, id: str | None, reason: object) -> None:
        """A model call that cannot be read; it is forgiven if a span around it or inside it can."""
        self.unread[id] = str(reason)


def runs(source: str, trace: Trace) -> Iterator[Trajectory | Reject]:
    """The runs of a trace, and why some of its calls cannot be read."""
    calls = _once_each(trace)
    readable = {call.id for call in calls}
    around = {id for call in calls for id in _line(call.id, trace.parents)}
    for id, reason in trace.unread.items():
        if id is None or (id not in around and readable.isdisjoint(_line(id, trace.parents))):
            yield Reject(reason)
    _fill(calls)
    tools = _Tools(trace.tools)
    chain = trace.chain(len(calls))
    chains: Chains[None] = Chains()
    for call in sorted(calls, key=lambda call: (call.started_s is None, call.started_s or 0.0)):
        try:
            single = _single(source, chain, call)
        except Reject as error:
            yield error
            continue
        for held in chains.add(single, None):
            yield _with_last_results(held.trajectory, tools)
    for held in chains.rest():
        yield _with_last_results(held.trajectory, tools)


def result_text(value: Any) -> tuple[str, bool]:
    """What a tool returned as text, and whether it was recorded as something else."""
    losses: set[str] = set()
    return text_of(shown(value, losses), losses), bool(losses)


def family_of(*names: Any, default: str) -> str:
    """The first usable name, as a word to group by."""
    usable = (name.strip().lower()[:_MOST_FAMILY] for name in names if isinstance(name, str))
    return next((name for name in usable if name and not name.startswith("unknown")), default)


def _line(id: str | None, parents: Mapping[str, str | None]) -> list[str]:
    """A span and the spans around it, from the inside."""
    line: dict[str, None] = {}
    while id is not None and id not in line and len(line) < _DEEPEST:
        line[id] = None
        id = parents.get(id)
    return list(line)


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


def _fill(calls: Sequence[Call]) -> None:
    """Put in assistant messages that the source dropped, if an earlier call of the trace answered just there."""
    answers: dict[int, list[Call]] = {}
    for call in calls:
        answers.setdefault(len(call.said.messages), []).append(call)
    for call in calls:
        messages = call.said.messages
        for place in [n for n, message in enumerate(messages) if message is None]:
            before = messages[:place]
            found = (other for other in answers.get(place, ())[:_MOST_COMPARED] if _same(other.said.messages, before))
            messages[place] = next((other.answer for other in found), None)
        if None in messages:
            call.said.losses.add("truncated_source")
            call.said.messages = [message for message in messages if message is not None]


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(
        a and b and (a["role"], a.get("content")) == (b["role"], b.get("content"))
        for a, b in zip(one, other, strict=True)
    )


def _single(source: str, chain: str | None, call: Call) -> Trajectory:
    took = between(call.started_s, call.ended_s)
    told = Told(call.usage, call.started_s, None if took is None else round(took, CLOCK_DIGITS))
    messages = [*call.said.messages, call.answer]
    answers = sum(1 for message in messages if message and message.get("role") == "assistant")
    meta = {**call.meta, ONE_CALL: True}
    if chain is not None:
        meta[CHAIN] = chain
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


class _Tools:
    """The runs of tools of a trace by the call they answer, else by the tool's name in the order they began."""

    def __init__(self, tools: Sequence[ToolRun]) -> None:
        self._by_id: dict[str, ToolRun] = {}
        self._by_name: dict[str, deque[ToolRun]] = {}
        for tool in sorted(tools, key=lambda tool: tool.started_s or 0.0):
            if tool.call_id is not None:
                self._by_id.setdefault(tool.call_id, tool)
            else:
                self._by_name.setdefault(tool.name, deque()).append(tool)

    def answering(self, call: ToolCall, began: float | None) -> ToolRun | None:
        """The run that answers a call of a turn that began then; each run answers once."""
        if call.id in self._by_id:
            return self._by_id.pop(call.id)
        named = self._by_name.get(call.name, deque())
        while named:
            tool = named.popleft()
            if began is None or tool.started_s is None or tool.started_s >= began:
                return tool
        return None


def _with_last_results(run: Trajectory, tools: _Tools) -> Trajectory:
    """The run with the results of its last calls, if tools ran for them: no later call repeats those. In the middle of
    a run a result that the next call does not repeat never reached the model, and is not added.
    """
    last = run.turns[-1]
    missing, _ = unmatched(last)
    zero = run.meta.get(START)
    began = None if zero is None or last.started_s is None else zero + last.started_s
    asked = [call for call in last.assistant.tool_calls if call.id in missing]
    answers = [(call, tool) for call in asked if (tool := tools.answering(call, began)) is not None]
    if not answers:
        return run
    made = [Message("tool", tool.result, tool_call_id=call.id, name=tool.name or None) for call, tool in answers]
    ends = [tool.ended_s for _, tool in answers if tool.ended_s is not None]
    turn = replace(last, tools=(*last.tools, *made), tool_wait_s=_last_wait(last, began, ends))
    losses = set(run.losses)
    if any(tool.was_object for _, tool in answers):
        losses.add("results_were_objects")
    if not unmatched(turn)[0]:
        losses -= {"ends_with_call"}
        if not any(unmatched(before)[0] for before in run.turns[:-1]):
            losses -= {"call_without_result"}
    return replace(run, turns=(*run.turns[:-1], turn), losses=tuple(sorted(losses)))


def _last_wait(turn: Turn, began: float | None, ends: Sequence[float]) -> float | None:
    if turn.tool_wait_s is not None or began is None or turn.duration_s is None or not ends:
        return turn.tool_wait_s
    return max(0.0, round(max(ends) - began - turn.duration_s, CLOCK_DIGITS))
