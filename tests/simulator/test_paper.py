"""The paper's static batch on our own sessions, and the walk from it to continuous batching."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner
from worlds import SLOS, TE, closed, deployment, scenario, sessions

from kvmill.errors import UserError
from kvmill.replay.policies.registry import parse_policy
from kvmill.simulator import paper_walk
from kvmill.simulator.commands import register
from kvmill.simulator.cost import CostModel
from kvmill.simulator.hardware import find_gpu
from kvmill.simulator.models import find_geometry
from kvmill.simulator.paper import counted, paper_plan, paper_text
from kvmill.simulator.paper_static import Decodes, StepTable, read_step_times, static
from kvmill.simulator.paper_walk import kept_batch, means_of, rate
from kvmill.simulator.run import run_fleet
from kvmill.simulator.session import SessionSpec, compile_session
from kvmill.simulator.workload import Workload, assemble

PLACE = deployment(200_000)
COST = CostModel.of(PLACE)


def plans_of(specs, policy="full"):
    return [compile_session(spec, parse_policy(policy), PLACE, COST) for spec in specs]


def uniform(count=4, turns=6, prompt=2000, out=100, tool=500, wait=0.0):
    """Equal sessions."""
    spec = SessionSpec(assemble(prompt, [out] * turns, [tool] * (turns - 1)), (wait,) * turns)
    return (spec,) * count


def flat(batch: int, seconds: float, longest: int = 300_000) -> StepTable:
    return StepTable(batch, (0, longest), (seconds, seconds))


def test_a_span_is_the_sum_of_its_interpolated_steps():
    table = StepTable(4, (0, 100, 250), (1.0, 2.0, 8.0))
    starts, steps = np.array([0, 90, 240, 99]), np.array([5, 20, 11, 1])
    spans = [range(s, s + n) for s, n in zip(starts, steps, strict=True)]
    brute = [sum(np.interp(c, table.contexts, table.seconds) for c in span) for span in spans]
    assert table.spans_s(starts, steps) == pytest.approx(brute)
    with pytest.raises(UserError, match="end at 250 tokens, sessions reach 251"):
        table.spans_s(np.array([250]), np.array([2]))


def test_step_times_of_the_cost_model_are_its_own_at_every_doubling():
    table = StepTable.of(COST, 8, 5000)
    assert table.contexts == (0, 1024, 2048, 4096, 8192)
    for context, seconds in zip(table.contexts, table.seconds, strict=True):
        assert seconds == COST.fixed_s(8) + COST.decode_attention_s(8, 8 * context)


def test_the_largest_turn_of_any_session_sets_the_batch():
    plans = plans_of(uniform())
    rows = [plan.rows(j) for plan in plans for j in range(plan.turns)]
    assert Decodes.of(plans).peak == max(rows) == 2000 + 6 * 100 + 5 * 500 - 1
    found = static(Decodes.of(plans), 200_000, COST)
    assert (found.admissible, found.batch) == (200_000 // max(rows), 32)
    longer = static(Decodes.of(plans + plans_of(uniform(1, turns=30))), 200_000, COST)
    assert longer.batch == 8, "one longer session among five halves the batch of all, twice"


def test_a_constant_step_time_gives_the_closed_form():
    decodes = Decodes.of(plans_of(uniform(turns=6, out=100)))
    found = static(decodes, 200_000, COST, {32: flat(32, 0.02)})
    assert found.session_s == pytest.approx(6 * 100 * 0.02)
    assert found.per_hour == pytest.approx(3600 * 32 / 12)


def test_the_papers_ratio_follows_from_batches_and_turns_where_steps_cost_the_same():
    """18 turns in a batch of 8 against 28 turns in one of 32: 4 · 18/28, the part of 4.2 that the inputs give."""
    none, policy = (Decodes.of(plans_of(uniform(turns=turns, out=50, tool=10))) for turns in (18, 28))
    slow = static(none, 8 * (none.peak + 1), COST, {8: flat(8, 0.02)})
    fast = static(policy, 32 * (policy.peak + 1), COST, {32: flat(32, 0.02)})
    assert fast.per_hour / slow.per_hour == pytest.approx(4 * 18 / 28)


def test_only_measured_step_times_can_say_that_a_smaller_batch_is_faster():
    decodes = Decodes.of(plans_of(uniform()))
    assert static(decodes, 200_000, COST).batch == 32
    measured = {16: flat(16, 0.02), 32: flat(32, 0.05), 48: flat(48, 0.001)}
    assert static(decodes, 200_000, COST, measured).batch == 16
    assert static(decodes, 200_000, COST, most=16).batch == 16
    with pytest.raises(UserError, match=r"no step times for a power of two up to batch 32 \(there are: 48\)"):
        static(decodes, 200_000, COST, {48: flat(48, 0.01)})


def test_step_times_are_read_or_refused_by_line(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("batch,context_tokens,step_s\n8,4096,0.02\n8,1024,0.01\n16,1024,0.015\n")
    found = read_step_times(path)
    assert found == {8: StepTable(8, (1024, 4096), (0.01, 0.02)), 16: StepTable(16, (1024,), (0.015,))}
    for text, said in (
        ("batch,context,step\n", "the first line must be batch,context_tokens,step_s"),
        ("batch,context_tokens,step_s\n8,1024,0\n", "line 2: whole batch"),
        ("batch,context_tokens,step_s\n8,1024,0.1\n8,x,0.1\n", "line 3: whole batch"),
        ("batch,context_tokens,step_s\n8,1024,0.1\n8,1024,0.2\n", "line 3: batch 8, context 1024 is given twice"),
        ("batch,context_tokens,step_s\n", "no step times"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=said):
            read_step_times(path)
    with pytest.raises(UserError, match="no CSV file"):
        read_step_times(tmp_path / "missing.csv")


def test_keeping_all_changes_no_line():
    load = closed(20, turns=6, tool=800)
    full, same = (counted(scenario(load, policy, PLACE), 200_000) for policy in ("full", "sink_window(keep=1)"))
    for one, two in zip(full["walk"], same["walk"], strict=True):
        assert (one["key"], one["batch"]) == (two["key"], two["batch"])
        assert one["sessions_per_hour"] == pytest.approx(two["sessions_per_hour"])


def test_each_line_counts_one_thing_more():
    load = closed(20, turns=8, tool=3000, wait=5.0)
    rates = [line["sessions_per_hour"] for line in counted(scenario(load, TE, PLACE), 200_000)["walk"]]
    paper, unrounded, mean, shared, prefill, compaction, waits = rates
    assert paper <= unrounded <= mean < shared, "more room"
    assert shared > prefill > compaction > waits, "less time, less room"
    alone = closed(20, turns=8, tool=3000, wait=0.0, shared=0)
    quiet = {line["key"]: line for line in counted(scenario(alone, "full", PLACE), 200_000)["walk"]}
    assert quiet["mean"]["batch"] == quiet["shared"]["batch"], "nothing is shared"
    assert quiet["prefill"]["sessions_per_hour"] == quiet["compaction"]["sessions_per_hour"], "full compacts nothing"
    waiting = quiet["waits"]["sessions_per_hour"]
    assert waiting == pytest.approx(quiet["compaction"]["sessions_per_hour"], rel=0.01)


def test_a_larger_batch_never_serves_less():
    decodes = Decodes.of(plans_of(uniform()))
    means = means_of(plans_of(uniform()), decodes, COST, 0, 16)
    rates = [rate(means, COST, batch, 0.0) for batch in np.linspace(0.5, 40, 200)]
    assert all(one < two for one, two in itertools.pairwise(rates))
    assert rate(means, COST, 16, 0.0) == pytest.approx(3600 * 16 / (means.tokens * step_of(16, means.decoding)))


def step_of(batch: int, rows: float) -> float:
    return COST.fixed_s(batch) + COST.decode_attention_s(batch, batch * rows)


def test_kept_caches_fill_the_pool_by_littles_law():
    plans = plans_of(uniform(wait=10.0))
    means = means_of(plans, Decodes.of(plans), COST, 0, 16)
    batch = kept_batch(means, COST, 256, 200_000)
    absent = rate(means, COST, batch, means.prefill_s) / 3600 * means.wait_s
    assert batch * means.decoding + absent * means.waiting == pytest.approx(200_000, rel=1e-3)
    assert (means.wait_s, means.tokens) == (50.0, 600.0)


def test_arithmetic_on_means_is_what_is_simulated_while_no_cache_is_lost():
    """Equal sessions without waits, twelve at once in a pool that holds fourteen."""
    load = Workload("equal", uniform(8, turns=8, tool=400, out=200), agents=12)
    asked = scenario(load, "full", deployment(60_000), turns=2000)
    plans = [asked.plan_of(i) for i in asked.positions.usable]
    means = means_of(plans, Decodes.of(plans), asked.cost, 0, 12)
    run = run_fleet(asked, 1, 0)
    assert run.miss_share == 0
    found = run.throughput_requests_per_s / 8 * 3600
    assert found == pytest.approx(rate(means, asked.cost, 12, means.prefill_s), rel=0.02)


def test_what_one_replica_carries_is_found_between_the_numbers_of_agents_tried(monkeypatch):
    monkeypatch.setattr(paper_walk, "TURNS", 800)
    monkeypatch.setattr(paper_walk, "FLEET", 4)
    load = Workload("equal", uniform(8, turns=8, tool=400, out=200), agents=20)
    row = counted(scenario(load, "full", deployment(60_000)), 60_000, tick=lambda _: None)
    lines = {line["key"]: line for line in row["walk"]}
    assert lines["batching"]["label"] == "simulated"
    assert 0.75 < lines["batching"]["sessions_per_hour"] / lines["waits"]["sessions_per_hour"] < 1.05
    assert lines["promises"]["sessions_per_hour"] <= lines["batching"]["sessions_per_hour"]
    assert row["keeps_promises"]


@pytest.mark.parametrize("arrivals", [{}, {"scale_load": 3.0}, {"rate": 0.5, "burstiness": 2.0}], ids=str)
def test_request_logs_of_single_turns_save_nothing_and_that_is_said(monkeypatch, arrivals):
    monkeypatch.setattr(paper_walk, "TURNS", 200)
    monkeypatch.setattr(paper_walk, "PRESENT", 100)
    specs = tuple(SessionSpec(assemble(1000, [50], []), (0.0,), start_s=2.0 * i) for i in range(30))
    load = Workload("log", specs, **arrivals)
    found = paper_plan(load, find_geometry("llama-3.1-8b"), find_gpu("h100"), [TE], SLOS)
    row = found["plans"][1]
    assert (row["ratio"], row["gpus_saved"]) == (1.0, 0)
    assert row["explained"] == ["No line differs: on these sessions the policy holds as much as full."]
    assert row["sessions_per_hour_wanted"] == pytest.approx(load.sessions_per_s * 3600)


def test_the_command_answers_by_the_papers_method(monkeypatch, tmp_path):
    for name, value in (("TURNS", 400), ("SEEDS", 1), ("MOST_TRIED", 2)):
        monkeypatch.setattr(paper_walk, name, value)
    app = typer.Typer()
    register(app)
    args = ["plan", "--workload", "samples", "--model", "llama-3.1-8b", "--gpu", "l40s", "--method", "paper"]
    done = CliRunner().invoke(app, [*args, "--slo", "ttft_p95=2", "--json", "--store", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["method"] == "paper"
    assert [row["policy"] for row in found["plans"]] == ["full", TE]
    assert [line["key"] for line in found["plans"][1]["walk"]][-2:] == ["batching", "promises"]


PLAN_KEYS = {
    "policy", "feasible", "gpus", "gpus_low", "gpus_high", "gpus_saved", "gpus_saved_low", "gpus_saved_high",
    "gpus_if_slower", "gpus_if_faster", "binding_constraint", "cost_per_month", "quality_model", "quality_n",
    "extra_turns", "extra_turns_source", "turns_break_even",
}  # fmt: skip


def asked(load, **fields):
    return paper_plan(load, find_geometry("llama-3.1-8b"), find_gpu("h100"), [TE], SLOS, simulated=False, **fields)


def test_a_plan_by_the_papers_method_has_the_keys_of_a_plan_and_says_what_it_leaves_out():
    load = closed(200, turns=20, tool=2000, wait=4.0)
    found = asked(load)
    assert found["method"] == "paper"
    full, te = found["plans"]
    assert not PLAN_KEYS - (full.keys() & te.keys())
    assert te["ratio"] == pytest.approx(te["sessions_per_hour"] / full["sessions_per_hour"])
    assert te["gpus_saved"] == full["gpus"] - te["gpus"] > 0
    assert te["gpus"] == int(np.ceil(te["sessions_per_hour_wanted"] / te["sessions_per_hour"]))
    assert all(line["ratio"] == 1 for line in full["walk"])
    assert f"{te['walk'][-1]['ratio']:.2g} ×" in te["explained"][-1]
    assert "not charged" in found["assumptions"]["method"]
    text = paper_text(found)
    assert text.startswith("By the paper's method one replica (1 × H100) serves")
    assert "room for the mean KV, not for the largest" in text


def test_a_session_that_no_pool_holds_is_said_not_rounded_to_one():
    found = asked(closed(20, turns=8, tool=3000), pool_tokens=4000)
    assert [row["feasible"] for row in found["plans"]] == [False, False]
    assert found["plans"][0]["gpus"] is None
    assert found["answer"].startswith("By the paper's method no static batch of")
    assert paper_text(found)


def test_a_policy_may_fit_where_full_does_not():
    load = closed(20, turns=20, tool=2000)
    peaks = [row["peak_kv_tokens"] for row in asked(load)["plans"]]
    found = asked(load, pool_tokens=sum(peaks) // 2)
    full, te = found["plans"]
    assert (full["feasible"], te["feasible"]) == (False, True)
    assert (te["ratio"], te["gpus_saved"], te["explained"]) == (None, None, [])
    assert {line["ratio"] for line in te["walk"]} == {None}
    assert "in a static batch of 1." in paper_text(found)


def test_an_engines_most_sequences_bind_only_beyond_the_papers_lines():
    load = Workload("short", uniform(8, turns=2, prompt=100, out=50, tool=20), agents=20)
    lines = {line["key"]: line for line in counted(scenario(load, "full", PLACE), 200_000)["walk"]}
    assert lines["paper"]["batch"] == 512
    assert lines["unrounded"]["batch"] > 512
    assert lines["mean"]["batch"] == 256
    assert lines["mean"]["what"].endswith("256 sequences at most")


def test_more_turns_are_decoded_by_the_paper_and_prefilled_only_later():
    load = Workload("turns", sessions(10, turns=6), agents=10)
    plain, more = (counted(scenario(load, TE, PLACE, extra_turns=extra), 200_000) for extra in (0.0, 0.5))
    assert more["turns"] == pytest.approx(1.5 * plain["turns"], rel=0.1)
    assert more["sessions_per_hour"] < plain["sessions_per_hour"]
    assert more["prefill_s_per_session"] > plain["prefill_s_per_session"]
