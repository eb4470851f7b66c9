from dataclasses import replace

import numpy as np
import pytest

from kvmill.errors import InputError, UserError
from kvmill.simulator.calibration.ends import EndRow, as_served, end_rows, fit_ends, possible_ends, tpot_s, tuned
from kvmill.simulator.calibration.tables import read_table
from kvmill.simulator.cost import CostModel
from kvmill.simulator.deployment import Deployment
from kvmill.simulator.hardware import find_gpu
from kvmill.simulator.models import find_geometry

LLAMA = find_geometry("llama-3.1-8b")


def place_of(row):
    return Deployment(LLAMA, find_gpu(row.gpu), tp=row.tp, dtype=row.dtype)


def row(tp=1, concurrency=8, prompt=1024, output=256, tpot=0.0):
    return EndRow("llama-3.1-8b", "h100", "engine 1", "bf16", tp, concurrency, prompt, output, tpot, 1.0)


def grid(values, noise=0.0):
    """Servers as the model has them with other host times, each time off by up to `noise`."""
    rng = np.random.default_rng(0)
    found = []
    for tp in (1, 2, 4, 8):
        for concurrency in (1, 8, 32, 128):
            for output in (128, 512):
                bare = row(tp, concurrency, output=output)
                place = place_of(bare)
                seconds = tpot_s(CostModel.of(replace(place, gpu=tuned(place.gpu, values))), bare, place.token_budget)
                found.append(replace(bare, tpot_s=seconds * np.exp(noise * rng.standard_normal())))
    return found


def test_one_sequence_alone_takes_its_decode_steps():
    cost = CostModel.of(place_of(row()))
    alone = row(concurrency=1, prompt=2000, output=100)
    assert tpot_s(cost, alone, 8192) == pytest.approx(cost.fixed_s(1) + cost.decode_attention_s(1, 2050))


def test_other_prompts_are_paid_once_each_while_a_sequence_decodes():
    cost = CostModel.of(place_of(row()))
    some = row(concurrency=9, prompt=1000, output=101)
    decode = cost.fixed_s(9) + cost.decode_attention_s(9, 9 * 1050.5)
    rows = 8 * 1050.5
    mixed = cost.step_s(8, rows, 1, 1000, 1000 * 500.0, 1) - cost.step_s(8, rows, 0, 0, 0.0, 0)
    assert tpot_s(cost, some, 8192) == pytest.approx(decode + 8 * mixed / 100)
    assert tpot_s(cost, some, 300) < tpot_s(cost, some, 8192), "small chunks hide behind the weights they share"


def test_the_constants_behind_made_up_servers_are_found():
    truth = {"host_step_s": 0.9e-3, "host_sequence_s": 45e-6, "efficiency": 0.9}
    found = fit_ends(grid(truth, 0.02), place_of)
    assert found.values["host_step_s"] == pytest.approx(0.9e-3, rel=0.1)
    assert found.values["host_sequence_s"] == pytest.approx(45e-6, rel=0.1)
    assert found.values["efficiency"] == pytest.approx(0.9, rel=0.03)
    assert found.held_out_error < 0.03


def test_the_halves_can_be_swapped():
    rows = grid({"host_step_s": 0.5e-3}, 0.05)
    one, two = fit_ends(rows, place_of), fit_ends(rows, place_of, swapped=True)
    assert (one.held_out == ~two.held_out).all()
    assert (one.n_fit, one.n_held_out) == (two.n_held_out, two.n_fit)


def test_too_few_rows_are_refused():
    with pytest.raises(InputError, match="12 rows of servers: too few"):
        fit_ends(grid({})[:12], place_of)


def test_no_share_passes_one():
    gpu = tuned(find_gpu("h100"), {"efficiency": 1.5})
    assert max(*gpu.matmul.values(), *gpu.streaming.values(), gpu.decode_attention, gpu.prefill_attention) == 1.0


def test_servers_faster_than_their_weights_and_prompts_can_be_read_are_impossible():
    floor = (LLAMA.streamed_bytes("bf16") + 8 * 1024 * 131_072) / 3.35e12
    rows = [row(tpot=floor * 1.01), row(tpot=floor * 0.9), row(tp=2, tpot=floor * 0.6), row(tpot=float("nan"))]
    assert possible_ends(rows, place_of).tolist() == [True, False, True, False]


@pytest.fixture(scope="module")
def everything(shared_data):
    path = shared_data / "serving/aiconfigurator/silicon_sample.part.csv"
    if not path.is_file():
        pytest.skip("no server measurements in the shared data")
    return end_rows(read_table(path))


@pytest.fixture(scope="module")
def servers(everything):
    return [r for r in everything if r.gpu == "h100" and "Llama-3.1-8B" in r.model]


def test_real_closed_loops_are_met_within_ten_percent_on_the_half_that_was_not_fitted(servers):
    assert len(servers) == 97
    assert possible_ends(servers, place_of).all()
    for swapped in (False, True):
        found = fit_ends(servers, place_of, swapped=swapped)
        assert found.n_fit + found.n_held_out == 97
        assert found.held_out_error < 0.10
        assert abs(found.bias) < 0.05


def test_and_without_any_fit_at_the_shipped_figures(servers):
    errors = [tpot_s(CostModel.of(place_of(r)), r, place_of(r).token_budget) / r.tpot_s - 1 for r in servers]
    assert np.abs(errors).mean() < 0.10
    assert abs(np.median(errors)) < 0.05


def test_the_split_of_the_real_rows_is_what_it_was(servers):
    """A change of the rule, or of a configuration's text, would let fitted rows in among the held-out ones."""
    found = fit_ends(servers, place_of)
    assert (found.n_fit, found.n_held_out) == (43, 54)


@pytest.mark.parametrize("name", ["h100", "h200", "b200"])
def test_the_shipped_error_of_a_gpu_is_that_of_all_its_servers_of_one_engine(everything, name):
    """vLLM with known models, at most 256 sequences, all of them in the pool; nothing was fitted on any of these."""
    gpu, errors = find_gpu(name), []
    for found in everything:
        if found.gpu != name or not found.engine.startswith("vllm") or found.concurrency > 256 or found.tp > 8:
            continue
        try:
            shape = find_geometry(found.model)
        except UserError:
            continue
        served = as_served(found, shape)
        if served is None:
            continue
        place = Deployment(shape, gpu, tp=served.tp, dtype=served.dtype)
        fits = served.concurrency * (served.prompt + served.output) <= place.tokens()
        if fits and possible_ends([served], lambda _, at=place: at).all():
            errors.append(tpot_s(CostModel.of(place), served, place.token_budget) / served.tpot_s - 1)
    assert gpu.error_source.startswith(f"measured: {len(errors)} closed-loop rows")
    assert np.abs(errors).mean() == pytest.approx(gpu.step_error, abs=0.001)
    assert abs(np.median(errors)) < gpu.step_error
