"""The attention every token receives later, against a softmax in float64, one query head at a time."""

from __future__ import annotations

import math

import pytest
import torch
from families import FAMILIES, family_model
from stepping import Record, equal, walk, watched
from tiny import trajectory

from kvmill.replay.engine import replay
from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Lockstep
from kvmill.replay.policies.full import Full
from kvmill.replay.policies.mass_state import MassState
from kvmill.replay.policies.registry import parse_policies


def expected(record: Record, tokens: int) -> torch.Tensor:
    """Mean over all layers that read, and heads, of what each token got from later ones."""
    total = torch.zeros(tokens, dtype=torch.float64)
    # A cache that two layers read has two queries of each token.
    lists = sum(len(queries) for queries in record.queries.values()) / tokens
    for queries in record.queries.values():
        for query in queries:
            for token, weight in query.weights.items():
                if token < query.position:
                    total[token] += weight
    return total / lists


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_mass_is_what_later_queries_gave(name: str) -> None:
    text = trajectory(turns=3, long_tool=40)
    step = Lockstep(Forward(family_model(name)), text, [Full(), Full()], seed=0)
    state = MassState(step.branches[1].policy, step.branches[1].state.scene)
    step.branches[1].state = state
    record = watched(step)
    walk(step)
    equal(state.mass, expected(record, step.logical), within=1e-4)
    assert state.mass[-1] == 0, "nothing comes after the last token"


def test_a_replay_that_explains_measures_the_same() -> None:
    policies = parse_policies(["te(delay=1,keep=0.2)", "attention(keep=0.3)", "truncate"])
    forward = Forward(family_model("llama"))
    text = trajectory(turns=4)
    plain, explained = (replay(forward, text, policies, explain=explain) for explain in (False, True))
    for one, two in zip(plain, explained, strict=True):
        assert one.turns == two.turns
        assert one.kept is not None
        assert two.kept is not None
        assert torch.equal(one.kept, two.kept)
    assert [run.mass is None for run in explained] == [False, True, True, True]
    assert all(run.mass is None for run in plain)
    mass = explained[0].mass
    assert mass is not None
    # Every query gives one in all; a part of it to itself.
    assert 0.5 * len(mass) < math.fsum(mass.tolist()) < len(mass)
