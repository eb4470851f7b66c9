"""How the demo puts replay and plans together: choice of trajectories, JSON, text, exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import fabricate
import pytest

from kvmill.console import plain
from kvmill.demo import MAIN, PLANNED, QUICK, WHOLE, assemble, choose, demo_text, finish
from kvmill.errors import Incomplete, NoAnswer
from kvmill.replay.policies.registry import DEMO_POLICIES, HEADLINE_POLICY, QUICK_POLICIES
from kvmill.replay.recommend import recommend
from kvmill.replay.results import summary
from kvmill.traces.samples import load
from kvmill.traces.store import Store

RESULT_KEYS = {"policy", "n", "n_probes", "answer_accuracy", "answer_accuracy_low", "answer_accuracy_high", "answer_ll"}
RESULT_KEYS |= {"delta_nll", "kl", "top1_agreement", "kv_tokens_peak", "kv_tokens_peak_max", "kv_bytes_peak", "status"}
RESULT_KEYS |= {"ttft_s", "tpot_s", "prefill_s_per_turn", "compaction_s_per_turn", "decode_s_per_token"}


@pytest.fixture
def found(tmp_path: Path):
    store = Store.open(tmp_path / "store")
    run = fabricate.replay(store)
    found = assemble(summary(store, run), fabricate.planned(), fabricate.planned("samples"), quick=False)
    return found | {"trajectories": ["t-0"], "recommendation": recommend(store, run)}


def test_the_same_number_of_each_family_is_replayed():
    for size in (WHOLE, QUICK):
        chosen = choose(load(), size.per_family)
        families = [trajectory.family for trajectory in chosen]
        assert {families.count(family) for family in ("registry", "operations")} == {size.per_family}
        assert len({trajectory.id for trajectory in chosen}) == len(chosen)
    timed = choose(choose(load(), 6), 1)
    assert sorted(trajectory.family for trajectory in timed) == ["operations", "registry"]


def test_every_planned_policy_is_replayed_also_in_the_quick_demo():
    assert set(PLANNED) <= set(DEMO_POLICIES)
    assert set(PLANNED) <= set(QUICK_POLICIES)
    assert HEADLINE_POLICY in PLANNED
    assert WHOLE.replications >= 10 > QUICK.replications


def test_json_has_the_keys_of_results_and_plan_and_the_answer(found):
    out = json.loads(json.dumps(plain(found), allow_nan=False))
    assert {"run", "model", "device", "policies", "slo", "workload", "plans", "answer"} <= set(out)
    assert set(out["policies"][0]) >= RESULT_KEYS
    assert out["model"] == "smollm2-135m", "the model that was measured"
    assert out["planned_model"] == "qwen3.5-27b"
    assert out["run"].startswith("replay-")
    assert out["plan_run"] == "plan-1"
    assert out["workload"] == MAIN
    assert out["beside"]["workload"] == "samples"


def test_text_leads_with_the_answer_then_one_line_per_policy_with_its_gpus(found, tmp_path: Path):
    lines = demo_text(found, tmp_path / "store").splitlines()
    assert lines[0] == found["answer"]
    head = next(line for line in lines if line.startswith("policy"))
    for column in ("keep", "answer accuracy", "answer LL", "agreement", "peak KV", "turn s", "GPUs", "GPUs saved"):
        assert column in head
    delayed = next(line for line in lines if line.startswith(fabricate.DELAYED))
    assert "50.0%" in delayed
    assert delayed.rstrip().endswith("14  13 (12–14)")
    text = "\n".join(lines)
    assert "With te samples needs 14." in text, "the short workload stands beside it"
    assert f"(at a loss of at most 5%): {found['recommendation']['reason']}" in text
    assert "No policy is recommended yet (at" in text
    decided = found | {"recommendation": found["recommendation"] | {"policy": fabricate.DELAYED, "reason": "small"}}
    assert f"Recommended: {fabricate.DELAYED} (at a loss of at most 5%): small" in demo_text(decided, tmp_path)
    assert f"kvmill dashboard --store {tmp_path / 'store'}" in text
    assert f"kvmill inspect {found['run']} t-0" in text


def test_the_default_store_is_not_spelled_out(found, own_store: Path):
    assert f"--store {own_store}" not in demo_text(found, own_store)


def test_a_quick_demo_says_so(found, tmp_path: Path):
    assert "a first look only" not in demo_text(found, tmp_path)
    assert "a first look only" in demo_text(found | {"quick": True}, tmp_path)


def test_exit_codes_follow_failed_cells_and_feasibility(found):
    finish(found)
    broken = [row | {"status": {"ok": 1, "failed": 2}} for row in found["policies"]]
    with pytest.raises(Incomplete, match="6 cells"):
        finish(found | {"policies": broken})
    none = [row | {"feasible": False} for row in found["plans"]]
    with pytest.raises(NoAnswer) as caught:
        finish(found | {"plans": none})
    assert caught.value.constraint == "KV blocks"
    finish(found | {"plans": [*none[:2], found["plans"][2]]})


@pytest.mark.slow
def test_the_quick_demo_end_to_end(tmp_path: Path):
    """The real thing, with the real model: three minutes on two cores."""
    command = [sys.executable, "-m", "kvmill", "demo", "--quick", "--json", "--store", str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout, parse_constant=pytest.fail)
    by_policy = {row["policy"]: row for row in out["policies"]}
    assert set(by_policy) == set(QUICK_POLICIES)
    assert all(row["status"]["failed"] == 0 and row["turn_s"] is not None for row in out["policies"])
    assert by_policy[HEADLINE_POLICY]["kv_tokens_peak"] < by_policy["full"]["kv_tokens_peak"]
    assert [row["policy"] for row in out["plans"]] == list(PLANNED)
    assert f"`{HEADLINE_POLICY}`" in out["answer"]
    assert Store.open(tmp_path / "store").check() == []
