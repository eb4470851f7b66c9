"""Measured tables of other projects as rows of one kind: operation, dtype, operations, bytes, seconds.

A table is known by its columns, never by its name. What a column means is written beside its reader. Nothing is judged
here: `operators` drops what no chip can do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError, UserError
from ..geometry import Geometry

Columns = Mapping[str, np.ndarray]
# Other spellings; block-scaled fp8 is a kernel of its own, and stays apart.
DTYPES = {"bfloat16": "bf16", "float16": "bf16", "half": "bf16", "fp16": "bf16", "bf16": "bf16", "fp8": "fp8"}


@dataclass(frozen=True)
class Rows:
    """Rows of one operation: `matmul`, `mixture` (of experts), `prefill`, `decode` (attention) or `all_reduce`.

    `flops` and `bytes` are the least that the operation needs (bytes of an all-reduce: the message); `detail` holds the
    numbers of the shape that tell regimes apart.
    """

    kind: str
    dtype: np.ndarray
    flops: np.ndarray
    bytes: np.ndarray
    seconds: np.ndarray
    detail: Columns = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.seconds)

    def where(self, mask: np.ndarray) -> Rows:
        """The rows that `mask` picks."""
        detail = {name: values[mask] for name, values in self.detail.items()}
        return Rows(self.kind, self.dtype[mask], self.flops[mask], self.bytes[mask], self.seconds[mask], detail)


@dataclass(frozen=True)
class Table:
    """One file: its format, its raw columns, and what says which file it was."""

    name: str
    format: str
    columns: Columns
    sha256: str

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


def read_table(path: str | Path) -> Table:
    """A parquet or CSV file of a known format. InputError when it is neither; the known formats are listed."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise UserError(f"table {path}: no such file")
    columns = _columns(path)
    for name, (needed, _) in FORMATS.items():
        if needed <= columns.keys():
            return Table(path.name, name, columns, hashlib.sha256(path.read_bytes()).hexdigest())
    known = "; ".join(f"{name} ({', '.join(sorted(needed))})" for name, (needed, _) in FORMATS.items())
    raise InputError(f"table {path.name}: unknown columns {', '.join(sorted(columns)[:12])}; known tables: {known}")


def operator_rows(table: Table, geometry: Geometry | None) -> list[Rows]:
    """The operations that a table holds; none for tables of whole steps or of whole servers.

    UserError when the table gives times of a model's layers and no `geometry` says their shapes.
    """
    reader = FORMATS[table.format][1]
    return reader(table.columns, geometry) if reader else []


def _columns(path: Path) -> dict[str, np.ndarray]:
    import pyarrow as pa

    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            found = parquet.read_table(path)
        else:
            from pyarrow import csv

            found = csv.read_csv(path)
    except pa.ArrowInvalid as error:
        raise InputError(f"table {path.name}: {str(error).splitlines()[0]}") from None
    if not found.num_rows:
        raise InputError(f"table {path.name}: no rows")
    return {name: found[name].to_numpy() for name in found.column_names}


def _dtypes(values: np.ndarray) -> np.ndarray:
    return np.array([DTYPES.get(str(value), str(value)) for value in values])


def _sizes(dtype: np.ndarray) -> np.ndarray:
    """Bytes per weight; of four-bit formats with a scale for every 32."""
    names = dtype.astype(str)
    four = np.char.find(names, "4") >= 0
    return np.where(four, 4.25 / 8, np.where(np.char.startswith(names, "fp8"), 1.0, 2.0))


def matmul_rows(m: Any, n: Any, k: Any, dtype: np.ndarray, seconds: np.ndarray) -> Rows:
    """Products of (m, k) and (k, n): 2·m·n·k operations; both inputs and the output move once (output in bf16)."""
    m, n, k = (np.broadcast_to(np.asarray(v, float), seconds.shape) for v in (m, n, k))
    moved = (m * k + k * n) * _sizes(dtype) + 2.0 * m * n
    return Rows("matmul", dtype, 2.0 * m * n * k, moved, seconds, {"m": m, "n": n, "k": k})


def _kernels(columns: Columns, _: Geometry | None) -> list[Rows]:
    """aiconfigurator: one matrix product; `latency` in ms."""
    dtype = _dtypes(columns["gemm_dtype"])
    return [matmul_rows(columns["m"], columns["n"], columns["k"], dtype, columns["latency"] * 1e-3)]


def _attention(columns: Columns, _: Geometry | None) -> list[Rows]:
    """aiconfigurator: `isl` new tokens of each sequence after `step` cached ones; a decode has `isl` 1; ms."""
    c = {name: columns[name].astype(float) for name in _ATTENTION if columns[name].dtype.kind in "if"}
    dtype = _dtypes(columns["kv_cache_dtype"])
    window = np.asarray(columns.get("window_size", np.zeros(len(dtype))), float)
    decode = columns["op_name"] == "generation_attention"
    context = np.where(decode, c["step"], c["step"] + (c["isl"] + 1) / 2)  # rows that a query token sees, on average
    held = np.where(decode, c["step"], c["step"] + c["isl"])
    context = np.where(window > 0, np.minimum(context, window), context)
    held = np.where(window > 0, np.minimum(held, window + c["isl"] - 1), held)
    flops = 4.0 * c["batch_size"] * c["isl"] * context * c["num_heads"] * c["head_dim"]
    moved = 2.0 * c["batch_size"] * held * c["num_key_value_heads"] * c["head_dim"] * _sizes(dtype)
    detail = c | {"window": window}
    rows = Rows("prefill", dtype, flops, moved, columns["latency"] * 1e-3, detail)
    found = [rows.where(~decode)]
    ones = rows.where(decode)
    found.append(Rows("decode", ones.dtype, ones.flops, ones.bytes, ones.seconds, ones.detail))
    return [part for part in found if len(part)]


def _mixtures(columns: Columns, _: Geometry | None) -> list[Rows]:
    """aiconfigurator: a fused mixture of experts; ms. Only whole ones: experts on other GPUs are another operation.

    Bytes are those of the experts that the tokens touch if evenly routed.
    """
    c = {name: columns[name].astype(float) for name in _MIXTURE}
    dtype = _dtypes(columns["moe_dtype"])
    one = 3.0 * c["hidden_size"] * c["inter_size"] / c["moe_tp_size"]
    touched = c["num_experts"] * (1.0 - (1.0 - c["topk"] / c["num_experts"]) ** c["num_tokens"])
    flops = 2.0 * one * c["topk"] * c["num_tokens"]
    rows = Rows("mixture", dtype, flops, touched * one * _sizes(dtype), columns["latency"] * 1e-3, c)
    return [rows.where(c["moe_ep_size"] == 1)]


def _custom_all_reduce(columns: Columns, _: Geometry | None) -> list[Rows]:
    """aiconfigurator: `message_size` counts elements of two bytes; ms. Only calls inside a captured graph.

    In calls outside of a graph the host's launch is timed.
    """
    rows = _reduced(columns["num_gpus"], columns["message_size"] * 2.0, columns["latency"] * 1e-3)
    return [rows.where(np.array([str(b).endswith("graph") for b in columns["backend"]]))]


def _collectives(columns: Columns, _: Geometry | None) -> list[Rows]:
    """aiconfigurator: NCCL by operation; `message_size` counts elements; ms."""
    size = np.where(columns["nccl_dtype"] == "half", 2.0, 1.0)
    rows = _reduced(columns["num_gpus"], columns["message_size"] * size, columns["latency"] * 1e-3)
    return [rows.where((columns["op_name"] == "all_reduce") & (columns["nccl_dtype"] == "half"))]


def _vidur_all_reduce(columns: Columns, _: Geometry | None) -> list[Rows]:
    """vidur: message bytes, median ms. Rows whose GPUs lie in several machines are left out."""
    rows = _reduced(columns["num_workers"], columns["size"], columns["time_stats.all_reduce.median"] * 1e-3)
    return [rows.where(columns["devices_per_node"] == columns["num_workers"])]


def _reduced(gpus: np.ndarray, message_bytes: np.ndarray, seconds: np.ndarray) -> Rows:
    size = np.asarray(message_bytes, float)
    dtype = np.full(len(size), "bf16")
    return Rows("all_reduce", dtype, np.zeros(len(size)), size, seconds, {"gpus": np.asarray(gpus, float)})


def _vidur_layers(columns: Columns, _: Geometry | None) -> list[Rows]:
    """vidur: median ms of a layer's products at `num_tokens`, split over `num_tensor_parallel_workers`; fp16."""
    hidden, inner = columns["n_embd"].astype(float), columns["n_expanded_embd"].astype(float)
    split = columns["num_tensor_parallel_workers"].astype(float)
    head = hidden / columns["n_head"]
    attention = (columns["n_head"] + 2 * np.maximum(columns["n_kv_head"], split)) * head / split
    up = inner * np.where(columns["use_gated_mlp"].astype(bool), 2, 1) / split
    shapes = {
        "attn_pre_proj": (attention, hidden),
        "attn_post_proj": (hidden, hidden / split),
        "mlp_up_proj": (up, hidden),
        "mlp_down_proj": (hidden, inner / split),
    }
    dtype = np.full(len(split), "bf16")
    return [
        matmul_rows(columns["num_tokens"], n, k, dtype, columns[f"time_stats.{name}.median"] * 1e-3)
        for name, (n, k) in shapes.items()
    ]


def _profiled_layers(columns: Columns, geometry: Geometry | None) -> list[Rows]:
    """llmservingsim: µs of one layer's parts at `tokens` tokens, one GPU, bf16. Products only."""
    shapes = _layer_shapes(_known(geometry))
    picked = [columns["layer"] == name for name in shapes]
    return [
        matmul_rows(columns["tokens"][mask], n, k, np.full(mask.sum(), "bf16"), columns["time_us"][mask] * 1e-6)
        for mask, (n, k) in zip(picked, shapes.values(), strict=True)
        if mask.any()
    ]


def _profiled_heads(columns: Columns, geometry: Geometry | None) -> list[Rows]:
    """llmservingsim: µs of the output projection for so many `sequences`, bf16."""
    shape = _known(geometry)
    mask = columns["layer"] == "lm_head"
    n = shape.head_parameters / shape.hidden
    dtype = np.full(mask.sum(), "bf16")
    return [matmul_rows(columns["sequences"][mask], n, shape.hidden, dtype, columns["time_us"][mask] * 1e-6)]


def _profiled_attention(columns: Columns, geometry: Geometry | None) -> list[Rows]:
    """llmservingsim: µs of one layer's attention, a chunk after `kv_prefill` rows, `n_decode` sequences of `kv_decode`.

    Rows that mix both are left out: they belong to neither roofline.
    """
    shape = _known(geometry)
    c = {name: columns[name].astype(float) for name in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")}
    seconds, dtype = columns["time_us"] * 1e-6, np.full(len(columns["time_us"]), "bf16")
    per_pair, per_row = 4.0 * shape.q_heads * shape.head_dim, 4.0 * shape.kv_heads * shape.head_dim
    chunk, decodes = c["prefill_chunk"], c["n_decode"] * c["kv_decode"]
    context = c["kv_prefill"] + (chunk + 1) / 2
    constant = {"num_heads": shape.q_heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim}
    detail = {name: np.full(len(seconds), float(value)) for name, value in (constant | {"window": 0}).items()}
    detail |= {"batch_size": np.maximum(1.0, c["n_decode"]), "isl": chunk, "step": c["kv_decode"]}
    detail |= {"context": c["kv_prefill"]}
    prefill = Rows("prefill", dtype, per_pair * chunk * context, per_row * context, seconds, detail)
    decode = Rows("decode", dtype, per_pair * decodes, per_row * decodes, seconds, detail)
    return [prefill.where((chunk > 0) & (decodes == 0)), decode.where((chunk == 0) & (decodes > 0))]


def _layer_shapes(shape: Geometry) -> dict[str, tuple[float, float]]:
    """Output and input sizes of a plain decoder layer's products; UserError for any other layer."""
    if shape.full_layers != shape.layers or shape.experts or shape.latent_rank:
        raise UserError(f"--model {shape.name}: no plain decoder, so the times of one layer say nothing of it")
    attention = float(shape.q_heads * shape.head_dim)
    beside = shape.hidden * 2.0 * shape.head_dim * (shape.q_heads + shape.kv_heads)
    # What norms add is less than one unit of the inner size.
    inner = float(int((shape.body_parameters / shape.layers - beside) / (3.0 * shape.hidden)))
    return {
        "qkv_proj": (attention + 2.0 * shape.kv_heads * shape.head_dim, float(shape.hidden)),
        "o_proj": (float(shape.hidden), attention),
        "gate_up_proj": (2.0 * inner, float(shape.hidden)),
        "down_proj": (float(shape.hidden), inner),
    }


def _known(geometry: Geometry | None) -> Geometry:
    if geometry is None:
        raise UserError("a table of layer times needs --model, which says the shapes of the layers")
    return geometry


_ATTENTION = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "step")
_MIXTURE = (
    "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size",
)  # fmt: skip
Reader = Callable[[Columns, Geometry | None], list[Rows]]
# Whole steps and whole servers have no reader here: `steps` and `ends` read them.
FORMATS: dict[str, tuple[frozenset[str], Reader | None]] = {
    "matrix products": (frozenset({"gemm_dtype", "m", "n", "k", "latency"}), _kernels),
    "attention": (frozenset({*_ATTENTION, "op_name", "kv_cache_dtype", "latency"}), _attention),
    "mixtures": (frozenset({*_MIXTURE, "moe_dtype", "latency"}), _mixtures),
    "all-reduce": (frozenset({"num_gpus", "message_size", "latency", "backend"}), _custom_all_reduce),
    "collectives": (frozenset({"op_name", "nccl_dtype", "num_gpus", "message_size", "latency"}), _collectives),
    "all-reduce by machine": (
        frozenset({"num_workers", "size", "devices_per_node", "time_stats.all_reduce.median"}),
        _vidur_all_reduce,
    ),
    "layers": (frozenset({"num_tokens", "num_tensor_parallel_workers", "n_embd", "n_expanded_embd"}), _vidur_layers),
    "layer profile": (frozenset({"layer", "tokens", "time_us"}), _profiled_layers),
    "head profile": (frozenset({"layer", "sequences", "time_us"}), _profiled_heads),
    "attention profile": (
        frozenset({"prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"}),
        _profiled_attention,
    ),
    "steps": (
        frozenset({"decode_sequences", "decode_context_tokens", "prefill_sequences", "prefill_tokens", "seconds"}),
        None,
    ),
    "servers": (frozenset({"model_path", "isl", "osl", "batch_size", "tp_size", "silicon_tpot_ms"}), None),
}
