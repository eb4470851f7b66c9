"""`work` against the matrix products that a policy's state really asks for, counted by torch.

Bounds are a factor of two either way: `work` also counts softmaxes, takes the rows at their peak, and leaves out what
only the reference repeats.
"""

from __future__ import annotations

from typing import Any

import pytest
from stepping import walk
from tiny import tiny_model, trajectory
from torch.utils.flop_counter import FlopCounterMode

from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Lockstep
from kvmill.replay.policies.registry import parse_policy
from kvmill.replay.policies.states import PolicyState

METHODS = ("begin", "observe", "fed", "look", "observe_copy", "close")


def counted(state: PolicyState) -> list[float]:
    """A list that collects the operations of every call of the state from now on."""
    found: list[float] = []

    def count(method: Any) -> Any:
        def called(*args: Any) -> Any:
            with FlopCounterMode(display=False) as counter:
                result = method(*args)
            found.append(counter.get_total_flops())
            return result

        return called

    for name in METHODS:
        setattr(state, name, count(getattr(state, name)))
    return found


@pytest.mark.parametrize(
    "policy",
    [
        "te",
        "te(proxy=boundary)",
        "te(proxy=repeat)",
        "te(proxy=assistant+boundary+tool,delay=2)",
        "te(normaliser=global)",
        "te(proxy=repeat+boundary,normaliser=global)",
        "am",
        "am(fallback=none)",
        "am(proxy=repeat,weighting=share)",
        "snapkv",
        "rkv",
        "expected_attention",
        "expected_attention(covariance=false)",
        "kvzip",
        "kvzip(chunk=40)",
        "adaptive",
        "adaptive(budget=60,delay=2)",
        "attention",
        "attention(prefix=drop,trigger=tokens:50)",
        "hybrid",
        "merge",
        "merge(layers=0-1,trigger=turn)",
    ],
)
def test_work_is_the_products_that_are_made_within_a_factor_of_two(policy: str) -> None:
    text = trajectory(seed=3, turns=6, long_tool=250)
    step = Lockstep(Forward(tiny_model()), text, [parse_policy(policy)], seed=1)
    branch = step.branches[0]
    made = counted(branch.state)
    walk(step)
    told = sum(work.flops for work in branch.work)
    assert 0.5 < told / sum(made) < 2.05, f"{told:.3g} told, {sum(made):.3g} made"


@pytest.mark.parametrize("policy", ["full", "truncate", "drop_tool_outputs", "random", "sink_window"])
def test_what_scores_nothing_makes_no_products(policy: str) -> None:
    step = Lockstep(Forward(tiny_model()), trajectory(), [parse_policy(policy)], seed=1)
    made = counted(step.branches[0].state)
    walk(step)
    assert sum(made) == sum(work.flops for work in step.branches[0].work) == 0
