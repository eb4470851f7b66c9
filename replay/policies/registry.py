"""Every policy by name. To add one: a dataclass here, its scorer beside it, one line in each table."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...errors import UserError, unknown
from .adaptive import Adaptive
from .am import AttentionMatching
from .attention import Attention
from .base import Policy
from .drop import DropToolOutputs
from .full import Full
from .hybrid import Hybrid
from .kvzip import KvZip
from .merge import Merge
from .options import build, in_order, show_value, split_spec
from .peers import ExpectedAttention, KeyDiff, KNorm, RKv, SnapKv
from .recency import Random, SinkWindow
from .te import TokenEviction
from .truncate import Truncate

POLICIES: dict[str, type[Policy]] = {
    cls.name: cls
    for cls in (
        Full,
        Truncate,
        SinkWindow,
        Random,
        DropToolOutputs,
        Attention,
        Merge,
        Hybrid,
        TokenEviction,
        AttentionMatching,
        SnapKv,
        ExpectedAttention,
        KeyDiff,
        KNorm,
        KvZip,
        RKv,
        Adaptive,
    )
}

DEMO_POLICIES = (
    "full",
    "truncate(keep=0.2)",
    "sink_window(keep=0.2)",
    "random(keep=0.2)",
    "attention(keep=0.2)",
    "te(proxy=boundary,keep=0.2)",
    "te(proxy=assistant,delay=1,keep=0.1)",
    "te(proxy=assistant,delay=1,keep=0.2)",
    "te(proxy=assistant,delay=1,keep=0.4)",
)
QUICK_POLICIES = ("full", "te(proxy=boundary,keep=0.2)", "te(proxy=assistant,delay=1,keep=0.2)")
HEADLINE_POLICY = "te(proxy=assistant,delay=1,keep=0.2)"


def parse_policy(text: str) -> Policy:
    """A policy from its text. UserError on an unknown name or option, listing what is known."""
    name, pairs = split_spec(text)
    if name not in POLICIES:
        raise unknown("policy", name, POLICIES)
    return build(POLICIES[name], pairs, text)


def parse_policies(texts: list[str] | tuple[str, ...]) -> list[Policy]:
    """Several policies in order, `full` first (it is always run). UserError on equal ones and on a ragged one."""
    policies = [parse_policy(text) for text in texts]
    for i, policy in enumerate(policies):
        if policy.ragged:
            raise UserError(f"policy {policy}: heads keep unequal numbers of tokens; only kvmill.select can show them")
        if policy in policies[:i]:
            raise UserError(f"policy {policy} is given twice")
    full = [p for p in policies if isinstance(p, Full)] or [Full()]
    return full + [p for p in policies if not isinstance(p, Full)]


def describe() -> list[dict[str, Any]]:
    """One entry per policy, as `kvmill policies --json` prints it."""
    out: list[dict[str, Any]] = []
    for name, cls in POLICIES.items():
        options = {
            f.name: {
                "type": f.metadata["show"],
                "default": _default(cls, f),
                "doc": f.metadata["doc"],
            }
            for f in in_order(cls)
        }
        out.append(
            {
                "name": name,
                "summary": cls.summary,
                "options": options,
                "formula": cls.formula,
                "source": cls.source,
                "footprint": cls.footprint_kind,
            }
        )
    return out


def _default(cls: type[Policy], field: dataclasses.Field[Any]) -> str | None:
    """The resolved default, as a policy without options has it."""
    value = getattr(cls(), field.name)
    return None if value is None else show_value(value)
