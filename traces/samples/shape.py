"""What the families of bundled runs have in common: how a run, its turns, its probes and a tool's text are made."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from ..trajectory import Label, Message, Probe, Trajectory, Turn
from .words import BUILDINGS, NUMBERS, WEEKDAYS

FACTS = 4  # pairs of facts in a run, and candidates of a probe


def run(id: str, system: str, task: str, turns: Sequence[Turn], probes: Sequence[Probe]) -> Trajectory:
    """A labelled run; its family is its id without the last number."""
    return Trajectory(
        id=id,
        source="samples",
        family=id.rpartition("-")[0],
        prefix=(Message("system", system), Message("user", task)),
        turns=tuple(turns),
        probes=tuple(probes),
        label=Label("choice"),
    )


def probe(i: int, turn: int, values: Sequence[str], question: str, answer_prefix: str, kind: str) -> Probe:
    """A probe of one kind on fact pair `i`, which asks for `values[i]`; a tool said it in turn `turn`."""
    candidates = tuple(sorted(values))
    return Probe(f"{kind}-{i}", kind, question, answer_prefix, candidates, candidates.index(values[i]), turn)


def turns_of(
    steps: Sequence[tuple[str, str | None]], found: str, done: str, page: Callable[[str | None], str]
) -> list[Turn]:
    """A turn per (call, fact): the assistant restates the fact before, then calls; the tool's text holds the fact."""
    turns: list[Turn] = []
    before: str | None = None
    for n, (call, fact) in enumerate(steps):
        said = "" if n == 0 else f"{found} {before}\n" if before else f"{done}\n"
        turns.append(Turn(Message("assistant", said + call), (Message("tool", page(fact)),)))
        before = fact
    return turns


def sentences(dice: random.Random, texts: Sequence[str], count: int) -> list[str]:
    """`count` of the texts, each once, their {number}, {weekday} and {building} filled in."""
    return [
        text.format(number=dice.choice(NUMBERS), weekday=dice.choice(WEEKDAYS), building=dice.choice(BUILDINGS))
        for text in dice.sample(texts, count)
    ]


def lines(dice: random.Random, texts: Sequence[str], count: int) -> list[str]:
    """`count` of the texts, each once, their {a} and {b} filled in: numbers from 2 to 99, {a} the smaller one."""
    out = []
    for text in dice.sample(texts, count):
        a, b = sorted((dice.randint(2, 99), dice.randint(2, 99)))
        out.append(text.format(a=a, b=b))
    return out


def with_fact(dice: random.Random, parts: Sequence[str], fact: str | None) -> list[str]:
    """The parts with the fact, if there is one, at a uniform place among them."""
    place = dice.randint(0, len(parts))
    return [*parts[:place], *([fact] if fact else []), *parts[place:]]
