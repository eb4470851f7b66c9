from dataclasses import replace

import numpy as np
import pytest
from worlds import SLOS, TE, closed, deployment, scenario

from kvmill.errors import UserError
from kvmill.replay.policies.base import split_turns
from kvmill.replay.profile import PolicyProfile
from kvmill.simulator.bench import Variant
from kvmill.simulator.hardware import find_gpu
from kvmill.simulator.models import find_geometry
from kvmill.simulator.plan import answer, deploy, plan, scenarios_of
from kvmill.simulator.positions import Positions
from kvmill.simulator.run import run_fleet
from kvmill.simulator.search import Side
from kvmill.simulator.sentence import sentence
from kvmill.simulator.slo import parse_slo
from kvmill.simulator.workload import contexts, long_agents

KEYS = [
    "policy",
    "feasible",
    "gpus",
    "gpus_low",
    "gpus_high",
    "gpus_saved",
    "gpus_saved_low",
    "gpus_saved_high",
    "gpus_if_slower",
    "gpus_if_faster",
    "binding_constraint",
    "cost_per_month",
    "quality_model",
    "quality_n",
    "extra_turns",
    "extra_turns_source",
    "turns_break_even",
    "replicas",
    "tp",
    "batch_mean",
    "batch_max",
    "throughput_requests_per_s",
    "throughput_tokens_per_s",
    "goodput_requests_per_s",
    "ttft_s",
    "tpot_s",
    "e2e_s",
    "kv_used_share",
    "preemptions",
]
QWEN, H200 = find_geometry("qwen3.5-27b"), find_gpu("h200")


@pytest.fixture(scope="module")
def long():
    return long_agents(0)


@pytest.fixture(scope="module")
def headline(long):
    return plan(long, QWEN, H200, ["full", TE], SLOS, replications=2, turns=1500, sensitivity=False)


def test_the_answer_on_long_agents_is_what_an_envelope_says(headline, long):
    """Full: every resident context must fit, or prefills of 100k tokens (10 s) end the 2 s promise.

    400 agents × mean resident rows over 1.15 M rows per H200; te holds the prefix, a fifth of the rest, two raw turns.
    """
    positions = Positions(long.sessions, QWEN.max_positions)
    drawn = positions.draw(np.random.default_rng(1), 4000)
    ends = []
    for session, turn, *_ in drawn:
        turns = split_turns(long.sessions[session].segments)
        ends.append(sum(t.tokens for t in turns[:turn]) + 8192 * (turn == 0) + turns[turn].assistant.tokens)
    context = float(np.mean(ends))
    pool = deploy(long, QWEN, H200, None).tokens()
    state = 148 * 16  # Gated DeltaNet state, in rows
    full, te = (row["gpus"] for row in headline["plans"])
    assert 65 < pool * 65_536 / 2**30 < 75, "GiB: usable · 0.9 less 52 GiB of weights and what a step needs"
    assert full == pytest.approx(400 * (context - 6144 + state) / pool, rel=0.15)
    raw_turns, queries = 2 * 1_900, 4 * 350
    held = 2_048 + 0.2 * (context - 8_192) + raw_turns + queries + state
    assert 400 * held / pool <= te + 1, "memory allows no fewer"
    assert te <= 1.6 * 400 * held / pool, "prefill and decode take the rest"
    assert te < full / 2.5


def test_every_promised_key_is_there(headline):
    for row in headline["plans"]:
        assert not [key for key in KEYS if key not in row]
        assert row["cost_per_month"] == pytest.approx(row["gpus"] * 6.31 * 730)
    assert (headline["slo"], headline["workload"]) == ({"ttft_p95": 2.0, "tpot_p95": 0.05}, "long-agents")


def test_the_answer_follows_from_the_sizes_looked_at(headline):
    for row in headline["plans"]:
        sizes = {size["gpus"]: size for size in row["sizes"]}
        refuted = [gpus for gpus, size in sizes.items() if size["verdict"] == "fails"]
        assert row["gpus_low"] == (max(refuted) + 1 if refuted else min(sizes))
        within = [
            gpus
            for gpus, size in sizes.items()
            if all(size[f"{key}_s"][0] <= limit for key, limit in headline["slo"].items())
        ]
        assert row["gpus"] == min(gpus for gpus in within if gpus >= row["gpus_low"])
        assert row["ttft_s"]["p95"] == pytest.approx(sizes[row["gpus"]]["ttft_p95_s"][0]), "one mean everywhere"


def side(count, firsts):
    """A made-up answer: in replication r the sizes from `firsts[r]` on meet."""
    world = scenario(closed(2), turns=50)
    base = run_fleet(world, 1, 0)
    late = [[replace(base, values={"ttft_p95": 1.0 if n >= f else 9.0}) for f in firsts] for n in range(1, 20)]
    return world, Side(Variant(0), 1, count, count, count, dict(enumerate(late, start=1)), 19)


def test_savings_are_paired_by_replication():
    """Both sides move together by ±3; their difference does not move, and its interval says so."""
    world, full = side(12, [9, 15, 12, 10, 14])
    world = replace(world, slos=parse_slo(["ttft_p95=2"]))
    _, half = side(6, [3, 9, 6, 4, 8])
    row = answer(half, full, world, PolicyProfile(TE), range(5))
    assert (row["gpus_saved"], row["gpus_saved_low"], row["gpus_saved_high"]) == (6, 6.0, 6.0)
    _, apart = side(6, [6, 6, 6, 6, 6])
    row = answer(apart, full, world, PolicyProfile(TE), range(5))
    assert (row["gpus_saved_low"], row["gpus_saved_high"]) == pytest.approx(
        tuple(np.quantile([3, 9, 6, 4, 8], [0.025, 0.975]))
    )
    for smallest, ends in ((13, (6, 7)), (11, (5, 6))):
        _, beside = side(12, [smallest] * 5)
        row = answer(apart, beside, world, PolicyProfile(TE), range(5))
        assert (row["gpus_saved_low"], row["gpus_saved_high"]) == ends, "the saving is in its own interval"


def test_what_binds_is_read_where_one_replica_is_missing_by_majority():
    world, full = side(12, [9, 15, 13, 13, 13])
    said = ["decode bandwidth: calm", "host time: odd", *["KV blocks: most"] * 3]
    for size, runs in full.results.items():
        mine = said if size == 11 else ["prefill compute: elsewhere"] * 5
        full.results[size] = [replace(run, binding_constraint=text) for run, text in zip(runs, mine, strict=True)]
    world = replace(world, slos=parse_slo(["ttft_p95=2"]))
    assert answer(full, full, world, PolicyProfile("full"), range(5))["binding_constraint"] == (
        "KV blocks: most (11 GPUs, one replica fewer)"
    )


def test_full_saves_nothing_against_itself(headline):
    full, te = headline["plans"]
    assert (full["gpus_saved"], full["gpus_saved_low"], full["gpus_saved_high"]) == (0, 0.0, 0.0)
    assert te["gpus_saved"] == full["gpus"] - te["gpus"]


def test_what_the_answer_rests_on_is_said(headline, long):
    assumed = headline["assumptions"]
    assert "no offload to host memory" in assumed["retention"]
    assert "drawn once" in assumed["sessions"]
    assert "sensitivity" not in assumed, "none was asked for"
    assert assumed["window"].startswith("17% of sessions end at the window of 262,144 tokens")
    median = contexts(long, QWEN.max_positions)["p50"]
    assert headline["compactable_share"] == QWEN.compactable_share(median, "bf16") > 0.9


def test_not_measured_is_null(headline):
    row = headline["plans"][1]
    assert row["quality_model"] is row["quality_n"] is row["extra_turns"] is row["answer_accuracy"] is None
    assert row["extra_turns_source"].startswith("assumed none")
    full = headline["plans"][0]
    assert (full["policy"], full["extra_turns"]) == ("full", 0)
    assert full["extra_turns_source"] == "none by definition: full is the reference"


EASY = parse_slo(["ttft_p95=4", "tpot_p95=0.1"])


def small(policies=("full", TE), slo=EASY, **options):
    load = closed(60, tool=2500, out=150, turns=8)
    fixed = {"replications": 3, "turns": 400, "tp": 1} | options
    return plan(load, find_geometry("llama-3.1-8b"), find_gpu("h100"), policies, slo, **fixed)


def test_extra_turns_from_a_closed_loop_run_cost_gpus():
    calm = small(sensitivity=False)["plans"][1]
    profile = PolicyProfile(TE, model="qwen3.5-27b", n=50, extra_turns=1.5, extra_turns_source="closed loop")
    busy = small(sensitivity=False, profiles={TE: profile})["plans"][1]
    assert busy["gpus"] > calm["gpus"]
    assert (busy["extra_turns"], busy["quality_n"]) == (1.5, 50)


def test_no_fleet_is_an_answer_with_its_constraint():
    found = small(slo=parse_slo(["ttft_p95=2", "tpot_p95=0.001"]), max_gpus=30)
    for row in found["plans"]:
        assert not row["feasible"]
        assert row["gpus"] is row["gpus_saved"] is row["gpus_if_slower"] is row["cost_per_month"] is None
        assert row["binding_constraint"].startswith("weight streaming: p95 TPOT at ")
        assert "one decode step takes 7 ms even alone" in row["binding_constraint"]
        assert row["binding_constraint"].endswith(f" ({row['sizes'][-1]['gpus']} GPUs)"), "where it was seen"
    assert sentence(found, TE).startswith(f"No fleet of up to 30 × H100 serves test with {TE}")


def test_one_replica_fewer_is_not_called_good_enough(headline):
    for row in headline["plans"]:
        if row["one_fewer"] is not None:
            assert row["one_fewer"]["verdict"] in ("fails", "undecided")
            assert row["one_fewer"]["gpus"] == row["gpus"] - row["tp"]


def test_a_policy_that_does_not_exist_is_refused_before_anything_runs():
    with pytest.raises(UserError, match="unknown policy 'tee'"):
        small(policies=["tee"])


def test_a_promise_about_the_time_per_token_of_single_tokens_is_refused():
    load, place = closed(5, out=0), deployment()
    known = {"full": PolicyProfile("full")}
    with pytest.raises(UserError, match="every turn answers with one token, which has no time per output token"):
        scenarios_of(load, place, SLOS, known)
    assert scenarios_of(load, place, SLOS[:1], known)
    assert scenarios_of(closed(5, out=2), place, SLOS, known)


def test_tensor_parallel_size_is_the_smallest_that_holds_the_longest_session(long):
    assert deploy(long, QWEN, H200, None).tp == 1
    assert deploy(long, find_geometry("llama-3.1-70b"), H200, None).tp == 2
    assert deploy(long, QWEN, H200, 4).tp == 4
    with pytest.raises(UserError, match="does not fit on 1 × l40s"):
        deploy(long, QWEN, find_gpu("l40s"), 1)


def test_no_answer_is_larger_than_the_largest_fleet_asked_about():
    with pytest.raises(UserError, match=r"--max-gpus 1: one replica of llama-3\.1-8b takes 2"):
        small(tp=2, max_gpus=1)
