"""Recall probes for runs without a label: facts that a tool result stated, asked for after the last turn.

A probe is a cloze: the answer begins with the words before a fact, and the model goes on. (Quoting them in the question
as well makes a small model copy from there.) Candidates are the fact and up to three values of the same kind and
outline from the same run's tool results, those under the same key first, so that form and habit tell little. A fact
counts if a tool result is where its value stands first in the run, before the last turn; if anything said later states
it again, the probe's kind ends in `-restated`, since then more than one place holds it.

What it measures: whether the cache still holds what was read. Not: whether the agent would have solved its task.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..errors import unknown
from .facts import Fact, Said, context, facts, outline, shape, skeleton
from .trajectory import NOT_JUDGED, Probe, Trajectory

PROBES = ("auto", "recorded", "none")
MADE = "recall"  # kinds of made probes begin with it, and it is what they are scored as
MOST = 8
CANDIDATES = 4
QUOTED, QUOTED_LEAST = 200, 20  # characters of context that may be quoted, and that are
_TRIES = 50  # facts looked at per probe that is wanted


def with_probes(trajectory: Trajectory, which: str = "auto", most: int = MOST) -> Trajectory:
    """The trajectory with the probes that are to be asked: its own, made ones where it has none (`auto`), or none."""
    if which not in PROBES:
        raise unknown("choice of probes", which, PROBES, "--probes")
    if which == "none":
        return replace(trajectory, probes=())
    if which == "recorded" or trajectory.probes or (trajectory.label and trajectory.label.scorer == NOT_JUDGED):
        return trajectory
    return replace(trajectory, probes=recall_probes(trajectory, most))


def scored_as(trajectory: Trajectory) -> str | None:
    """How the probes of a trajectory are scored: `recall` if they were made, else `choice`; None without probes."""
    if not trajectory.probes:
        return None
    return MADE if all(probe.kind.startswith(MADE) for probe in trajectory.probes) else "choice"


def recall_probes(trajectory: Trajectory, most: int = MOST) -> tuple[Probe, ...]:
    """At most `most` probes, spread over turns and kinds, the same for the same trajectory; by turn."""
    run = _Run(context(trajectory), len(trajectory.turns) - 1)
    dice = random.Random(f"{MADE}/{trajectory.id}")
    order = list(run.facts)
    dice.shuffle(order)
    order.sort(key=run.stands_alone)
    asked: list[tuple[Fact, Probe]] = []
    waiting: list[Fact] = []
    tries = most * _TRIES
    for fact in _spread(order, asked):
        if len(asked) == most or not tries:
            break
        tries -= 1
        if run.is_new(fact, asked):
            if run.restated(fact):
                waiting.append(fact)
            elif probe := run.probe(fact, dice):
                asked.append((fact, probe))
    for fact in _spread(waiting, asked):
        if len(asked) == most:
            break
        if run.is_new(fact, asked) and (probe := run.probe(fact, dice)):
            asked.append((fact, replace(probe, kind=f"{probe.kind}-restated")))
    asked.sort(key=lambda each: (each[0].said, each[0].begin))
    return tuple(replace(probe, id=f"{MADE}-{number}") for number, (_, probe) in enumerate(asked))


def _spread(order: Sequence[Fact], asked: Sequence[tuple[Fact, Probe]]) -> Iterator[Fact]:
    """The facts, each time one of the turn, then of the kind, that was asked least until then."""
    groups: dict[tuple[int, str], list[Fact]] = defaultdict(list)
    for fact in reversed(order):
        groups[fact.turn, fact.kind].append(fact)
    while groups:
        turns, kinds = Counter(f.turn for f, _ in asked), Counter(f.kind for f, _ in asked)
        key = min(groups, key=lambda group: (turns[group[0]], kinds[group[1]], len(order) - len(groups[group]), group))
        yield groups[key].pop()
        if not groups[key]:
            del groups[key]


class _Run:
    """One run as it was said, and what can be asked about it."""

    def __init__(self, said: list[Said], last: int) -> None:
        self._said, self._text = said, "\n".join(one.text for one in said)
        self._skeletons = [skeleton(one.text) for one in said]
        known = list(facts(said))
        self.facts = [fact for fact in known if fact.turn < last]
        self._alikes: dict[tuple[str, str], list[tuple[Fact, str]]] = defaultdict(list)
        for fact in known:
            self._alikes[_form(fact)].append((fact, skeleton(fact.value)))
        labelled = {(form, fact.label, value) for form, each in self._alikes.items() for fact, value in each}
        self._peers = Counter((form, label) for form, label, _ in labelled)

    def stands_alone(self, fact: Fact) -> bool:
        """Whether no other value of its form stands under the same label: the label alone may then tell the value."""
        return self._peers[_form(fact), fact.label] < 2

    def is_new(self, fact: Fact, asked: Sequence[tuple[Fact, Probe]]) -> bool:
        """Whether nothing said before states the value, and no probe asks for it yet."""
        value = skeleton(fact.value)
        if any(value in skeleton(other.value) for other, _ in asked):
            return False
        return not any(value in text for text in self._skeletons[: fact.said])

    def restated(self, fact: Fact) -> bool:
        """Whether anything said later states the value again."""
        value = skeleton(fact.value)
        return any(value in text for text in self._skeletons[fact.said + 1 :])

    def probe(self, fact: Fact, dice: random.Random) -> Probe | None:
        """The probe about a fact, or None where no words before it are its own or nothing looks like it."""
        before = self._before(fact)
        if before is None:
            return None
        wrong = self._alike(fact, before, dice)
        if not wrong:
            return None
        candidates = tuple(sorted(f"{fact.quote}{value}{fact.quote}" for value in [fact.value, *wrong]))
        right = candidates.index(f"{fact.quote}{fact.value}{fact.quote}")
        tool = self._said[fact.said].tool
        where = f"the result of {tool}" if tool else "an earlier result"
        question = f"Continue this quote from {where}."
        return Probe("", f"{MADE}-{fact.kind}", question, before, candidates, right, fact.turn)

    def _before(self, fact: Fact) -> str | None:
        """The shortest run of whole words before a fact that stands once in all that was said, without the value."""
        text = self._said[fact.said].text[max(0, fact.begin - QUOTED) : fact.begin].rstrip()
        starts = [i for i in range(len(text)) if not text[i].isspace() and (i == 0 or text[i - 1].isspace())]
        whole = starts[fact.begin > QUOTED :]  # the first word may be cut
        starts = [i for i in reversed(whole) if len(text) - i >= QUOTED_LEAST] or whole[:1]
        low, high = 0, len(starts)
        while low < high:
            middle = (low + high) // 2
            if self._text.count(text[starts[middle] :]) > 1:
                low = middle + 1
            else:
                high = middle
        if low == len(starts):
            return None
        before = text[starts[low] :]
        return None if skeleton(fact.value) in skeleton(before) or fact.value in before else before

    def _alike(self, fact: Fact, before: str, dice: random.Random) -> list[str]:
        """Up to three other values that could stand there as well: of the same kind and outline, and about as long."""
        right, quoted = skeleton(fact.value), skeleton(before)
        found: dict[str, tuple[bool, bool, int, float, str]] = {}
        for other, value in self._alikes[_form(fact)]:
            longer = abs(len(other.value) - len(fact.value))
            if value in right or right in value or value in quoted or longer > max(1, len(fact.value) // 4):
                continue
            rank = (
                other.label != fact.label,
                shape(other.value) != shape(fact.value),
                longer,
                dice.random(),
                other.value,
            )
            found[value] = min(rank, found.get(value, rank))
        return [rank[-1] for rank in sorted(found.values())[: CANDIDATES - 1]]


def _form(fact: Fact) -> tuple[str, str]:
    return fact.kind, outline(fact.value)
