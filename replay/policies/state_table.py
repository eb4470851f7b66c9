"""Which state goes with which policy. To add a policy: one line here, one in `registry.py`."""

from __future__ import annotations

from .adaptive import Adaptive
from .adaptive_state import AdaptiveState
from .am import AttentionMatching
from .am_state import AttentionMatchingState
from .attention import Attention
from .attention_state import AttentionState
from .base import Policy
from .drop import DropToolOutputs
from .full import Full
from .hybrid import Hybrid
from .hybrid_state import HybridState
from .kvzip import KvZip
from .kvzip_state import KvZipState
from .merge import Merge
from .merge_state import MergeState
from .peers import ExpectedAttention, KeyDiff, KNorm, RKv, SnapKv
from .peers_state import ExpectedAttentionState, KeyDiffState, KNormState, RKvState, SnapKvState
from .recency import Random, SinkWindow
from .running_states import RandomState, SinkWindowState
from .states import PolicyState, Scene
from .te import TokenEviction
from .te_state import TokenEvictionState
from .text_state import DropToolOutputsState, TruncateState
from .truncate import Truncate

STATES: dict[type[Policy], type[PolicyState]] = {
    Full: PolicyState,
    Truncate: TruncateState,
    SinkWindow: SinkWindowState,
    Random: RandomState,
    DropToolOutputs: DropToolOutputsState,
    Attention: AttentionState,
    Adaptive: AdaptiveState,
    Merge: MergeState,
    Hybrid: HybridState,
    TokenEviction: TokenEvictionState,
    AttentionMatching: AttentionMatchingState,
    SnapKv: SnapKvState,
    ExpectedAttention: ExpectedAttentionState,
    KeyDiff: KeyDiffState,
    KNorm: KNormState,
    KvZip: KvZipState,
    RKv: RKvState,
}


def state_for(policy: Policy, scene: Scene) -> PolicyState:
    """The state of a policy for one trajectory."""
    return STATES[type(policy)](policy, scene)
