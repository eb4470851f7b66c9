import pytest
from worlds import SLOS, TE, closed, deployment, sessions

from kvmill.errors import UserError
from kvmill.replay.profile import PolicyProfile
from kvmill.simulator.given import Given
from kvmill.simulator.max_load import STEP, load_of, max_load, max_load_answer, max_load_text, step_of
from kvmill.simulator.slo import parse_slo
from kvmill.simulator.workload import Workload

PLACE = deployment(60_000)
KNOWN = {text: PolicyProfile(text) for text in ("full", TE)}
CALM = {"replications": 3, "turns": 250}


def world(load, **fleet):
    return Given(load, PLACE.geometry, PLACE.gpu, 1, {"activation_gib": PLACE.activation.gib}, fleet)


@pytest.fixture(scope="module")
def carried():
    return max_load(world(closed(40, tool=1500, out=150)), KNOWN, SLOS, 4, **CALM)


def test_more_steps_are_less_load():
    assert load_of(0) == 1.0
    assert load_of(1) == pytest.approx(1 / STEP)
    for load in (0.03, 0.5, 1.0, 1.3, 40.0):
        assert load_of(step_of(load)) <= load * (1 + 1e-9) < load_of(step_of(load) - 1)


def test_the_largest_load_lies_in_its_interval_and_the_next_one_breaks_a_promise(carried):
    for row in carried["plans"]:
        assert row["max_load_low"] is None or row["max_load_low"] <= row["max_load"] <= row["max_load_high"]
        loads = [at["load"] for at in row["loads"]]
        assert loads == sorted(loads), "from the least to the most"
        verdicts = {at["load"]: at["verdict"] for at in row["loads"]}
        assert verdicts[row["max_load"]] != "fails"
        if max(loads) > row["max_load_high"]:
            assert verdicts[min(load for load in loads if load > row["max_load_high"])] == "fails"


def test_compaction_carries_more_agents_on_the_same_gpus(carried):
    full, te = carried["plans"]
    assert te["max_load"] > 1.2 * full["max_load"]
    assert te["load_gained"] == pytest.approx(te["max_load"] / full["max_load"])
    assert carried["load_unit"] == "agents"
    assert "× as many" in max_load_answer(carried)
    assert max_load_text(carried).startswith(
        "4 × H100 carry, in agents of test at p95 TTFT ≤ 2 s and p95 TPOT ≤ 50 ms:"
    )


def test_an_open_workload_is_asked_in_sessions_per_second():
    load = Workload("open", sessions(40, turns=4, tool=800, out=100, wait=1.0), rate=1.0)
    found = max_load(world(load), {"full": KNOWN["full"]}, SLOS, 2, **CALM)
    assert found["load_unit"] == "sessions per second"
    assert found["plans"][0]["max_load"] > 0


def test_a_promise_that_no_load_keeps_is_an_answer_with_its_reason():
    found = max_load(world(closed(10)), {"full": KNOWN["full"]}, parse_slo(["tpot_p95=0.001"]), 2, **CALM)
    (row,) = found["plans"]
    assert (row["feasible"], row["max_load"], row["load_gained"]) == (False, None, None)
    assert "even alone on a replica" in found["answer"]


def test_gpus_must_fill_whole_replicas():
    two = Given(closed(4), PLACE.geometry, PLACE.gpu, 2)
    with pytest.raises(UserError, match="multiple of the tensor-parallel size 2"):
        max_load(two, KNOWN, SLOS, 3, **CALM)
