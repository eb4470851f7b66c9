"""What a reply is in closed mode: calls, an answer, or neither. The rule for every grammar is here and nowhere else.

- **Calls**: the grammar reads them.
- **An answer** ends the run: a message that the model ended by itself, with words in it, in which no call begins. Or a
  call of a tool that is there to hand in an answer (`submit`, `finish`, …): its arguments are the answer.
- **Neither**: a message cut at its limit, an empty one, one whose call cannot be read.

The bundled samples write calls as lines (`Search: …`, `cat …`): for them an answer is a message without such a line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ..actions import fenced
from ..actions.action import Action, without_thinking
from ..actions.choose import GRAMMARS

ENDING_TOOLS = {"submit", "finish", "final_answer", "submit_answer", "done"}
# How calls begin: where one stands in a message without calls, it could not be read.
_TAGS = re.compile(r"</?tool_call>|<function=|<\|tool_call>|<start_function_call>")
_LINES = re.compile(r"^\s*(?:(?:Search|Ask|Check):|(?:cat|grep)\b)", re.MULTILINE)
_BEGINNINGS = {"fenced": fenced.OPENINGS, "samples": _LINES}


@dataclass(frozen=True, slots=True)
class Reply:
    """`kind` says which of the others is filled: `actions` of calls, `answer` of an answer."""

    kind: Literal["calls", "answer", "neither"]
    actions: tuple[Action, ...] = ()
    answer: str = ""


def read_reply(text: str, ended: bool, grammar: str) -> Reply:
    """A message; `ended` tells whether the model ended it by itself."""
    actions = GRAMMARS[grammar](text)
    for action in actions:
        if action.name.lower() in ENDING_TOOLS:
            return Reply("answer", answer=_handed_in(action))
    if actions:
        return Reply("calls", actions)
    words = without_thinking(text).strip()
    if not ended or not words or _BEGINNINGS.get(grammar, _TAGS).search(words):
        return Reply("neither")
    return Reply("answer", answer=words)


def _handed_in(action: Action) -> str:
    if not action.parsed:
        return action.arguments
    values = action.parsed.values()
    return "\n".join(value if isinstance(value, str) else str(value) for value in values)
