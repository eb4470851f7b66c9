"""Logs with one record per model call repeat the whole history each time: of a chain only the longest record stays.

A record is absorbed when its messages are the beginning of a longer one's; the usage and times of its turns move
there, and the calls as the model spelled them. Records are never joined end to end. A record's meta may say to which
session or trace it belongs (`chain`): then only records of the same one are compared; and when its clock began, in
seconds since 1970 (`start_s`): then a record is absorbed only by one that began later.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from .rows import characters
from .trajectory import Message, ToolCall, Trajectory, Turn

ONE_CALL, CHAIN, START = "one_call", "chain", "start_s"
CLOCK_DIGITS = 6  # a float of seconds since 1970 holds no more
Origin = TypeVar("Origin")
_HELD_CHARACTERS = 64_000_000
_RECORD, _TURN = 2_000, 1_000  # what a record and a turn take beside their text, in characters


@dataclass(slots=True)
class Held(Generic[Origin]):
    """A record that a longer one may still absorb, and where it came from."""

    trajectory: Trajectory
    origin: Origin
    ends: list[str]
    characters: int


class Chains(Generic[Origin]):
    """Holds one-call records back until they are absorbed, too many, or all were seen. Order of arrival is kept."""

    def __init__(self, held_characters: int = _HELD_CHARACTERS) -> None:
        self._held: dict[str, Held[Origin]] = {}
        self._within: dict[str, str] = {}
        self._room = held_characters
        self.absorbed: list[Origin] = []

    def add(self, trajectory: Trajectory, origin: Origin) -> Iterator[Held[Origin]]:
        """Take a record; yields those that must be let go to bound the memory."""
        ends = _ends(trajectory)
        last = ends[-1]
        holder = self._held.get(self._within.get(last, last))
        if holder is not None and not _begins_later(trajectory, holder.trajectory):
            holder.trajectory = _joined(holder.trajectory, trajectory)
            self.absorbed.append(origin)
            return
        for end in ends[:-1]:
            shorter = self._held.get(end)
            if shorter is not None and not _begins_later(shorter.trajectory, trajectory):
                self._remove(end)
                trajectory = _joined(trajectory, shorter.trajectory)
                self.absorbed.append(shorter.origin)
        if last in self._held:  # the same words again, later: another run
            yield self._remove(last)
        size = characters(trajectory.messages()) + _RECORD + _TURN * len(ends)
        held = Held(trajectory, origin, ends, size)
        self._held[last] = held
        self._within.update(dict.fromkeys(ends[:-1], last))
        self._room -= held.characters
        while self._room < 0 and len(self._held) > 1:
            yield self._remove(next(iter(self._held)))

    def rest(self) -> Iterator[Held[Origin]]:
        """What was never absorbed."""
        while self._held:
            yield self._remove(next(iter(self._held)))

    def _remove(self, key: str) -> Held[Origin]:
        held = self._held.pop(key)
        for end in held.ends[:-1]:
            if self._within.get(end) == key:
                del self._within[end]
        self._room += held.characters
        held.trajectory = replace(held.trajectory, turns=_with_waits(held.trajectory.turns))
        return held


def _begins_later(shorter: Trajectory, longer: Trajectory) -> bool:
    """Whether the last call of the shorter record began after the longer one's: then it is no part of that run."""
    starts = [_last_start(trajectory) for trajectory in (shorter, longer)]
    return None not in starts and starts[0] > starts[1]


def _last_start(trajectory: Trajectory) -> Any:
    zero, start = trajectory.meta.get(START), trajectory.turns[-1].started_s
    return None if zero is None or start is None else zero + start


def _ends(trajectory: Trajectory) -> list[str]:
    """A hash of the session and of everything said up to each assistant message."""
    running = hashlib.sha256(json.dumps(trajectory.meta.get(CHAIN)).encode())
    for message in trajectory.prefix:
        running.update(_key(message))
    ends = []
    for turn in trajectory.turns:
        for message in (*turn.user, turn.assistant):
            running.update(_key(message))
        ends.append(running.hexdigest())
        for message in turn.tools:
            running.update(_key(message))
    return ends


def _key(message: Message) -> bytes:
    # Thinking is left out: clients often drop it from the history that the next call repeats. Arguments count by
    # their value: histories often carry them as objects.
    calls = [(call.name, _value(call)) for call in message.tool_calls]
    return json.dumps([message.role, message.content.strip(), calls]).encode()


def _value(call: ToolCall) -> str:
    return call.arguments if call.parsed is None else json.dumps(call.parsed, sort_keys=True)


def _joined(longer: Trajectory, shorter: Trajectory) -> Trajectory:
    """The longer record, knowing of the turns of the shorter one what only that record said."""
    clocks = [trajectory.meta.get(START) for trajectory in (longer, shorter)]
    known = [clock for clock in clocks if clock is not None]
    own, other = (
        _shifted(trajectory.turns, 0.0 if clock is None else clock - min(known))
        for trajectory, clock in zip((longer, shorter), clocks, strict=True)
    )
    told = [_told(turn, before, before is other[-1]) for turn, before in zip(own, other, strict=False)]
    return replace(
        longer,
        turns=(*told, *own[len(told) :]),
        tools=longer.tools or shorter.tools,
        model=longer.model or shorter.model,
        losses=tuple(loss for loss in longer.losses if loss != "no_tool_schemas" or not shorter.tools),
        meta={**longer.meta, START: min(known)} if known else longer.meta,
    )


def _shifted(turns: tuple[Turn, ...], by_s: float) -> list[Turn]:
    return [
        turn if turn.started_s is None else replace(turn, started_s=round(turn.started_s + by_s, CLOCK_DIGITS))
        for turn in turns
    ]


def _told(turn: Turn, other: Turn, answered: bool) -> Turn:
    """A turn of the longer record with what the shorter one says of it; `answered`: it was the shorter one's answer."""
    spelled = answered or other.usage is not None or other.started_s is not None
    return replace(
        turn,
        usage=turn.usage or other.usage,
        started_s=turn.started_s if turn.started_s is not None else other.started_s,
        duration_s=turn.duration_s if turn.duration_s is not None else other.duration_s,
        ids=turn.ids or other.ids,
        assistant=replace(
            turn.assistant,
            reasoning=turn.assistant.reasoning or other.assistant.reasoning,
            tool_calls=_spelled(turn, other) if spelled else turn.assistant.tool_calls,
        ),
    )


def _spelled(turn: Turn, other: Turn) -> tuple[ToolCall, ...]:
    """The calls of a turn with the arguments of the record of the call itself: histories may have parsed them."""
    pairs = zip(turn.assistant.tool_calls, other.assistant.tool_calls, strict=True)
    return tuple(replace(call, arguments=own.arguments, parsed=own.parsed) for call, own in pairs)


def _with_waits(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """The turns with the time from each call's end to the next one's start, where both are known and none is given."""
    made = list(turns)
    for n, (turn, following) in enumerate(itertools.pairwise(turns)):
        start, took, then = turn.started_s, turn.duration_s, following.started_s
        if turn.tool_wait_s is None and start is not None and took is not None and then is not None:
            made[n] = replace(turn, tool_wait_s=max(0.0, round(then - start - took, CLOCK_DIGITS)))
    return tuple(made)
