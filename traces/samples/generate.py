"""Makes the bundled samples: `python -m kvmill.traces.samples.generate` writes the two files again, byte for byte.

They are synthetic. Two families of agent runs, 40 each, 11 turns, 8 probes a run:

* `registry`: a search agent over a fictional registry (station → keeper, keeper → city).
* `operations`: an agent that reads logs (service → owner, owner → city).

Each fact takes one turn; the next assistant message restates it and issues the next call, as plain text: rendered
tool calls would change what was measured. Three closing turns without any fact follow, so that the last quarter of
the context holds no candidate and truncation is at chance, not biased to the latest candidates. Four one-hop and four
two-hop probes ask for the cities; their answer prefix repeats the wording of the fact; the candidates are the four
cities of the run, so chance is 0.25. The word lists and the shape were found by trying them on a 135M model.

What to keep in mind when reading results on them:

* A small model is weak on facts in the middle of the context even with the full cache; nothing was selected for it.
* Probes of one run are not independent: intervals resample runs.
* The recorded assistant text restates each fact, so teacher forcing hands every policy the value a second time.
* "Two-hop" may be the mere nearness of two facts: it is no proof of reasoning.
* A delayed policy holds its last turns raw (about 140 tokens each): compare sizes, not only keep ratios.
* Log-likelihood of the right answer and its margin separate policies better than accuracy does.
"""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Callable
from pathlib import Path

from ..record import dump
from ..trajectory import Label, Message, Probe, Trajectory, Turn
from .words import (
    BUILDINGS,
    CITIES,
    CLOSING_LOGS,
    LOG_LINES,
    NAMES,
    NUMBERS,
    SENTENCES,
    SERVICES,
    STATIONS,
    TOPICS,
    WEEKDAYS,
)

FAMILIES = ("registry", "operations")
RUNS = 40
SEED = 2026
_FACTS = 4


def generate(family: str, index: int, seed: int = SEED) -> Trajectory:
    """Run `index` of a family; the same for the same arguments."""
    dice = random.Random(f"{family}/{index}/{seed}")
    return {"registry": _registry, "operations": _operations}[family](dice, f"{family}-{index:02d}")


def _registry(dice: random.Random, id: str) -> Trajectory:
    stations, keepers = dice.sample(STATIONS, _FACTS), dice.sample(NAMES, _FACTS)
    cities, topics = dice.sample(CITIES, _FACTS), dice.sample(TOPICS, 3)
    steps: list[tuple[str, str | None]] = []
    probes: list[Probe] = []
    for i, (station, keeper, city) in enumerate(zip(stations, keepers, cities, strict=True)):
        steps.append((f"Search: keeper of {station} station", f"{keeper} keeps {station} station."))
        steps.append((f"Search: home of {keeper}", f"{keeper} lives in {city}."))
        two_hop = f"keeper of {station} station"
        probes += _probes(i, cities, f"Where does {keeper} live?", f"{keeper} lives in", "one-hop")
        probes += _probes(i, cities, f"Where does the {two_hop} live?", f"The {two_hop} lives in", "two-hop")
    steps += [(f"Search: {topic}", None) for topic in topics]
    return _run(
        id,
        "You are a research agent. You search a registry and report what you find.",
        "Find out who keeps each station in the registry and where each keeper lives.",
        _turns(steps, "I found it.", "That page is done.", lambda fact: _page(dice, fact)),
        probes,
    )


def _operations(dice: random.Random, id: str) -> Trajectory:
    services, owners = dice.sample(SERVICES, _FACTS), dice.sample(NAMES, _FACTS)
    cities, logs = dice.sample(CITIES, _FACTS), dice.sample(CLOSING_LOGS, 3)
    steps: list[tuple[str, str | None]] = []
    probes: list[Probe] = []
    for i, (service, owner, city) in enumerate(zip(services, owners, cities, strict=True)):
        steps.append((f"cat /var/log/{service}.log", f"{owner} owns the {service} service."))
        steps.append((f"cat /var/log/{owner.lower()}.log", f"{owner} works in {city}."))
        two_hop = f"owner of the {service} service"
        probes += _probes(i, cities, f"Where does {owner} work?", f"{owner} works in", "one-hop")
        probes += _probes(i, cities, f"Where does the {two_hop} work?", f"The {two_hop} works in", "two-hop")
    steps += [(f"cat /var/log/{log}.log", None) for log in logs]
    return _run(
        id,
        "You are an operations agent. You read logs and report what you find.",
        "Find out who owns each service and where the owner works.",
        _turns(steps, "Found it.", "That log is done.", lambda fact: _log(dice, fact)),
        probes,
    )


def _run(id: str, system: str, task: str, turns: tuple[Turn, ...], probes: list[Probe]) -> Trajectory:
    return Trajectory(
        id=id,
        source="samples",
        family=id.rpartition("-")[0],
        prefix=(Message("system", system), Message("user", task)),
        turns=turns,
        probes=tuple(probes),
        label=Label("choice"),
    )


def _probes(i: int, cities: list[str], question: str, answer_prefix: str, kind: str) -> list[Probe]:
    """The probe of one kind on fact pair `i`, whose city was read in turn 2i+1."""
    candidates = tuple(sorted(cities))
    return [Probe(f"{kind}-{i}", kind, question, answer_prefix, candidates, candidates.index(cities[i]), 2 * i + 1)]


def _turns(
    steps: list[tuple[str, str | None]], found: str, done: str, page: Callable[[str | None], str]
) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    before: str | None = None
    for n, (call, fact) in enumerate(steps):
        said = "" if n == 0 else f"{found} {before}\n" if before else f"{done}\n"
        turns.append(Turn(Message("assistant", said + call), (Message("tool", page(fact)),)))
        before = fact
    return tuple(turns)


def _page(dice: random.Random, fact: str | None) -> str:
    """Nine sentences about the site, and the fact at a uniform place among them."""
    sentences = [
        text.format(number=dice.choice(NUMBERS), weekday=dice.choice(WEEKDAYS), building=dice.choice(BUILDINGS))
        for text in dice.sample(SENTENCES, 9)
    ]
    place = dice.randint(0, len(sentences))
    return "Result: " + " ".join([*sentences[:place], *([fact] if fact else []), *sentences[place:]])


def _log(dice: random.Random, fact: str | None) -> str:
    """Eleven log lines, and the fact at a uniform place among them."""
    lines = []
    for text in dice.sample(LOG_LINES, 11):
        a, b = sorted((dice.randint(2, 99), dice.randint(2, 99)))
        lines.append("INFO " + text.format(a=a, b=b))
    place = dice.randint(0, len(lines))
    return "\n".join(["Output:", *lines[:place], *([f"INFO {fact}"] if fact else []), *lines[place:]])


def text(family: str) -> str:
    """All runs of a family, one line each."""
    return "".join(dump(generate(family, index)) + "\n" for index in range(RUNS))


def main() -> None:
    """Write the two files beside this one. No name and no time goes into them, so they only change with the text."""
    for family in FAMILIES:
        buffer = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as file:
            file.write(text(family).encode())
        (Path(__file__).parent / f"{family}.jsonl.gz").write_bytes(buffer.getvalue())


if __name__ == "__main__":
    main()
