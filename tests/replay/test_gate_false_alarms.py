"""Of a hundred clean nights at most five block: the same code on both sides, simulated from measured rows.

`gate_samples.json` has the rows of a replay of the bundled samples with the real model. A replay without sampling is
the same on both sides to the last bit, and its nights can never block; so two harder kinds of clean night are drawn.
`apart`: every side draws its own trajectories, so that nothing is paired and the noise is the largest that these rows
have. `reseeded`: trajectories are drawn anew every night and shared by both sides, and each side samples its answers.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kvmill.replay.gate import gate
from kvmill.replay.gate_nouns import REGRESSION, Cell, Pair, Side

FOUND = json.loads((Path(__file__).parent / "gate_samples.json").read_text())
POLICIES, FAMILIES = FOUND["policies"], FOUND["families"]
NIGHTS, PROBES = 100, 8
Values = dict[str, float]


def values(policy: str, row: list[float]) -> Values:
    if policy == "full":
        return {"answer_accuracy": row[0], "nll": row[1]}
    return {"answer_accuracy": row[0], "delta_nll": row[1], "kl": row[2]}


def side(drawn: dict[str, np.ndarray], rng: np.random.Generator | None = None, worse: Values | None = None) -> Side:
    """One run of the drawn trajectories; `rng` samples the answers anew, `worse` is added to te's own figures."""
    cells: dict[Pair, dict[str, Cell]] = {}
    for family, indices in drawn.items():
        for place, policy in enumerate(POLICIES):
            rows = {}
            for number, index in enumerate(indices):
                found = values(policy, FAMILIES[family][index][place])
                if rng is not None:
                    found["answer_accuracy"] = rng.binomial(PROBES, found["answer_accuracy"]) / PROBES
                if worse and policy.startswith("te("):
                    found = {name: value + worse.get(name, 0.0) for name, value in found.items()}
                rows[f"{family}/{number}"] = Cell("ok", found, 100.0)
            cells[policy, family] = rows
    return Side(cells, frozenset(t for rows in cells.values() for t in rows))


def draw(rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    return {family: rng.integers(0, len(rows), n) for family, rows in FAMILIES.items()}


def blocked(kind: str, n: int, nights: int = NIGHTS) -> int:
    """How many of the clean nights a gate with the default rules blocks."""
    rng = np.random.default_rng([n, kind == "apart"])
    red = 0
    for _ in range(nights):
        shared = draw(rng, n)
        if kind == "apart":
            old, new = side(shared), side(draw(rng, n))
        else:
            old, new = side(shared, rng), side(shared, rng)
        red += any(finding.blocks for finding in gate(old, new))
    return red


@pytest.mark.parametrize("kind", ["apart", "reseeded"])
@pytest.mark.parametrize("n", [10, 40])
def test_of_a_hundred_clean_nights_at_most_five_block(kind: str, n: int) -> None:
    assert blocked(kind, n) <= 5


def test_nights_without_sampling_never_block() -> None:
    rng = np.random.default_rng(5)
    for _ in range(10):
        drawn = draw(rng, 10)
        assert {finding.category for finding in gate(side(drawn), side(drawn))} == {"OK"}


def test_a_loss_of_a_tenth_of_a_nat_is_found_in_all_nights_and_named() -> None:
    rng = np.random.default_rng(6)
    for _ in range(20):
        drawn = draw(rng, 10)
        found = gate(side(drawn, rng), side(drawn, rng, worse={"delta_nll": 0.1, "kl": 0.1}))
        red = {(finding.policy, finding.family) for finding in found if finding.category == REGRESSION}
        assert red >= {(policy, family) for policy in POLICIES if policy.startswith("te(") for family in FAMILIES}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["apart", "reseeded"])
def test_of_a_thousand_clean_nights_at_most_five_in_a_hundred_block(kind: str) -> None:
    assert blocked(kind, 10, 1000) <= 50
