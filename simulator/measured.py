"""Seconds of compaction that a replay measured: used for a plan of the same model on the same GPU, and for no other.

A plan's sessions are longer than the replayed ones, so seconds are not carried over but their ratio to the roofline's:
all that a policy's compactions took, over all that the cost model says of the same segments. It holds for one GPU per
replica and a cache in bf16, as they were measured. Only policies that compact whole segments when a turn closes have
one: of the others a part of the work is inside the decode, and was measured as such.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ..errors import UserError
from ..replay.policies.registry import parse_policy
from ..replay.policies.segment import SegmentPolicy
from ..replay.profile import PolicyProfile, TimedCompactions
from .cost import CostModel
from .deployment import Deployment
from .gpus import GPUS
from .models import same_model
from .session import compaction_seconds

if TYPE_CHECKING:
    from ..traces.store import Store

ENOUGH = 10  # timed compactions that a ratio rests on, at the least
OTHER_PARTS = {"pcie", "nvl", "mig"}  # cards that share a name with a faster one
_SECONDS = (
    "SELECT policy, trajectory_id, turn, compaction_s FROM turn_metrics "
    "WHERE run_id = $1 AND measure = 'latency' AND turn > 0 AND compaction_s > 0 ORDER BY ALL"
)


class Pace(NamedTuple):
    """`ratio` of measured compactions to the cost model's, and in words what it rests on."""

    ratio: float
    source: str


def gpu_of(processor: str) -> str | None:
    """The built-in GPU that calls itself `processor` (`NVIDIA H100 80GB HBM3`), or None."""
    words = {re.sub(r"(?<=\d)gb$", "", word) for word in re.split(r"[^a-z0-9]+", processor.lower())}
    named = [name for name in GPUS if set(name.split("-")) <= words]
    return max(named, key=len) if named and not words & OTHER_PARTS else None


def timed(store: Store, known: Mapping[str, PolicyProfile]) -> dict[str, PolicyProfile]:
    """The profiles, with the compactions that their replay timed where it ran on a GPU of the catalogue in bf16."""
    from ..traces.select import select  # what reads traces is heavy, and processes that simulate need none of it
    from .lengths import contexts_of, segments_of

    run = next((profile.run for profile in known.values() if profile.run), None)
    config = store.info(run).config if run else {}
    processor, dtype = (config.get("worker") or {}).get("processor"), config.get("dtype")
    if run is None or processor is None or dtype != "bfloat16" or gpu_of(processor) is None:
        return dict(known)
    seconds: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for row in store.query(_SECONDS, [run]).to_pylist():
        of_policy = seconds.setdefault(row["policy"], {})
        of_policy.setdefault(row["trajectory_id"], []).append((row["turn"], row["compaction_s"]))
    contexts, segments = contexts_of(store, run), {}
    for name in {name for of_policy in seconds.values() for name in of_policy}:
        try:
            segments[name] = segments_of(select(store, name)[0], contexts.get(name))
        except UserError:  # the trajectory has been deleted
            continue
    out = dict(known)
    for policy, of_policy in seconds.items():
        sessions = tuple((segments[name], tuple(turns)) for name, turns in of_policy.items() if name in segments)
        if policy in out and sessions:
            out[policy] = replace(out[policy], timed=TimedCompactions(run, processor, dtype, sessions))
    return out


def pace(profile: PolicyProfile, deployment: Deployment) -> Pace | None:
    """How measured compactions compare with the cost model's; None where none were measured on this machine."""
    found, rule = profile.timed, parse_policy(profile.policy)
    alone = deployment.tp == 1 and deployment.dtype == deployment.kv_dtype == "bf16"
    if found is None or not alone or not isinstance(rule, SegmentPolicy):
        return None
    if gpu_of(found.processor) != deployment.gpu.name or not same_model(profile.model, deployment.geometry):
        return None
    cost, shape = CostModel.of(deployment), deployment.geometry.kv_shape(deployment.kv_dtype)
    measured = estimated = 0.0
    count = 0
    for segments, turns in found.sessions:
        closing = compaction_seconds(rule.footprint(segments), rule.work(segments, shape), cost)
        for turn, seconds in turns:  # before its first token: what the close of the turn before it set off
            if turn <= len(closing) and closing[turn - 1] > 0:
                measured, estimated, count = measured + seconds, estimated + closing[turn - 1], count + 1
    if count < ENOUGH:
        return None
    ratio = measured / estimated
    return Pace(ratio, f"{ratio:.3g} × the roofline: measured, {count} compactions on {found.processor} in {found.run}")
