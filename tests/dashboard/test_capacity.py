"""Questions of capacity: to the command and back, closed forms, words and tables of an answer."""

from __future__ import annotations

import shlex
from pathlib import Path

import fabricate
import pytest

from kvmill.dashboard import capacity_answer as said
from kvmill.dashboard import queries_capacity
from kvmill.dashboard.capacity_bounds import bound, by_load, frame, judged
from kvmill.dashboard.capacity_setting import LOADS, Ask, Setting, command, placed, promises
from kvmill.dashboard.parts_capacity import parted
from kvmill.errors import UserError
from kvmill.simulator.answers import plan_named, simulate
from kvmill.simulator.sweeps import parse_grid
from kvmill.traces.store import Store

SMALL = Setting.of("samples", "qwen3.5-27b", "h200", ["ttft_p95=2", "tpot_p95=0.05"], {"agents": 20})
SAME = {"slo": ["ttft_p95=2", "tpot_p95=0.05"], "agents": 20}


def test_defaults_are_left_out_and_promises_are_written_in_one_way():
    one = Setting.of("samples", "m", "g", ["ttft_p95=2.0"], {"dtype": "bf16", "agents": None, "kv_dtype": "fp8"})
    assert one.slo == ("ttft_p95=2",)
    assert one.flags == (("kv_dtype", "fp8"),)


def test_a_command_line_means_its_question():
    text = command("plan", Ask(SMALL, "te(keep=0.2)", "te()", 0.2).plan(3))
    assert shlex.split(text)[:2] == ["kvmill", "plan"]
    assert {"--agents=20", "--policy=te(keep=0.2)", "--replications=3"} < set(shlex.split(text))


def test_promises_come_from_what_is_typed():
    assert promises(2.0, 50.0, "e2e_p95=60") == ["ttft_p95=2", "tpot_p95=0.05", "e2e_p95=60"]
    with pytest.raises(UserError, match="one promise at least"):
        promises(None, 0.0, "")


def test_a_plan_is_found_again_by_its_question_and_by_no_other(own_store: Path):
    store = Store.open(own_store)
    plan_named("samples", "qwen3.5-27b", "h200", store=store, replications=2, turns=300, sensitivity=False, **SAME)
    known = queries_capacity.plans(store)
    assert queries_capacity.alike(store, known, frame(SMALL, store)) == known
    for change in ({"agents": 21}, {"agents": 20, "price": 3.0}, {"agents": 20, "kv_dtype": "fp8"}):
        other = Setting.of("samples", "qwen3.5-27b", "h200", SMALL.slo, change)
        assert queries_capacity.alike(store, known, frame(other, store)) == []
    again = queries_capacity.setting_of(known[0])
    assert dict(again.flags) == {"agents": 20, "tp": "1"}
    assert queries_capacity.alike(store, known, frame(again, store)) == known


def test_a_fleet_that_was_watched_is_found_again(own_store: Path):
    store = Store.open(own_store)
    simulate("samples", "qwen3.5-27b", "h200", 1, keep=0.2, series=True, turns=300, store=store, **SAME)
    rows = queries_capacity.over_time(store, frame(SMALL, store), {fabricate.DELAYED: 1, "full": 1})
    assert {row["policy"] for row in rows} == {fabricate.DELAYED}
    assert [row["interval"] for row in rows] == sorted(row["interval"] for row in rows)
    assert all(0 <= row["kv_used_share"] <= 1 for row in rows)
    assert queries_capacity.over_time(store, frame(SMALL, store), {fabricate.DELAYED: 2}) == []


def test_the_plan_with_most_replications_speaks_for_a_policy(own_store: Path):
    store = Store.open(own_store)
    fabricate.plan(store)
    few = store.begin("plan", {"replications": 2})
    few.add({"plans": [{"policy": "full", "gpus": 1, "workload": "w", "model": "m", "gpu": "h200"}]}, key="a")
    few.finish()
    found = queries_capacity.answers(store, queries_capacity.plans(store))
    assert found["full"]["gpus"] == 27
    assert next(iter(found)) == "full"


def test_no_answer_undercuts_its_bound_and_keeping_less_never_raises_it(own_store: Path):
    store = Store.open(own_store)
    one, many = (Setting.of("samples", "qwen3.5-27b", "h200", SMALL.slo, {"agents": n}) for n in (20, 4000))
    keeps = [bound(many, f"te(proxy=assistant,delay=1,keep={keep})", store) for keep in (0.2, 0.5, 0.9)]
    assert [b.demand for b in keeps] == sorted(b.demand for b in keeps)
    assert [b.holding() for b in keeps] == sorted(b.holding() for b in keeps)
    found = plan_named("samples", "qwen3.5-27b", "h200", store=store, replications=2, turns=300, sensitivity=False,
                       save=False, **SAME)  # fmt: skip
    assert bound(one, "full", store).least() <= found["plans"][0]["gpus"]
    rows = by_load([bound(many, "full", store)])
    assert [row["least"] for row in rows] == sorted(row["least"] for row in rows)


def test_tolerance_buys_gpus_and_the_interval_is_stricter_than_the_estimate():
    rows = [
        {"policy": "full", "gpus": 20},
        {"policy": "a", "gpus": 10, "difference": -0.05, "difference_low": -0.2},
        {"policy": "b", "gpus": 5, "difference": None, "difference_low": None},
    ]
    found = {(row["tolerance"], row["reading"]): row["gpus"] for row in said.by_tolerance(rows)}
    assert found[0.02, "estimate"] == 20
    assert found[0.05, "estimate"] == 10
    assert found[0.15, "95 % interval"] == 20
    assert found[0.2, "95 % interval"] == 10
    assert found[1.0, "estimate"] == 10, "what was not measured is never chosen"


def test_why_not_fewer_names_the_promise_that_breaks():
    below = {"gpus": 3, "verdict": "fails", "ttft_p95_s": [3.0, 2.5, 3.6], "tpot_p95_s": [0.01, 0.01, 0.01]}
    row = {"feasible": True, "gpus": 4, "one_fewer": below | {"binding_constraint": "KV blocks", "saturated": True}}
    text = said.why_not_fewer(row, {"ttft_p95": 2.0, "tpot_p95": 0.05})
    assert text == "3 GPUs break a promise: ttft_p95 is 3 (2.5–3.6) s where 2 s is promised; the queue grows. " \
        "Binds: KV blocks."  # fmt: skip


def test_why_not_fewer_speaks_of_one_replica_less_than_the_plan_shown_and_of_nothing_else():
    sizes = [{"gpus": n, "verdict": verdict, "ttft_p95_s": [2.1, 1.0, 4.0]} for n, verdict in ((6, "undecided"),)]
    row = {"feasible": True, "gpus": 8, "tp": 2, "sizes": sizes, "binding_constraint": "KV blocks"}
    assert said.why_not_fewer(row, {"ttft_p95": 2.0}).startswith("6 GPUs may break a promise: ttft_p95 is 2.1")
    bounded = said.why_not_fewer(row | {"sizes": [], "gpus_bound": 8}, {})
    assert bounded == "6 GPUs were not simulated: the load takes 8 at the very least (estimated bound)."
    assert "plan again" in said.why_not_fewer(row | {"sizes": []}, {})
    assert said.why_not_fewer(row | {"gpus": 2}, {}) == "One replica is the least there is."


def test_the_same_question_at_other_loads_is_one_sweep_of_the_command():
    line = command("plan", Ask(SMALL, fabricate.DELAYED, "te", 0.2, "replay-1").loads())
    assert f"--sweep=scale_load={','.join(f'{load:g}' for load in LOADS)}" in shlex.split(line)
    assert "--from=replay-1" in line
    already = Setting.of("samples", "m", "g", SMALL.slo, {"scale_load": 2.0})
    assert "scale_load=1,1.5," in command("plan", Ask(already, "full", "full", None).loads())
    assert "--scale-load" not in command("plan", Ask(already, "full", "full", None).loads())


def test_the_load_can_be_swept():
    assert parse_grid(["scale_load=0.5,2"], ["full"]).machines == ({"scale_load": 0.5}, {"scale_load": 2.0})


def test_quality_is_that_of_the_replay_chosen_and_an_answer_for_other_turns_is_left_out(own_store: Path):
    store = Store.open(own_store)
    old, new = fabricate.replay(store, trajectories=4), fabricate.replay(store, trajectories=2)
    row = {"policy": fabricate.DELAYED, "gpus": 14, "quality_run": new, "extra_turns": None, "keep_measured": None}
    rows = {fabricate.DELAYED: row, fabricate.BOUNDARY: row | {"policy": fabricate.BOUNDARY, "extra_turns": 0.3}}
    assert judged(rows, SMALL, store, None) == rows
    found = judged(rows, SMALL, store, old)
    assert list(found) == [fabricate.DELAYED], "the other was simulated with turns that this replay did not measure"
    assert (found[fabricate.DELAYED]["quality_run"], found[fabricate.DELAYED]["quality_n"]) == (old, 4)
    assert found[fabricate.DELAYED]["gpus"] == 14


def test_a_policy_is_its_method_and_its_keep_ratio():
    assert parted(fabricate.DELAYED) == ("te(proxy=assistant,delay=1)", 0.2)
    assert parted("full") == ("full", None)


def test_paths_below_the_store_are_found_and_others_are_left(own_store: Path):
    (own_store / "uploads").mkdir(parents=True)
    (own_store / "uploads" / "a.toml").touch()
    store = Store.open(own_store)
    assert placed("uploads/a.toml", store) == str(own_store / "uploads" / "a.toml")
    assert placed("h200", store) == "h200"
    assert placed("/etc/a.toml", store) == "/etc/a.toml"
