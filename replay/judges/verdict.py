"""The nouns of judging: what a judge may look at, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...traces.trajectory import Label


class Call(Protocol):
    """A call of a tool: a recorded `ToolCall` or a generated `Action`."""

    @property
    def name(self) -> str:
        """The tool."""
        ...

    @property
    def arguments(self) -> str:
        """Its arguments as they were written."""
        ...

    @property
    def parsed(self) -> Mapping[str, Any] | None:
        """The object they stand for, None if it is none."""
        ...


@dataclass(frozen=True, slots=True)
class Context:
    """What else an answer is judged by.

    `question` is the task in words. `actions` are the calls that were carried out, in order. `writing` names the tools
    that change something, None where only the gold actions tell. `choices` says of each probe whether it was right.
    """

    question: str = ""
    actions: tuple[Call, ...] = ()
    writing: frozenset[str] | None = None
    choices: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """`correct` is None where it cannot be decided; `score` (0 to 1, a recorded reward as it is) None where none is.

    `parts` are figures of the judge's own, such as precision and recall.
    """

    correct: bool | None
    score: float | None
    reason: str
    parts: Mapping[str, float] = field(default_factory=dict)


Judge = Callable[[Label, str, Context], Verdict]


def decided(correct: bool, reason: str, **parts: float) -> Verdict:
    """A verdict whose score is 1 or 0."""
    return Verdict(correct, float(correct), reason, parts)


def undecided(reason: str) -> Verdict:
    """A verdict of a judge that has nothing to go by."""
    return Verdict(None, None, reason)


def accepted(label: Label) -> list[str]:
    """The answers a label accepts, as text: its value or, of a list, each of them. Empty ones are none."""
    values = label.value if isinstance(label.value, (list, tuple)) else [label.value]
    texts = (
        value if isinstance(value, str) else format(value) for value in values if isinstance(value, (str, int, float))
    )
    return [text for text in texts if text.strip()]
