"""One closed-loop run, reply by reply: what the model says is read, carried to the environment, counted, and ended.

Nothing here knows the model: a `Speaker` says the replies, and takes what the environment answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ...traces.trajectory import Message
from .environment import Answer, Environment
from .reply import Reply, read_reply

End = Literal["answered", "turn_limit", "window", "no_action"]
ENDS: tuple[End, ...] = ("answered", "turn_limit", "window", "no_action")
UNREADABLE = 3  # replies in a row that are neither a call nor an answer: the run ends
SPARE_TURNS = 4


def turn_limit(recorded: int) -> int:
    """The most turns of a run, its seed turns counted, unless `--max-turns` says otherwise."""
    return 2 * recorded + SPARE_TURNS


def seed_turns(asked: int, recorded: int) -> int:
    """How many recorded turns are fed: those asked for, but never the last one, which the model is to take itself."""
    return max(0, min(asked, recorded - 1))


@dataclass(frozen=True, slots=True)
class Said:
    """One reply: its text, how many tokens were generated, and whether the model ended it by itself."""

    text: str
    tokens: int
    ended: bool


class Speaker(Protocol):
    """What drives a run: a model on a compacted cache, or a script."""

    def speak(self) -> Said | None:
        """The next reply, which it remembers; None if it has no room for one."""
        ...

    def hear(self, message: Message) -> bool:
        """Take what a tool answered; False if there is no room for it."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """A turn that the model took."""

    said: Said
    reply: Reply
    answers: tuple[Answer, ...] = ()


@dataclass
class Episode:
    """A run in progress; `end` is None while it goes on. `seeds` turns came before the model's own."""

    environment: Environment
    grammar: str
    seeds: int
    most_turns: int
    steps: list[Step] = field(default_factory=list)
    end: End | None = None

    @property
    def turns(self) -> int:
        """Turns so far, the seed turns among them."""
        return self.seeds + len(self.steps)

    @property
    def answer(self) -> str | None:
        """What it ended with, None if it has not answered."""
        return self.steps[-1].reply.answer if self.end == "answered" else None

    def go_on(self, speaker: Speaker, said: Said | None) -> None:
        """Take a reply (None: there was no room for one), and hand its answers to the speaker."""
        if said is None:
            self.end = "window"
            return
        reply = read_reply(said.text, said.ended, self.grammar)
        answers = tuple(self.environment.answer(action) for action in reply.actions)
        self.steps.append(Step(said, reply, answers))
        if reply.kind == "answer":
            self.end = "answered"
            return
        heard = all(speaker.hear(message) for message in self._messages(reply, answers))
        if not heard:
            self.end = "window"
        elif all(step.reply.kind == "neither" for step in self.steps[-UNREADABLE:]) and len(self.steps) >= UNREADABLE:
            self.end = "no_action"
        elif self.turns >= self.most_turns:
            self.end = "turn_limit"

    def _messages(self, reply: Reply, answers: Sequence[Answer]) -> list[Message]:
        if reply.kind == "neither":
            return [Message("tool", self.environment.unreadable())]
        return [
            Message("tool", each.text, tool_call_id=f"call-{self.turns}-{number}", name=each.call.name)
            for number, each in enumerate(answers)
        ]


def drive(speaker: Speaker, episode: Episode) -> Episode:
    """Reply after reply to the end."""
    while episode.end is None:
        episode.go_on(speaker, speaker.speak())
    return episode
