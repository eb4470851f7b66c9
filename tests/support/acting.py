"""Closed-loop runs without a model: a small recorded set, and an agent that says what a script says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvmill.replay.closed.environment import Environment, Library
from kvmill.replay.closed.episode import Episode, Said, drive
from kvmill.traces.record import tool_call
from kvmill.traces.trajectory import Label, Message, Trajectory, Turn

GRAMMARS = {"test": "hermes", "samples": "samples"}
PAGES = {
    "keeper of Willow station": "Sophie keeps Willow station. Lunch is at noon.",
    "home of Sophie": "Sophie lives in Seoul. The road is closed.",
    "keeper of Maple station": "Martin keeps Maple station. The lights are new.",
}


def turn(name: str, arguments: dict[str, Any], *results: str, text: str = "") -> Turn:
    """A recorded call with its results."""
    call = tool_call("c", name, json.dumps(arguments))
    return Turn(Message("assistant", text, (call,)), tuple(Message("tool", each, tool_call_id="c") for each in results))


def recorded(id: str = "a", turns: Sequence[Turn] | None = None, **more: Any) -> Trajectory:
    """A run of a search tool and a calculator that ends with an answer."""
    if turns is None:
        searches = [turn("search", {"query": query}, page) for query, page in PAGES.items()]
        turns = [*searches, turn("add", {"a": 1, "b": 2}, "3"), Turn(Message("assistant", "Sophie lives in Seoul."))]
    prefix = (Message("system", "You find things."), Message("user", "Where does the keeper of Willow live?"))
    return Trajectory(id, "test", "test", prefix, tuple(turns), label=Label("contains", "Seoul"), **more)


def sample(id: str = "s", queries: Sequence[str] = tuple(PAGES)) -> Trajectory:
    """The same in the plain text of the bundled samples, without a last answer."""
    turns = [Turn(Message("assistant", f"Search: {query}"), (Message("tool", PAGES[query]),)) for query in queries]
    return Trajectory(id, "samples", "registry", recorded().prefix, tuple(turns), label=Label("contains", "Seoul"))


def call(name: str, **arguments: Any) -> str:
    """A call as a model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@dataclass
class Script:
    """Says its lines one after the other, then that there is no room. `room`: messages it can still hear."""

    lines: Sequence[str | Said]
    room: int = 1000
    heard: list[str] = field(default_factory=list)
    spoken: int = 0

    def speak(self) -> Said | None:
        if self.spoken == len(self.lines):
            return None
        line = self.lines[self.spoken]
        self.spoken += 1
        return line if isinstance(line, Said) else Said(line, len(line.split()), True)

    def hear(self, message: Message) -> bool:
        if len(self.heard) == self.room:
            return False
        self.heard.append(message.content)
        return True


def played(
    lines: Sequence[str | Said],
    trajectory: Trajectory | None = None,
    *,
    seeds: int = 0,
    most: int = 20,
    room: int = 1000,
    others: Sequence[Trajectory] = (),
) -> tuple[Episode, Script]:
    """A run of a script on a trajectory."""
    trajectory = trajectory or recorded()
    grammar = GRAMMARS[trajectory.source]
    library = Library([trajectory, *others], GRAMMARS)
    episode = Episode(Environment(trajectory, library, grammar, seeds), grammar, seeds, most)
    script = Script(lines, room)
    return drive(script, episode), script
