"""`stress-4k`, `stress-6k`, `stress-8k`: longer runs for memory and latency, with nothing in them to be asked.

An agent that checks a site reads long pages and long logs, 500 to 2,000 tokens each. The texts are those of `registry`
and `operations` drawn again and again: such a run is as long as a real one, and says nothing about quality. Its label
says so (`none`), so no probes are made for it either.
"""

from __future__ import annotations

import random

from ..trajectory import NOT_JUDGED, Label, Message, Trajectory, Turn
from .shape import lines, sentences
from .words import CLOSING_LOGS, LOG_LINES, SENTENCES, SERVICES, TOPICS

SIZES = {"stress-4k": 4_000, "stress-6k": 6_000, "stress-8k": 7_800}  # tokens, below a window of 8,192
EACH = 4
_SHORTEST, _LONGEST = 540, 1_900  # tokens of a tool's text
_SENTENCE, _LINE = 12.2, 9.3  # tokens each on average, with what joins them
_TURN, _PREFIX = 26, 38  # tokens of an assistant's text and of markup in a turn; of the prefix


def stress(dice: random.Random, id: str) -> Trajectory:
    """One run of about as many tokens as its family says."""
    family = id.rpartition("-")[0]
    turns: list[Turn] = []
    for length in _lengths(dice, SIZES[family] - _PREFIX):
        said = "" if not turns else "Nothing here needs attention.\n"
        call, text = _log(dice, length) if dice.random() < 0.5 else _page(dice, length)
        turns.append(Turn(Message("assistant", said + call), (Message("tool", text),)))
    return Trajectory(
        id=id,
        source="samples",
        family=family,
        prefix=(
            Message("system", "You are a maintenance agent. You read pages and logs and report what needs attention."),
            Message("user", "Go through the pages and the logs of the site."),
        ),
        turns=tuple(turns),
        label=Label(NOT_JUDGED, "for memory and latency only"),
    )


def _lengths(dice: random.Random, total: int) -> list[int]:
    """Tokens of the tool texts, log-uniform from the shortest to the longest, that fill `total` with their turns."""
    out: list[int] = []
    left = total
    while left > _TURN + _LONGEST:
        length = round(_SHORTEST * (_LONGEST / _SHORTEST) ** dice.random())
        if left - length - 2 * _TURN < _SHORTEST:
            length = left - 2 * _TURN - _SHORTEST
        out.append(length)
        left -= length + _TURN
    return [*out, left - _TURN]


def _page(dice: random.Random, length: int) -> tuple[str, str]:
    texts: list[str] = []
    while len(texts) < round(length / _SENTENCE):
        texts += sentences(dice, SENTENCES, min(len(SENTENCES), round(length / _SENTENCE) - len(texts)))
    return f"Search: {dice.choice(TOPICS)}", "Result: " + " ".join(texts)


def _log(dice: random.Random, length: int) -> tuple[str, str]:
    texts: list[str] = []
    while len(texts) < round(length / _LINE):
        texts += lines(dice, LOG_LINES, min(len(LOG_LINES), round(length / _LINE) - len(texts)))
    name = dice.choice((*SERVICES, *CLOSING_LOGS))
    return f"cat /var/log/{name}.log", "\n".join(["Output:", *(f"INFO {text}" for text in texts)])
