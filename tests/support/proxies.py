"""A branch whose policy scores with proxy queries, beside `full`, fed turn by turn."""

from __future__ import annotations

from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Lockstep
from kvmill.replay.model import LoadedModel
from kvmill.replay.policies.proxy_state import ProxyState
from kvmill.replay.policies.registry import parse_policies
from kvmill.replay.segments import turns_of
from kvmill.traces.tokens import TokenTrajectory


def begun(model: LoadedModel, policy: str, text: TokenTrajectory) -> tuple[Lockstep, ProxyState]:
    """Before the first token; the second branch is the policy's."""
    step = Lockstep(Forward(model), text, parse_policies([policy]), seed=3)
    state = step.branches[1].state
    assert isinstance(state, ProxyState)
    return step, state


def feed(step: Lockstep, turn: int) -> None:
    """Everything of a turn but its close."""
    for s in turns_of(step.trajectory)[turn]:
        for chunk in step.chunks(s):
            step.feed(chunk)


def close(step: Lockstep, turn: int) -> None:
    """Compact what is due, and check the footprint."""
    step.compact(turn)
    step.settle(turn)
    assert [branch.error for branch in step.branches] == [None] * len(step.branches)
