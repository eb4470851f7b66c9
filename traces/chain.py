"""Logs with one record per model call repeat the whole history each time: of a chain only the longest record stays.

A record is absorbed when its messages are the beginning of a longer one's; the usage and times of its turns move
there. Records are never joined end to end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from .rows import characters
from .trajectory import Message, Trajectory, Turn

Origin = TypeVar("Origin")
_HELD_CHARACTERS = 256_000_000


@dataclass(slots=True)
class Held(Generic[Origin]):
    """A record that a longer one may still absorb, and where it came from."""

    trajectory: Trajectory
    origin: Origin
    ends: list[str]


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
        if holder is not None:
            holder.trajectory = _with_usage(holder.trajectory, trajectory)
            self.absorbed.append(origin)
            return
        for end in ends[:-1]:
            shorter = self._held.get(end)
            if shorter is not None:
                self._remove(end)
                trajectory = _with_usage(trajectory, shorter.trajectory)
                self.absorbed.append(shorter.origin)
        self._held[last] = Held(trajectory, origin, ends)
        self._within.update(dict.fromkeys(ends[:-1], last))
        self._room -= characters(trajectory.messages())
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
        self._room += characters(held.trajectory.messages())
        return held


def _ends(trajectory: Trajectory) -> list[str]:
    """A hash of everything said up to each assistant message."""
    running = hashlib.sha256()
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
    # Thinking is left out: clients often drop it from the history that the next call repeats.
    calls = [(call.name, call.arguments) for call in message.tool_calls]
    return json.dumps([message.role, message.content.strip(), calls]).encode()


def _with_usage(longer: Trajectory, shorter: Trajectory) -> Trajectory:
    """The longer record, knowing of the turns of the shorter one what only that record said."""
    told = [_told(turn, other) for turn, other in zip(longer.turns, shorter.turns, strict=False)]
    return replace(longer, turns=(*told, *longer.turns[len(told) :]))


def _told(turn: Turn, other: Turn) -> Turn:
    return replace(
        turn,
        usage=turn.usage or other.usage,
        started_s=turn.started_s if turn.started_s is not None else other.started_s,
        duration_s=turn.duration_s if turn.duration_s is not None else other.duration_s,
        assistant=replace(turn.assistant, reasoning=turn.assistant.reasoning or other.assistant.reasoning),
    )
