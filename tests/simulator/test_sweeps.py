import pytest
from worlds import TE

from kvmill.errors import UserError
from kvmill.simulator.sweeps import MOST, parse_grid, sweep_text, swept

PLANNED = ("full", TE)


def test_an_option_is_set_on_the_policies_that_have_it():
    grid = parse_grid(["keep=0.1,0.4"], PLANNED)
    assert grid.policies == (
        "full",
        "te(proxy=assistant,delay=1,keep=0.1)",
        "te(proxy=assistant,delay=1,keep=0.4)",
    )
    assert grid.machines == ({},)


def test_machines_multiply():
    grid = parse_grid(["gpu=h100,h200", "tp=1,auto", "kv-dtype=fp8"], PLANNED)
    assert [(m["gpu"], m["tp"], m["kv_dtype"]) for m in grid.machines] == [
        ("h100", 1, "fp8"), ("h100", None, "fp8"), ("h200", 1, "fp8"), ("h200", None, "fp8"),
    ]  # fmt: skip
    assert grid.policies == PLANNED


def test_replays_own_form_stands_for_policies():
    grid = parse_grid(["te(proxy=boundary,keep=0.1|0.2)"], ["full"])
    assert grid.policies == ("full", "te(proxy=boundary,keep=0.1)", "te(proxy=boundary,keep=0.2)")


@pytest.mark.parametrize(
    ("sweeps", "policies", "reason"),
    [
        (["colour=red"], PLANNED, r"unknown axis 'colour' in --sweep\..*agents, .*gpu.*keep"),
        (["keep="], PLANNED, "give values"),
        (["keep"], PLANNED, "give values"),
        (["keep=0.1", "keep=0.2"], PLANNED, "given twice"),
        (["keep=0.1,2"], PLANNED, "between 0 and 1"),
        (["keep=0.1"], ["full"], "none of full has this option"),
        (["tp=two"], PLANNED, "--tp 'two'"),
        (["agents=many"], PLANNED, "no whole number"),
        (["utilisation=high"], PLANNED, "no number"),
        (["agents=" + ",".join(map(str, range(1, 40)))], PLANNED, f"at most {MOST}"),
        (["te(keep=0.2)"], PLANNED, "values to choose from"),
    ],
)
def test_what_cannot_be_swept_is_said(sweeps, policies, reason):
    with pytest.raises(UserError, match=reason):
        parse_grid(sweeps, policies)


COSTS = {("h100", "full"): 9, ("h100", TE): 4, ("h200", "full"): 6, ("h200", TE): 3}


def planned(machine):
    """A plan made up: the cost of each policy on each GPU; nothing was measured of `te` on an H100."""
    gpu = machine.get("gpu", "h100")
    if gpu == "l4":
        raise UserError("qwen does not fit on 8 × l4")
    rows = [
        {
            "policy": policy, "feasible": True, "infeasible_because": None, "gpus": COSTS[gpu, policy],
            "gpus_low": 1, "gpus_high": 9, "gpus_saved": 0, "gpus_saved_low": 0, "gpus_saved_high": 0,
            "cost_per_month": 100.0 * COSTS[gpu, policy], "quality_model": None, "answer_accuracy": None,
            "difference": -0.1 if (gpu, policy) == ("h200", TE) else None, "difference_low": None,
            "difference_high": None, "binding_constraint": "x",
        }
        for policy in PLANNED
    ]  # fmt: skip
    return {"gpu": gpu, "model": "qwen", "tp": 1, "plans": rows, "answer": "said"}


BASE = {"gpu": "h100", "model": "qwen", "tp": None}


def test_the_plan_of_the_cheapest_machine_comes_with_every_setting_and_the_front():
    found = swept(parse_grid(["gpu=h100,l4,h200"], PLANNED), BASE, planned)
    assert (found["gpu"], found["answer"]) == ("h200", "said")
    assert [(row["gpu"], row["policy"], row["feasible"]) for row in found["sweep"]] == [
        ("h100", "full", True), ("h100", TE, True), ("l4", "full", False), ("l4", TE, False), ("h200", "full", True),
        ("h200", TE, True),
    ]  # fmt: skip
    assert found["sweep"][2]["infeasible_because"] == "qwen does not fit on 8 × l4"
    assert [(row["gpu"], row["policy"], row["accuracy_loss"]) for row in found["pareto"]] == [
        ("h200", TE, 0.1), ("h200", "full", 0.0),
    ]  # fmt: skip
    assert found["pareto_note"] == "1 settings are on no front: their accuracy was not measured"
    assert found["sweep_answer"].startswith(f"Cheapest of 6 settings: `{TE}` on 3 × H200 (TP 1, 300 USD a month)")


def test_no_machine_at_all_is_an_error_with_the_first_reason():
    with pytest.raises(UserError, match="no combination can be planned; the first one: qwen does not fit"):
        swept(parse_grid(["gpu=l4"], PLANNED), BASE, planned)


def test_a_swept_setting_is_a_column(monkeypatch):
    monkeypatch.setattr("kvmill.simulator.texts.plan_text", lambda found: "the plan")
    found = swept(parse_grid(["gpu=h100,h200", "retention=lru,offload"], PLANNED), BASE, planned)
    head = sweep_text(found).splitlines()[2]
    assert "retention" in head
    assert "on the front" in head
    assert {row["retention"] for row in found["pareto"]} == {"lru", "offload"}


def test_a_value_given_twice_is_planned_once():
    assert len(parse_grid(["tp=1,1"], ["full"]).machines) == 1
