"""Which state goes with which policy. To add a policy: one line here, one in `registry.py`."""

from __future__ import annotations

from .attention import Attention
from .base import Policy
from .full import Full
from .recency import Random, SinkWindow
from .running_states import AttentionState, RandomState, SinkWindowState, TruncateState
from .states import PolicyState, Scene
from .te import TokenEviction
from .te_state import TokenEvictionState
from .truncate import Truncate

STATES: dict[type[Policy], type[PolicyState]] = {
    Full: PolicyState,
    Truncate: TruncateState,
    SinkWindow: SinkWindowState,
    Random: RandomState,
    Attention: AttentionState,
    TokenEviction: TokenEvictionState,
}


def state_for(policy: Policy, scene: Scene) -> PolicyState:
    """The state of a policy for one trajectory."""
    return STATES[type(policy)](policy, scene)
