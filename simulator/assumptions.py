"""What was not measured for an answer, and how the fleet was run: the list that every answer ends with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..replay.profile import PolicyProfile
from .deployment import Deployment
from .run import Scenario
from .workload import Workload


def assumptions(scenario: Scenario, profile: PolicyProfile) -> dict[str, Any]:
    """Everything that was chosen or assumed rather than measured of one policy, by name, each with its label."""
    deployment, load, gpu = scenario.deployment, scenario.workload, scenario.deployment.gpu
    found: dict[str, Any] = {
        "workload": list(load.assumed),
        "lengths": load.lengths_from,
        "host_time_s": f"{gpu.host_step_s * 1e3:g} ms per step + {gpu.host_sequence_s * 1e6:g} µs per sequence "
        f"({gpu.host_source})",
        "efficiencies": gpu.efficiency_source,
        "compaction": _compaction(scenario),
        "activation": f"{deployment.activation.gib:.2f} GiB per GPU ({deployment.activation.source})",
        "batching": f"{deployment.token_budget:,} tokens per step, {deployment.max_sequences:,} sequences at once",
        "preemption": _preemption(deployment),
        "router": scenario.router,
        "model_error": f"±{scenario.cost.error:.1%} ({scenario.cost.error_source})",
        "structural_tokens": "two per segment (assumed), and what follows them",
        "retention": retention_words(deployment),
        "sessions": _drawn(load),
        "window": f"{scenario.positions.cut_share:.0%} of sessions end at the window of "
        f"{deployment.geometry.max_positions:,} tokens, before their last turn",
        "extra_turns": profile.extra_turns_source,
    }
    if scenario.failure is not None:
        found["failure"] = f"one replica is out for {scenario.failure.outage_s:g} s"
    if deployment.coarse_tokens:
        found["coarse_tokens"] = f"caches are found again in multiples of {deployment.coarse_tokens:,} tokens"
    if scenario.keep_measured is not None:
        found["kept"] = f"{scenario.keep_measured:.1%} of the tokens, the mean that replay measured (target: a loss)"
    return found


def assumed_together(scenarios: Sequence[Scenario], known: Mapping[str, PolicyProfile]) -> dict[str, Any]:
    """The same of several policies: said once where it is alike for all, else a line for each policy that has it."""
    each = {one.policy: assumptions(one, known[one.policy]) for one in scenarios}
    together: dict[str, Any] = {}
    for name in dict.fromkeys(name for found in each.values() for name in found):
        said = {policy: found[name] for policy, found in each.items() if name in found}
        first, *others = said.values()
        alike = len(said) == len(each) and all(value == first for value in others)
        together[name] = first if alike else [f"{policy}: {value}" for policy, value in said.items()]
    return together


def _compaction(scenario: Scenario) -> str:
    seconds = scenario.pace.source if scenario.pace else "on the target's roofline (estimated)"
    if scenario.deployment.compaction == "inline":
        return f"inline, {seconds}"
    return f"beside the batch, {seconds}, free for other requests (assumed)"


def _preemption(deployment: Deployment) -> str:
    if deployment.preemption == "recompute":
        return "a request that makes room is prefilled again later"
    return f"a request that makes room is copied to the host and back, at {_link(deployment)}"


def _link(deployment: Deployment) -> str:
    return f"{deployment.gpu.link_bandwidth / 1e9:.3g} GB/s per GPU ({deployment.gpu.link_source})"


def retention_words(deployment: Deployment) -> str:
    """What becomes of the KV of waiting agents."""
    until = "KV of waiting agents stays in GPU memory until evicted, least recently used first, from its tail; "
    if deployment.offloads:
        return (
            f"{until}it then goes to {deployment.host_gib:g} GiB of host memory per GPU (assumed) and is loaded again "
            f"at {_link(deployment)}"
        )
    if deployment.ttl_s < float("inf"):
        return f"{until}or for {deployment.ttl_s:g} s at most (--retention); no offload to host memory (assumed)"
    return f"{until}no offload to host memory (assumed)"


def _drawn(load: Workload) -> str:
    count = f"{len(load.sessions):,} sessions"
    if load.declared:
        return f"{count}, drawn once from the declared laws: intervals are for this draw, other seeds give other draws"
    return f"replications draw from the {count} given, with replacement"
