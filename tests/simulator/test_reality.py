"""The simulator against runs recorded on real machines. Nothing is fitted on the vLLM runs."""

import json
from dataclasses import replace

import numpy as np
import pytest

from kvmill.errors import InputError
from kvmill.simulator.cost import CostModel
from kvmill.simulator.reality.checks import RUNS, load, place_for, reality_checks
from kvmill.simulator.reality.elsewhere import elsewhere
from kvmill.simulator.reality.record import read_record
from kvmill.simulator.reality.rerun import Latencies, measured, place_of, rerun
from kvmill.simulator.reality.sensitivity import CONSTANTS, sensitivity
from kvmill.simulator.reality.shared import Shared
from kvmill.simulator.validate import measured as checked


@pytest.fixture(scope="module")
def checks(shared_data):
    return [checked(found) for found in reality_checks(Shared.find(shared_data))]


def test_the_starved_vllm_run_is_met_within_a_few_percent(checks):
    found = [check for check in checks if "rtx-4090" in check.name]
    assert len(found) == 11, "the pool, six latencies, preemptions, three curves"
    assert [check for check in found if not check.passed] == []


def test_the_run_on_another_card_is_met_within_ten_percent(checks):
    found = [check for check in checks if "rtx-pro-6000" in check.name]
    assert len(found) == 8
    assert [check for check in found if not check.passed] == []


def test_closed_loop_rows_that_nothing_was_fitted_on_are_met_within_ten_percent(checks):
    found = [check for check in checks if "held-out" in check.name]
    assert len(found) == 4, "formula and simulation, both ways round"
    assert [check for check in found if not check.passed] == []


def test_formula_and_simulation_agree_on_closed_loops(checks):
    held_out = [check for check in checks if "held-out" in check.name]
    formula, simulated, *_ = (check.value for check in held_out)
    assert abs(formula - simulated) < 0.05


def test_a_pool_of_another_size_would_be_noticed(shared_data):
    """The comparison can fail: with a fifth more memory the starved run is not met."""
    run = RUNS[0]
    record = load(Shared.find(shared_data), run)
    assert record is not None
    assert record.blocks is not None
    place = place_for(run, replace(record, blocks=round(1.2 * record.blocks)))
    ours = rerun(record, place, CostModel.of(place)).latencies
    assert ours.ttft.mean() / measured(record).ttft.mean() < 0.9


def test_what_the_errors_rest_on_is_told_per_constant(shared_data):
    rows = sensitivity(Shared.find(shared_data))
    assert len(rows) == 2 * (1 + 2 * len(CONSTANTS))
    swings = {(row["run"], row["constant"], row["factor"]): row["tpot"] for row in rows}
    for run in {row["run"] for row in rows}:
        assert swings[run, "weight streaming", 1.2] > swings[run, None, 1.0] > swings[run, "weight streaming", 0.8]


REQUEST = {
    "input_toks": 100, "output_toks": 3, "arrival_time": 1000.5, "queued_ts": 7.0, "first_token_ts": 7.5,
    "last_token_ts": 8.5,
}  # fmt: skip
META = {
    "engine_kwargs": {"max_num_seqs": 4, "max_num_batched_tokens": 512},
    "started_at": "1970-01-01T00:16:40Z",
    "kv_cache": {"num_gpu_blocks": 123},
}


def written(folder, requests=(REQUEST,), meta=META):
    paths = [folder / "requests.jsonl", folder / "series.csv", folder / "meta.json"]
    paths[0].write_text("".join(json.dumps(row) + "\n" for row in requests))
    paths[1].write_text("t,running,waiting,kv_cache_pct\n1.0,1,0,12.5\n2.0,0,0,0.0\n")
    paths[2].write_text(json.dumps(meta))
    return paths


def test_a_record_counts_from_the_first_arrival(tmp_path):
    later = REQUEST | {"queued_ts": 9.0, "arrival_time": 1002.5, "first_token_ts": 9.25, "last_token_ts": 9.25}
    record = read_record(*written(tmp_path, [REQUEST, later]))
    assert record.arrived.tolist() == [0.0, 2.0]
    assert record.moments.tolist() == [0.5, 1.5], "the first request came half a second after the clock began"
    assert (record.token_budget, record.max_sequences, record.blocks) == (512, 4, 123)
    found = measured(record)
    assert found.ttft.tolist() == [0.5, 0.25]
    assert found.tpot.tolist() == [0.5, 0.0]
    assert record.used is not None
    assert record.used.tolist() == [0.125, 0.0]


def test_a_record_without_a_field_is_refused_with_file_and_line(tmp_path):
    broken = {name: value for name, value in REQUEST.items() if name != "queued_ts"}
    with pytest.raises(InputError, match=r"requests.jsonl line 2.*queued_ts"):
        read_record(*written(tmp_path, [REQUEST, broken]))
    with pytest.raises(InputError, match=r"meta.json.*engine_kwargs"):
        read_record(*written(tmp_path, meta={}))


def test_the_pool_of_a_record_is_taken_as_it_was(tmp_path):
    record = read_record(*written(tmp_path))
    place = place_of(record, place_for(RUNS[0], record))
    assert place.blocks() == 123
    assert (place.token_budget, place.max_sequences) == (512, 4)


def test_a_lone_recorded_request_takes_its_steps(tmp_path):
    record = read_record(*written(tmp_path))
    place = place_for(RUNS[0], record)
    cost = CostModel.of(place)
    ours = rerun(record, place, cost)
    assert ours.latencies.ttft[0] == pytest.approx(cost.step_s(0, 0, 1, 100, 100 * 50.0, 1))
    assert ours.latencies.tpot[0] == pytest.approx(cost.fixed_s(1) + cost.decode_attention_s(1, 100.5))
    assert ours.running.tolist() == [0, 0]
    assert ours.preemptions == 0


def test_latencies_of_one_token_have_no_gap():
    found = Latencies.of(np.array([1.0]), np.array([2.0]), np.array([2.0]), np.array([1]))
    assert (found.ttft[0], found.tpot[0], found.e2e[0]) == (1.0, 0.0, 1.0)


def test_other_models_rows_are_told_with_their_errors_and_promise_nothing(shared_data):
    rows = elsewhere(Shared.find(shared_data))
    assert len(rows) >= 10
    assert {"llama-3.1-8b", "qwen3-32b"} <= {row["model"] for row in rows}
    for row in rows:
        assert row["rows"] >= 8
        assert row["p10"] <= row["p50"] <= row["p90"]
    assert elsewhere(Shared(None)) == []
