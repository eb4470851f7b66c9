"""`operations`: an agent that reads logs (service → owner, owner → city)."""

from __future__ import annotations

import random

from ..trajectory import Probe, Trajectory
from .shape import FACTS, lines, probe, run, turns_of, with_fact
from .words import CITIES, CLOSING_LOGS, LOG_LINES, NAMES, SERVICES


def operations(dice: random.Random, id: str) -> Trajectory:
    """One run: eleven log lines per turn, a fact at a uniform place among them."""
    services, owners = dice.sample(SERVICES, FACTS), dice.sample(NAMES, FACTS)
    cities, logs = dice.sample(CITIES, FACTS), dice.sample(CLOSING_LOGS, 3)
    steps: list[tuple[str, str | None]] = []
    probes: list[Probe] = []
    for i, (service, owner, city) in enumerate(zip(services, owners, cities, strict=True)):
        steps.append((f"cat /var/log/{service}.log", f"{owner} owns the {service} service."))
        steps.append((f"cat /var/log/{owner.lower()}.log", f"{owner} works in {city}."))
        asked, two_hop = 2 * i + 1, f"owner of the {service} service"
        probes.append(probe(i, asked, cities, f"Where does {owner} work?", f"{owner} works in", "one-hop"))
        probes.append(probe(i, asked, cities, f"Where does the {two_hop} work?", f"The {two_hop} works in", "two-hop"))
    steps += [(f"cat /var/log/{log}.log", None) for log in logs]
    return run(
        id,
        "You are an operations agent. You read logs and report what you find.",
        "Find out who owns each service and where the owner works.",
        turns_of(steps, "Found it.", "That log is done.", lambda fact: log_text(dice, fact)),
        probes,
    )


def log_text(dice: random.Random, fact: str | None) -> str:
    """Eleven log lines, and the fact among them."""
    info = [f"INFO {line}" for line in lines(dice, LOG_LINES, 11)]
    return "\n".join(["Output:", *with_fact(dice, info, fact and f"INFO {fact}")])
