"""`planning`: an agent that plans meetings; what people need is asked first and must still be known at the end."""

from __future__ import annotations

import random

from ..trajectory import Probe, Trajectory
from .shape import FACTS, probe, run, sentences, turns_of, with_fact
from .words import CLOSING_TASKS, DAYS, NAMES, PLANS, TEAMS


def planning(dice: random.Random, id: str) -> Trajectory:
    """One run: nine sentences about rooms and supplies per turn, a constraint at a uniform place among them."""
    teams, leaders = dice.sample(TEAMS, FACTS), dice.sample(NAMES, FACTS)
    days, tasks = dice.sample(DAYS, FACTS), dice.sample(CLOSING_TASKS, 3)
    steps: list[tuple[str, str | None]] = []
    probes: list[Probe] = []
    for i, (team, leader, day) in enumerate(zip(teams, leaders, days, strict=True)):
        steps.append((f"Ask: leader of the {team} team", f"The {team} team is led by {leader}."))
        steps.append((f"Ask: time of {leader}", f"{leader} has time on {day}."))
        probes.append(probe(i, 2 * i, leaders, f"Who leads the {team} team?", f"The {team} team is led by", "leader"))
        probes.append(probe(i, 2 * i + 1, days, f"When does {leader} have time?", f"{leader} has time on", "day"))
    steps += [(f"Check: {task}", None) for task in tasks]
    return run(
        id,
        "You are a planning agent. You plan meetings and keep to what people need.",
        "Plan a meeting with every team. First find out who leads each team and when that person has time.",
        turns_of(steps, "Noted.", "That is settled.", lambda fact: notes(dice, fact)),
        probes,
    )


def notes(dice: random.Random, fact: str | None) -> str:
    """Nine sentences about rooms and supplies, and the constraint among them."""
    return "Result: " + " ".join(with_fact(dice, sentences(dice, PLANS, 9), fact))
