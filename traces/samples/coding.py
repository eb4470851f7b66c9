"""`coding`: an agent that reads code (job → function or class → module); defined early, asked for at the end."""

from __future__ import annotations

import random

from ..trajectory import Probe, Trajectory
from .shape import FACTS, lines, probe, run, turns_of, with_fact
from .words import CLASSES, CLOSING_FILES, CODE_LINES, FUNCTIONS, JOBS, MODULES


def coding(dice: random.Random, id: str) -> Trajectory:
    """One run, about functions or classes: eleven lines of code per turn, a fact as a comment somewhere in them."""
    jobs, names = dice.sample(JOBS, FACTS), dice.sample(dice.choice((FUNCTIONS, CLASSES)), FACTS)
    modules, files = dice.sample(MODULES, FACTS), dice.sample(CLOSING_FILES, 3)
    steps: list[tuple[str, str | None]] = []
    probes: list[Probe] = []
    for i, (job, name, module) in enumerate(zip(jobs, names, modules, strict=True)):
        steps.append((f"grep -rn {job} src", f"The {job} job calls {name}."))
        steps.append((f"grep -rn {name} src", f"{name} lives in {module}."))
        asked = f"What does the {job} job call?"
        probes.append(probe(i, 2 * i, names, asked, f"The {job} job calls", "call"))
        probes.append(probe(i, 2 * i + 1, modules, f"Where does {name} live?", f"{name} lives in", "module"))
    steps += [(f"cat {file}.txt", None) for file in files]
    return run(
        id,
        "You are a coding agent. You read code and report what you find.",
        "Find out what each job calls and where that lives.",
        turns_of(steps, "Found it.", "That file is done.", lambda fact: code(dice, fact)),
        probes,
    )


def code(dice: random.Random, fact: str | None) -> str:
    """Eleven lines of code, and the fact among them."""
    return "\n".join(["Output:", *with_fact(dice, lines(dice, CODE_LINES, 11), fact and f"    # {fact}")])
