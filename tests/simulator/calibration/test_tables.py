import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from kvmill.errors import InputError, UserError
from kvmill.simulator.calibration.tables import FORMATS, operator_rows, read_table
from kvmill.simulator.models import find_geometry

LLAMA = find_geometry("llama-3.1-8b")


def written(tmp_path, columns, name="t.csv"):
    table = pa.table(columns)
    (parquet.write_table if name.endswith("parquet") else csv.write_csv)(table, tmp_path / name)
    return tmp_path / name


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_product_is_its_operations_and_bytes_whatever_the_file(tmp_path, name):
    path = written(
        tmp_path,
        {
            "gemm_dtype": ["bfloat16", "fp8", "fp8_block"],
            "m": [2] * 3,
            "n": [3] * 3,
            "k": [5] * 3,
            "latency": [0.5] * 3,
        },
        name,
    )
    table = read_table(path)
    (rows,) = operator_rows(table, None)
    assert (table.format, len(table), len(table.sha256)) == ("matrix products", 3, 64)
    assert rows.dtype.tolist() == ["bf16", "fp8", "fp8_block"]
    assert rows.flops.tolist() == [60.0] * 3
    assert rows.bytes.tolist() == [2 * 25 + 12.0, 25 + 12.0, 25 + 12.0]
    assert rows.seconds.tolist() == [0.5e-3] * 3


def attention(tmp_path, op, isl, step, window=0):
    shape = {"batch_size": 2, "isl": isl, "num_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "step": step}
    columns = {name: [value] for name, value in (shape | {"window_size": window, "latency": 1.0}).items()}
    path = written(tmp_path, columns | {"op_name": [op], "kv_cache_dtype": ["bfloat16"]})
    (rows,) = operator_rows(read_table(path), None)
    return rows


def test_a_prefill_sees_its_own_triangle_and_all_that_came_before(tmp_path):
    alone, after = (attention(tmp_path, "context_attention", 100, step) for step in (0, 1000))
    assert alone.kind == "prefill"
    assert alone.flops.item() == 4 * 2 * 8 * 64 * sum(range(1, 101))
    assert after.flops.item() == 4 * 2 * 8 * 64 * sum(range(1001, 1101))


def test_a_decode_reads_what_is_held_or_the_window(tmp_path):
    whole, window = (attention(tmp_path, "generation_attention", 1, 5000, w) for w in (0, 128))
    assert whole.kind == "decode"
    assert whole.bytes.item() == 2 * 2 * 5000 * 2 * 64 * 2
    assert window.bytes.item() == 2 * 2 * 128 * 2 * 64 * 2


def test_a_mixture_touches_the_experts_that_even_routing_would(tmp_path):
    shape = {"hidden_size": 10, "inter_size": 8, "topk": 2, "num_experts": 16, "moe_tp_size": 2, "latency": 1.0}
    columns = {name: [value] * 3 for name, value in shape.items()}
    columns |= {"num_tokens": [1, 1000, 1], "moe_ep_size": [1, 1, 4], "moe_dtype": ["bfloat16", "w4a16_mxfp4", "fp8"]}
    (rows,) = operator_rows(read_table(written(tmp_path, columns)), None)
    one = 3 * 10 * 8 / 2
    assert rows.flops.tolist() == [2 * one * 2, 2 * one * 2 * 1000], "experts on other GPUs are left out"
    assert rows.bytes.tolist() == pytest.approx([2 * one * 2, 16 * one * 4.25 / 8])


def test_all_reduces_count_elements_and_only_those_in_a_graph_are_taken(tmp_path):
    path = written(
        tmp_path,
        {"num_gpus": [2, 2], "message_size": [1024] * 2, "latency": [0.004, 0.02], "backend": ["x_graph", "x_eager"]},
    )
    (rows,) = operator_rows(read_table(path), None)
    assert rows.bytes.tolist() == [2048.0]
    assert rows.seconds.tolist() == [4e-6]


def test_layer_profiles_need_the_model_and_know_its_products(tmp_path):
    names = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj", "act_fn"]
    path = written(tmp_path, {"layer": names, "tokens": [7] * 5, "time_us": [10.0] * 5})
    table = read_table(path)
    with pytest.raises(UserError, match="needs --model"):
        operator_rows(table, None)
    with pytest.raises(UserError, match="no plain decoder"):
        operator_rows(table, find_geometry("qwen3.5-27b"))
    rows = operator_rows(table, LLAMA)
    shapes = [(part.detail["n"].item(), part.detail["k"].item()) for part in rows]
    assert shapes == [(6144, 4096), (4096, 4096), (28_672, 4096), (4096, 14_336)]


def test_the_output_projection_is_a_product_over_the_vocabulary(tmp_path):
    path = written(tmp_path, {"layer": ["lm_head", "sampler"], "sequences": [4, 4], "time_us": [700.0, 30.0]})
    (rows,) = operator_rows(read_table(path), LLAMA)
    assert rows.flops.tolist() == [2.0 * 4 * 128_256 * 4096]


def test_profiled_attention_is_split_and_mixed_rows_belong_to_neither(tmp_path):
    columns = {"prefill_chunk": [0, 16, 16], "kv_prefill": [0, 32, 0], "n_decode": [4, 0, 4], "kv_decode": [100, 0, 9]}
    path = written(tmp_path, columns | {"time_us": [9.0, 8.0, 7.0]})
    prefill, decode = operator_rows(read_table(path), LLAMA)
    assert (len(prefill), len(decode)) == (1, 1)
    assert decode.bytes.item() == 4 * 100 * 2 * 8 * 128 * 2
    assert prefill.flops.item() == 4 * 32 * 128 * sum(range(33, 49))


def test_real_tables_of_every_kind_are_known(shared_data):
    folder = shared_data / "serving"
    kinds = {
        "aiconfigurator/h100_sxm.vllm-0.24.0.custom_allreduce_perf.parquet": "all-reduce",
        "aiconfigurator/h100_sxm.nccl-2.27.3.nccl_perf.parquet": "collectives",
        "aiconfigurator/silicon_sample.part.csv": "servers",
        "llmservingsim/profile.RTX4090.Llama-3.1-8B.bf16.tp1.dense.csv": "layer profile",
        "llmservingsim/profile.RTX4090.Llama-3.1-8B.bf16.tp1.per_sequence.csv": "head profile",
        "vidur/a100.Llama-2-7b-hf.mlp.csv": "layers",
        "vidur/a100_dgx.all_reduce.csv": "all-reduce by machine",
    }
    for file, kind in kinds.items():
        table = read_table(folder / file)
        assert table.format == kind
        for rows in operator_rows(table, LLAMA):
            assert len(rows)
            assert np.isfinite(rows.seconds).all()


def test_two_collections_agree_on_an_all_reduce_in_bytes(shared_data):
    """Elements in one, two-byte elements in another, bytes in the third: in bytes they are within a third."""
    folder = shared_data / "serving"
    files = (
        "aiconfigurator/a100_sxm.vllm-0.14.0.custom_allreduce_perf.parquet",
        "aiconfigurator/a100_sxm.nccl-2.27.3.nccl_perf.parquet",
        "vidur/a100_dgx.all_reduce.csv",
    )
    times = []
    for file in files:
        (rows,) = operator_rows(read_table(folder / file), None)
        mask = (rows.detail["gpus"] == 8) & (np.abs(rows.bytes / 2**26 - 1) < 0.01)
        times.append(float(np.median(rows.seconds[mask])))
    assert max(times) < 1.34 * min(times)


def test_a_table_of_unknown_columns_lists_the_known_tables(tmp_path):
    path = written(tmp_path, {"a": [1], "b": [2]})
    with pytest.raises(InputError, match=r"unknown columns a, b; known tables: matrix products \(gemm_dtype") as found:
        read_table(path)
    assert all(name in str(found.value) for name in FORMATS)
    with pytest.raises(UserError, match="no such file"):
        read_table(tmp_path / "none.csv")
    (tmp_path / "x.parquet").write_bytes(b"not parquet")
    with pytest.raises(InputError, match=r"x\.parquet"):
        read_table(tmp_path / "x.parquet")
