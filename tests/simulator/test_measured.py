"""Measured seconds of compaction count where they were measured on the planned machine, and nowhere else."""

from dataclasses import replace

import pytest
from worlds import TE, closed, deployment, scenario

from kvmill.replay.policies.registry import parse_policy
from kvmill.replay.profile import PolicyProfile
from kvmill.simulator.assumptions import assumptions
from kvmill.simulator.cost import CostModel
from kvmill.simulator.lengths import contexts_of, segments_of
from kvmill.simulator.measured import gpu_of, pace, timed
from kvmill.simulator.plan import scenarios_of
from kvmill.simulator.session import compaction_seconds
from kvmill.traces.samples import load
from kvmill.traces.store import Store

PLACE = deployment()
CONFIG = {"model": "llama-3.1-8b", "dtype": "bfloat16", "worker": {"processor": "NVIDIA H100 80GB HBM3"}}
RUNS = load()[:3]


def replayed(store, config=None, times=3.0, runs=RUNS):
    """A store whose compactions took `times` what the cost model says of an H100; the profiles that are made of it."""
    run = store.begin("replay", CONFIG | (config or {}), device="cuda")
    cost, shape, rule = CostModel.of(PLACE), PLACE.geometry.kv_shape("bf16"), parse_policy(TE)
    for one in runs:
        key = {"cell_id": one.id, "trajectory_id": one.id, "family": one.family}
        contexts = {j: 300 * (j + 1) for j in range(len(one.turns))}
        rows = [
            {**key, "policy": "full", "measure": "quality", "turn": j, "logical_tokens": tokens}
            for j, tokens in contexts.items()
        ]
        segments = segments_of(one, contexts)
        closing = compaction_seconds(rule.footprint(segments), rule.work(segments, shape), cost)
        rows += [
            {**key, "policy": TE, "measure": "latency", "turn": j, "compaction_s": times * closing[j - 1]}
            for j in contexts
            if j
        ]
        run.add({"turn_metrics": rows}, key=one.id)
    run.finish()
    found = {name: PolicyProfile(name, run=run.id, model="llama-3.1-8b") for name in ("full", TE)}
    return timed(store, found)


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path)


@pytest.mark.parametrize(
    ("processor", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H200", "h200"), ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA A100-SXM4-40GB", "a100-40"), ("NVIDIA L40S", "l40s"), ("NVIDIA L4", "l4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("NVIDIA H100 PCIe", None), ("NVIDIA H100 NVL", None),
        ("NVIDIA A100 80GB PCIe", None), ("AMD EPYC 9654 96-Core Processor", None), ("NVIDIA GH200 480GB", None),
    ],
)  # fmt: skip
def test_a_card_is_known_by_the_name_it_gives_itself(processor, name):
    assert gpu_of(processor) == name


def test_what_compactions_took_is_charged_on_the_machine_they_took_it_on(store):
    known = replayed(store)
    assert contexts_of(store, known[TE].run)[RUNS[0].id][1] == 600
    found = pace(known[TE], PLACE)
    assert found.ratio == pytest.approx(3.0)
    assert found.source.startswith("3 × the roofline: measured, ")
    (plain,) = scenarios_of(closed(4), PLACE, (), {TE: PolicyProfile(TE)})
    (slow,) = scenarios_of(closed(4), PLACE, (), {TE: known[TE]})
    assert sum(plain.plan_of(0).pay) > 0
    assert slow.plan_of(0).pay == pytest.approx([3 * s for s in plain.plan_of(0).pay])
    assert slow.plan_of(0).repay == pytest.approx([3 * s for s in plain.plan_of(0).repay])
    assert "measured" in assumptions(slow, known[TE])["compaction"]
    assert "estimated" in assumptions(scenario(closed(4), TE), PolicyProfile(TE))["compaction"]
    assert pace(known["full"], PLACE) is None, "nothing is compacted"


@pytest.mark.parametrize(
    "place",
    [
        replace(PLACE, tp=2),
        replace(PLACE, kv_dtype="fp8"),
        replace(PLACE, dtype="fp8"),
        deployment(gpu="h200"),
        deployment(model="qwen3-8b"),
    ],
    ids=["more GPUs", "another cache", "other weights", "another GPU", "another model"],
)
def test_elsewhere_they_are_estimated(store, place):
    assert pace(replayed(store)[TE], place) is None


@pytest.mark.parametrize(
    ("config", "runs"),
    [
        ({"worker": {"processor": "AMD EPYC 9654 96-Core Processor"}}, RUNS),
        ({"worker": None}, RUNS),
        ({"dtype": "float32"}, RUNS),
        ({}, RUNS[:1]),
    ],
    ids=["no GPU", "an older run", "float32", "too few"],
)
def test_from_what_does_not_tell_nothing_is_taken(store, config, runs):
    assert pace(replayed(store, config, runs=runs)[TE], PLACE) is None


def test_policies_that_evict_inside_the_decode_are_estimated(store):
    found = replayed(store)[TE]
    assert pace(replace(found, policy="attention(keep=0.2)"), PLACE) is None
