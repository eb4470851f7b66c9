from dataclasses import replace

import numpy as np
import pytest

from kvmill.simulator.calibration.steps import composition, fit_steps, possible_steps, step_seconds, tuned
from kvmill.simulator.calibration.tables import Table
from kvmill.simulator.cost import CostModel
from kvmill.simulator.deployment import Deployment
from kvmill.simulator.hardware import find_gpu
from kvmill.simulator.models import find_geometry

PLACE = Deployment(find_geometry("llama-3.1-8b"), find_gpu("h100"))
TRUTH = {"host_step_s": 1e-3, "host_sequence_s": 40e-6, "matmul": 0.6, "streaming": 0.7, "decode_attention": 0.65}


def table(values, noise=0.02, count=400):
    """Random steps, timed by the cost model with `values`."""
    rng = np.random.default_rng(0)
    decodes = rng.integers(0, 256, count)
    prefills = rng.integers(0, 3, count) * (rng.random(count) < 0.5)
    prefills = np.where(decodes == 0, np.maximum(1, prefills), prefills)
    columns = {
        "decode_sequences": decodes,
        "decode_context_tokens": decodes * rng.integers(100, 20_000, count),
        "prefill_sequences": prefills,
        "prefill_tokens": prefills * rng.integers(16, 4096, count),
        "prefill_context_tokens": rng.integers(0, 50_000, count),
        "seconds": np.ones(count),
    }
    bare = Table("made up", "steps", columns, "0" * 64)
    cost = CostModel.of(replace(PLACE, gpu=tuned(PLACE.gpu, "bf16", values)))
    seconds = step_seconds(cost, composition(bare)) * np.exp(noise * rng.standard_normal(count))
    return replace(bare, columns=columns | {"seconds": seconds})


def test_the_constants_behind_made_up_steps_are_found():
    found = fit_steps(table(TRUTH, noise=0.004), PLACE)
    for name, value in TRUTH.items():
        assert found.values[name] == pytest.approx(value, rel=0.1), name
    assert found.held_out_error < 0.03
    assert found.n_fit + found.n_held_out == 400


def test_a_step_of_chunks_sees_what_came_before_them():
    columns = {
        "decode_sequences": np.array([3]), "decode_context_tokens": np.array([500]), "seconds": np.array([1.0]),
        "prefill_sequences": np.array([2]), "prefill_tokens": np.array([100]),
        "prefill_context_tokens": np.array([1000]), "prefill_ending": np.array([1]),
    }  # fmt: skip
    (step,) = composition(Table("t", "steps", columns, ""))
    assert step == (3, 500.0, 2, 100, 100 * (1000 + 25.0), 1)
    plain = {name: column for name, column in columns.items() if name[:9] != "prefill_c" and name[:9] != "prefill_e"}
    assert composition(Table("t", "steps", plain, ""))[0] == (3, 500.0, 2, 100, 100 * 25.0, 2)


def test_steps_that_no_chip_could_do_are_found():
    honest = table(TRUTH, noise=0.0)
    assert possible_steps(honest, PLACE).all()
    seconds = honest.columns["seconds"].copy()
    seconds[:7] /= 20.0
    seconds[7] = np.nan
    mask = possible_steps(replace(honest, columns=dict(honest.columns) | {"seconds": seconds}), PLACE)
    assert (~mask).sum() == 8
    assert not mask[:8].any()
