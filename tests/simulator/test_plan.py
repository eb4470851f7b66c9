import numpy as np
import pytest
from worlds import SLOS, TE, closed

from kvmill.errors import UserError
from kvmill.replay.policies.base import split_turns
from kvmill.replay.profile import PolicyProfile
from kvmill.simulator.fleet import Positions
from kvmill.simulator.hardware import find_gpu
from kvmill.simulator.models import find_geometry
from kvmill.simulator.plan import deploy, plan
from kvmill.simulator.sentence import sentence
from kvmill.simulator.slo import parse_slo
from kvmill.simulator.workload import long_agents

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
    assert pool == pytest.approx(70.4 * 2**30 / 65_536, rel=0.01)
    assert full == pytest.approx(400 * (context - 6144 + state) / pool, rel=0.15)
    raw_turns, queries = 2 * 1_900, 4 * 350
    held = 2_048 + 0.2 * (context - 8_192) + raw_turns + queries + state
    assert 400 * held / pool <= te + 1, "memory allows no fewer"
    assert te <= 1.6 * 400 * held / pool, "prefill and decode take the rest"
    assert te < full / 2.5


def test_every_promised_key_is_there(headline):
    for row in headline["plans"]:
        assert not [key for key in KEYS if key not in row]
        assert row["gpus_bound"] <= row["gpus_low"] <= row["gpus"] <= (row["gpus_high"] or 512)
        assert row["cost_per_month"] == pytest.approx(row["gpus"] * 6.31 * 730)
    assert (headline["slo"], headline["workload"]) == ({"ttft_p95": 2.0, "tpot_p95": 0.05}, "long-agents")


def test_savings_are_paired_and_full_saves_nothing(headline):
    full, te = headline["plans"]
    assert (full["gpus_saved"], full["gpus_saved_low"], full["gpus_saved_high"]) == (0, 0.0, 0.0)
    assert te["gpus_saved"] == full["gpus"] - te["gpus"]
    assert te["gpus_saved_low"] <= te["gpus_saved"] <= te["gpus_saved_high"]


def test_not_measured_is_null(headline):
    row = headline["plans"][1]
    assert row["quality_model"] is row["quality_n"] is row["extra_turns"] is row["answer_accuracy"] is None
    assert row["extra_turns_source"].startswith("assumed none")


EASY = parse_slo(["ttft_p95=4", "tpot_p95=0.1"])


def small(policies=("full", TE), slo=EASY, **options):
    load = closed(24, tool=6000, out=150, turns=12)
    fixed = {"replications": 3, "turns": 400, "tp": 1} | options
    return plan(load, find_geometry("llama-3.1-8b"), find_gpu("h100"), policies, slo, **fixed)


def test_sensitivity_is_ordered_and_break_even_is_beyond_no_growth():
    found = small()
    for row in found["plans"]:
        assert row["gpus_if_faster"] <= row["gpus"] <= row["gpus_if_slower"]
    full, te = found["plans"]
    assert full["turns_break_even"] is None
    assert te["gpus"] < full["gpus"]
    assert 0 < te["turns_break_even"] <= 4


def test_extra_turns_from_a_closed_loop_run_cost_gpus():
    calm = small(sensitivity=False)["plans"][1]
    profile = PolicyProfile(TE, model="qwen3.5-27b", n=50, extra_turns=2.0, extra_turns_source="closed loop")
    busy = small(sensitivity=False, profiles={TE: profile})["plans"][1]
    assert busy["gpus"] > calm["gpus"]
    assert (busy["extra_turns"], busy["quality_n"]) == (2.0, 50)


def test_no_fleet_is_an_answer_with_its_constraint():
    found = small(slo=parse_slo(["ttft_p95=2", "tpot_p95=0.001"]), max_gpus=30)
    for row in found["plans"]:
        assert not row["feasible"]
        assert row["gpus"] is row["gpus_saved"] is row["gpus_if_slower"] is row["cost_per_month"] is None
        assert row["binding_constraint"].startswith("weight streaming: p95 TPOT at ")
        assert "one decode step takes 6 ms even alone" in row["binding_constraint"]
    assert sentence(found, TE).startswith(f"No fleet of up to 30 × H100 serves test with {TE}")


def test_one_replica_fewer_is_not_called_good_enough(headline):
    for row in headline["plans"]:
        if row["one_fewer"] is not None:
            assert row["one_fewer"]["verdict"] in ("fails", "undecided")
            assert row["one_fewer"]["gpus"] == row["gpus"] - row["tp"]


def test_a_policy_that_does_not_exist_is_refused_before_anything_runs():
    with pytest.raises(UserError, match="unknown policy 'tee'"):
        small(policies=["tee"])


def test_tensor_parallel_size_is_the_smallest_that_holds_the_longest_session(long):
    assert deploy(long, QWEN, H200, None).tp == 1
    assert deploy(long, find_geometry("llama-3.1-70b"), H200, None).tp == 2
    assert deploy(long, QWEN, H200, 4).tp == 4
    with pytest.raises(UserError, match="does not fit on 1 × l40s"):
        deploy(long, QWEN, find_gpu("l40s"), 1)
