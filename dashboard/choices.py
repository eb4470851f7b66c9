"""From what is ticked on a page to policies as text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..replay.policies.base import Policy
from ..replay.policies.registry import POLICIES, parse_policies, parse_policy
from .looks import short_names

RATIOS = ("0.05", "0.1", "0.2", "0.3", "0.4", "0.5", "0.7")
_SPELLED = ("te(proxy=assistant,delay=1)", "te(proxy=boundary)", "am(proxy=assistant,delay=1)")
METHODS = (*_SPELLED, *(name for name in POLICIES if name not in ("full", "te", "am")))
"""What can be ticked: token eviction and attention matching as the paper has them, every other policy by its name."""
NAMES = short_names(METHODS, keeps=False)
"""What to call them: no two alike."""
CHOSEN_METHODS, CHOSEN_RATIOS = _SPELLED[:2], ("0.2",)


def summary(method: str) -> str:
    """A method in a few words."""
    return parse_policy(method).summary


def policies_of(methods: Sequence[str], ratios: Sequence[str], more: str = "") -> list[Policy]:
    """`full`, every method at every keep ratio (once if it takes none), and the lines of `more`; none twice.

    UserError for a line that is no policy.
    """
    texts = [text for method in methods for text in _at(method, ratios)]
    chosen = [parse_policy(text) for text in [*texts, *filter(None, map(str.strip, more.splitlines()))]]
    return parse_policies([str(policy) for n, policy in enumerate(chosen) if policy not in chosen[:n]])


def _at(method: str, ratios: Sequence[str]) -> list[str]:
    keeps = "keep" in {field.name for field in dataclasses.fields(parse_policy(method))}
    if not keeps:
        return [method]
    begun = method[:-1] + "," if method.endswith(")") else method + "("
    return [f"{begun}keep={ratio})" for ratio in ratios]
