from dataclasses import replace

import numpy as np
import pytest

from kvmill.simulator.calibration.operators import SIZES, fit_operators, joined, possible
from kvmill.simulator.calibration.tables import Rows, matmul_rows, operator_rows, read_table
from kvmill.simulator.gpus import GPUS
from kvmill.simulator.models import find_geometry

H100 = GPUS["h100"]


def products(gpu, seed=0, noise=0.03):
    """Times of many products as the cost model has them."""
    rng = np.random.default_rng(seed)
    m = 2.0 ** rng.integers(0, 14, 2000)
    n, k = (1024.0 * rng.integers(1, 16, 2000) for _ in range(2))
    dtype = np.full(2000, "bf16")
    rows = matmul_rows(m, n, k, dtype, np.ones(2000))
    p = gpu.overlap["bf16"]
    operations = rows.flops / (gpu.flops["bf16"] * gpu.matmul["bf16"])
    moved = rows.bytes / (gpu.bandwidth * gpu.streaming["bf16"])
    seconds = gpu.matmul_floor_s["bf16"] + (operations**p + moved**p) ** (1 / p)
    return matmul_rows(m, n, k, dtype, seconds * np.exp(noise * rng.standard_normal(2000)))


def decodes(gpu, kind="decode"):
    batch, step = (
        v.ravel() for v in np.meshgrid([1.0, 2.0, 4.0, 8.0, 64.0, 256.0], [4.0, 16.0, 64.0, 1024.0, 8192.0, 65_536.0])
    )
    moved = 4.0 * batch * step * 8 * 128
    seconds = gpu.attention_floor_s + moved / (gpu.bandwidth * gpu.decode_attention)
    constant = {"num_heads": 32.0, "num_key_value_heads": 8.0, "head_dim": 128.0, "window": 0.0}
    detail = {name: np.full(len(batch), value) for name, value in constant.items()}
    detail |= {"batch_size": batch, "step": step, "isl": np.ones(len(batch))}
    return Rows(kind, np.full(len(batch), "bf16"), 4 * moved, moved, seconds, detail)


def test_the_constants_behind_made_up_tables_are_found():
    truth = replace(
        H100,
        matmul={"bf16": 0.7, "fp8": 0.4},
        streaming={"bf16": 0.6, "fp8": 0.5},
        overlap={"bf16": 2.0, "fp8": 1.0},
        matmul_floor_s={"bf16": 5e-6, "fp8": 7e-6},
        decode_attention=0.66,
        attention_floor_s=9e-6,
    )
    found = fit_operators([products(truth), decodes(truth)], H100)
    assert found.gpu.matmul["bf16"] == pytest.approx(0.7, rel=0.03)
    assert found.gpu.streaming["bf16"] == pytest.approx(0.6, rel=0.03)
    assert found.gpu.overlap["bf16"] == pytest.approx(2.0, rel=0.1)
    assert found.gpu.matmul_floor_s["bf16"] == pytest.approx(5e-6, rel=0.15)
    assert found.gpu.decode_attention == pytest.approx(0.66, rel=0.02)
    assert found.gpu.attention_floor_s == pytest.approx(9e-6, rel=0.1)
    assert found.gpu.matmul["fp8"] == H100.matmul["fp8"], "no row says anything of fp8"
    assert found.gpu.prefill_attention == H100.prefill_attention
    assert all(figure.held_out_error < 0.05 for figure in found.figures)


def test_rows_faster_than_the_chip_are_dropped_and_counted():
    honest = products(H100)
    seconds = honest.seconds.copy()
    large = np.flatnonzero(honest.flops > 1e11)[:40]
    seconds[large[:20]] = honest.flops[large[:20]] / (260 * H100.flops["bf16"])
    seconds[large[20:]] = honest.flops[large[20:]] / (1.2 * H100.flops["bf16"])
    planted = replace(honest, seconds=seconds)
    spoiled = fit_operators([planted], H100)
    assert spoiled.read == {"matmul": 2000}
    assert spoiled.dropped == {"matmul": 40}
    clean = fit_operators([honest], H100)
    assert clean.dropped == {"matmul": 0}
    assert spoiled.gpu.matmul["bf16"] == pytest.approx(clean.gpu.matmul["bf16"], rel=0.02)


def test_reading_faster_than_the_memory_is_impossible_unless_a_cache_may_hold_it():
    rows = decodes(H100)
    fast = replace(rows, seconds=rows.bytes / (3 * H100.bandwidth))
    assert possible(rows, H100).all()
    assert (possible(fast, H100) == (rows.bytes < 0.5e9)).all()
    assert not possible(replace(rows, seconds=rows.seconds * 0), H100).any()
    assert not possible(replace(rows, seconds=rows.seconds * np.nan), H100).any()


def test_all_reduce_points_are_medians_first_and_measured_times_after():
    size = np.array([1024.0, 65_536.0, 131_072.0, 524_288.0, 2.0**24])
    seconds = np.array([4e-6, 5e-6, 6e-6, 8e-6, 9e-5])
    rows = Rows("all_reduce", np.full(5, "bf16"), np.zeros(5), size, seconds, {"gpus": np.full(5, 2.0)})
    points = dict(fit_operators([rows], H100).gpu.all_reduce(2))
    assert list(points) == [at for at in SIZES if at <= 2.0**24]
    assert points[SIZES[0]] == pytest.approx(4.5e-6)
    assert points[262_144.0] == pytest.approx((6e-6 * 8e-6) ** 0.5), "half way in logarithms"
    assert points[2.0**24] == pytest.approx(9e-5)


TABLES = {
    "a100-80": ("a100_sxm.vllm-0.14.0", "a100_sxm.vllm-0.14.0", 0.25),
    "h100": ("h100_sxm.vllm-0.24.0", "h100_sxm.vllm-0.24.0", 0.20),
    "h200": ("h200_sxm.vllm-0.24.0", "h200_sxm.vllm-0.24.0", 0.22),
    "l40s": ("l40s.vllm-0.24.0", "l40s.vllm-0.14.0", 0.20),
}
TOLERANCE = 0.02  # shipped figures are rounded


@pytest.mark.parametrize("name", sorted(TABLES))
def test_the_shipped_figures_come_out_of_the_measured_tables(name, shared_data):
    folder = shared_data / "serving" / "aiconfigurator"
    plain, reduce, worst = TABLES[name]
    files = [f"{plain}.{kind}_perf.parquet" for kind in ("gemm", "context_attention", "generation_attention")]
    paths = [folder / file for file in (*files, f"{reduce}.custom_allreduce_perf.parquet")]
    if not all(path.is_file() for path in paths):
        pytest.skip(f"no operator tables of {name} in the shared data")
    experts = folder / f"{plain}.moe_perf.parquet"
    paths += [experts] if experts.is_file() else []
    shipped = GPUS[name]
    found = fit_operators([rows for path in paths for rows in operator_rows(read_table(path), None)], shipped)
    assert sum(found.dropped.values()) == 0, "these tables were chosen because they can be true"
    for figure in found.figures:
        value = getattr(shipped, figure.field)
        value = value[figure.dtype] if figure.dtype else value
        slack = 0.1e-6 if figure.field.endswith("floor_s") else 0.006
        assert figure.value == pytest.approx(value, rel=TOLERANCE, abs=slack), (figure.field, figure.dtype)
        assert figure.held_out_error < (0.26 if figure.field.startswith("expert") else worst)
    assert len(found.figures) == 4 * len(shipped.flops) + 4 + 2 * experts.is_file()
    for tp in (2, 4, 8):
        assert [t for _, t in found.gpu.all_reduce(tp)] == pytest.approx(
            [t for _, t in shipped.all_reduce(tp)], rel=0.02
        )


@pytest.mark.parametrize(("name", "device"), [("rtx-4090", "RTX4090"), ("rtx-pro-6000", "RTXPRO6000")])
def test_the_shipped_figures_of_cards_come_out_of_their_layer_profiles(name, device, shared_data):
    parts = ("dense", "per_sequence", "attention")
    paths = [
        shared_data / "serving/llmservingsim" / f"profile.{device}.Llama-3.1-8B.bf16.tp1.{part}.csv" for part in parts
    ]
    if not all(path.is_file() for path in paths):
        pytest.skip(f"no layer profile of {name} in the shared data")
    rows = [part for path in paths for part in operator_rows(read_table(path), find_geometry("llama-3.1-8b"))]
    found = fit_operators(rows, GPUS[name])
    assert sum(found.dropped.values()) == 0
    assert len(found.figures) == 8
    for figure in found.figures:
        value = getattr(GPUS[name], figure.field)
        value = value[figure.dtype] if figure.dtype else value
        assert figure.value == pytest.approx(value, rel=TOLERANCE, abs=0.1e-6), figure.field
        assert figure.held_out_error < 0.16


def test_another_collection_on_the_same_chip_is_near_what_is_shipped(shared_data):
    """vidur's A100 rows of 2024: an older stack, never fitted on."""
    path = shared_data / "serving/vidur/a100.Llama-2-7b-hf.mlp.csv"
    if not path.is_file():
        pytest.skip("no layer table of vidur in the shared data")
    gpu = GPUS["a100-80"]
    rows = joined(operator_rows(read_table(path), None))
    assert possible(rows, gpu).all()
    p = gpu.overlap["bf16"]
    operations = rows.flops / (gpu.flops["bf16"] * gpu.matmul["bf16"])
    moved = rows.bytes / (gpu.bandwidth * gpu.streaming["bf16"])
    error = (gpu.matmul_floor_s["bf16"] + (operations**p + moved**p) ** (1 / p)) / rows.seconds - 1
    assert np.abs(error).mean() < 0.15
