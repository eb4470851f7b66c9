import json

import pytest
from worlds import SLOS, closed, deployment, scenario

from kvmill.console import plain
from kvmill.simulator.failure import Failure
from kvmill.simulator.plan import plan
from kvmill.simulator.run import run_fleet
from kvmill.simulator.sentence import sentence
from kvmill.simulator.series import Series, turn_table
from kvmill.simulator.stored import save_simulation
from kvmill.simulator.texts import plan_text
from kvmill.traces.store import Store


def test_a_simulation_is_stored_with_its_course_and_its_turns(tmp_path):
    world, store, kept = scenario(closed(10), turns=200), Store.open(tmp_path), []
    watch = lambda fleet, warm, end: kept.append((fleet, Series(fleet, warm, end), warm))  # noqa: E731
    result = run_fleet(world, 2, 7, watch=watch)
    fleet, series, warm = kept[0]
    found = {"workload": "test", "model": "llama-3.1-8b", "gpu": "h100", "policy": "full", "slo": {}}
    course = [{"seed": 7} | row for row in series.rows()]
    run = save_simulation(store, found, [(world, result)], 0, course, [(7, turn_table(fleet, warm))])
    count, seconds = (
        store.query("SELECT count(*), max(end_s) FROM intervals WHERE run_id = ?", [run]).to_pylist()[0].values()
    )
    assert (count, seconds) == (60, result.simulated_s)
    turns = store.query("SELECT DISTINCT policy, gpus, seed FROM sim_turns").to_pylist()
    assert turns == [{"policy": "full", "gpus": 2, "seed": 7}]
    (row,) = store.query("SELECT count(*) AS n FROM sim_turns").to_pylist()
    assert row["n"] == result.requests


def test_without_a_course_there_are_only_simulations(tmp_path):
    world, store = scenario(closed(4), turns=50), Store.open(tmp_path)
    found = {"workload": "test", "model": "llama-3.1-8b", "gpu": "h100", "policy": "full", "slo": {}}
    save_simulation(store, found, [(world, run_fleet(world, 1, 0))], 0)
    assert store.query("SELECT count(*) AS n FROM intervals").to_pylist() == [{"n": 0}]
    assert store.query("SELECT count(*) AS n FROM simulations").to_pylist() == [{"n": 1}]


@pytest.mark.parametrize(
    ("pool", "failure"), [(5_000, None), (None, Failure(1e300))], ids=["sessions larger than the pool", "out for good"]
)
def test_an_answer_with_latencies_without_end_reads_the_same_after_it_was_stored(pool, failure):
    place = deployment(pool)
    found = plan(
        closed(8, turns=3), place.geometry, place.gpu, ["full"], SLOS, replications=2, max_gpus=1, turns=100, tp=1,
        sensitivity=False, fleet={"failure": failure}, activation_gib=place.activation.gib,
    )  # fmt: skip
    found |= {"answer": sentence(found, "full")}
    assert found["plans"][0]["sizes"][-1]["ttft_p95_s"][0] == float("inf")
    read = json.loads(json.dumps(plain(found)))
    assert sentence(read, "full") == found["answer"]
    assert plan_text(read) == plan_text(found)
