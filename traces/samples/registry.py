"""`registry`: a search agent over a fictional registry (station → keeper, keeper → city)."""

from __future__ import annotations

import random

from ..trajectory import Probe, Trajectory
from .shape import FACTS, probe, run, sentences, turns_of, with_fact
from .words import CITIES, NAMES, SENTENCES, STATIONS, TOPICS


def registry(dice: random.Random, id: str) -> Trajectory:
    """One run: a page of nine sentences about the site per turn, a fact at a uniform place among them."""
    stations, keepers = dice.sample(STATIONS, FACTS), dice.sample(NAMES, FACTS)
    cities, topics = dice.sample(CITIES, FACTS), dice.sample(TOPICS, 3)
    steps: list[tuple[str, str | None]] = []
    probes: list[Probe] = []
    for i, (station, keeper, city) in enumerate(zip(stations, keepers, cities, strict=True)):
        steps.append((f"Search: keeper of {station} station", f"{keeper} keeps {station} station."))
        steps.append((f"Search: home of {keeper}", f"{keeper} lives in {city}."))
        asked, two_hop = 2 * i + 1, f"keeper of {station} station"
        probes.append(probe(i, asked, cities, f"Where does {keeper} live?", f"{keeper} lives in", "one-hop"))
        probes.append(probe(i, asked, cities, f"Where does the {two_hop} live?", f"The {two_hop} lives in", "two-hop"))
    steps += [(f"Search: {topic}", None) for topic in topics]
    return run(
        id,
        "You are a research agent. You search a registry and report what you find.",
        "Find out who keeps each station in the registry and where each keeper lives.",
        turns_of(steps, "I found it.", "That page is done.", lambda fact: page(dice, fact)),
        probes,
    )


def page(dice: random.Random, fact: str | None) -> str:
    """Nine sentences about the site, and the fact among them."""
    return "Result: " + " ".join(with_fact(dice, sentences(dice, SENTENCES, 9), fact))
