"""Efficiencies and floors of a GPU from operator tables, in the forms of the cost model; impossible rows are dropped.

A row is impossible when its operations take less time than the dense peak allows, or when it moves more bytes than any
cache holds and faster than the memory can. Such rows exist in published tables, up to hundreds of times too fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..cost import EXPERT_OVERLAP
from ..gpu import Gpu, Points
from ..gpus import SIZES
from .fit import Bounds, Predict, fit, held_out
from .tables import Rows

SLACK = 1.05  # clocks above the data sheet's, and its rounding
CACHE_BYTES = 0.5e9  # beyond it no chip's cache can hide the memory's bandwidth
SIDE, TOKENS = (1024, 32_768), 16_384  # products of the sizes that models have
CACHED = (1e6, 2e8)  # bytes between which a repeated measurement may find its rows in the cache
HEAD, GROUPED, CHUNK = 128, 4, (128, 32_768)
ENOUGH = 16  # rows below which nothing is fitted

_SHARE = (0.7, 0.02, 1.0)
_FLOOR = (5e-6, 0.0, 1e-3)


@dataclass(frozen=True)
class Figure:
    """One constant: where it goes in `Gpu`, its value, and the rows and errors of the fit that found it."""

    field: str
    dtype: str | None
    value: float
    n_fit: int
    n_held_out: int
    fitted_error: float
    held_out_error: float


@dataclass(frozen=True)
class OperatorFit:
    """The GPU with what the tables say, the figures, and per kind of row how many were read and dropped."""

    gpu: Gpu
    figures: tuple[Figure, ...]
    read: dict[str, int]
    dropped: dict[str, int]


def possible(rows: Rows, gpu: Gpu) -> np.ndarray:
    """Mask of the rows that the chip can do. Rows without a positive finite time are none of them."""
    fine = np.isfinite(rows.seconds) & (rows.seconds > 0)
    if rows.kind == "all_reduce":
        return fine
    seconds = np.where(fine, rows.seconds, 1.0)
    peak = np.full(len(rows), gpu.flops["bf16"])
    if "fp8" in gpu.flops:
        peak[np.char.startswith(rows.dtype.astype(str), "fp8")] = gpu.flops["fp8"]
    computed = rows.flops / seconds <= SLACK * peak
    moved = (rows.bytes < CACHE_BYTES) | (rows.bytes / seconds <= SLACK * gpu.bandwidth)
    if rows.kind == "mixture":  # uneven routing touches fewer experts than are counted
        moved = np.full(len(rows), True)
    return fine & computed & moved


def fit_operators(tables: Iterable[Rows], gpu: Gpu) -> OperatorFit:
    """Every constant that the rows allow; what they say nothing of stays as it was."""
    read: dict[str, int] = {}
    dropped: dict[str, int] = {}
    kinds: dict[str, list[Rows]] = {}
    for rows in tables:
        mask = possible(rows, gpu)
        read[rows.kind] = read.get(rows.kind, 0) + len(rows)
        dropped[rows.kind] = dropped.get(rows.kind, 0) + int((~mask).sum())
        kinds.setdefault(rows.kind, []).append(rows.where(mask))
    figures: list[Figure] = []
    for kind, finder in (("matmul", _products), ("mixture", _mixtures), ("prefill", _prefill), ("decode", _decode)):
        if kind in kinds:
            figures += finder(joined(kinds[kind]), gpu)
    found = _applied(gpu, figures)
    reduced = {tp: points for rows in kinds.get("all_reduce", []) for tp, points in all_reduce_points(rows).items()}
    return OperatorFit(replace(found, all_reduce_s=dict(gpu.all_reduce_s) | reduced), tuple(figures), read, dropped)


def joined(parts: Sequence[Rows]) -> Rows:
    """Rows of one kind from several tables; of `detail` what all of them have."""
    shared = set.intersection(*(set(part.detail) for part in parts))
    detail = {name: np.concatenate([part.detail[name] for part in parts]) for name in sorted(shared)}
    return Rows(
        parts[0].kind,
        np.concatenate([part.dtype for part in parts]),
        np.concatenate([part.flops for part in parts]),
        np.concatenate([part.bytes for part in parts]),
        np.concatenate([part.seconds for part in parts]),
        detail,
    )


def _applied(gpu: Gpu, figures: Sequence[Figure]) -> Gpu:
    for figure in figures:
        old = getattr(gpu, figure.field)
        new = figure.value if figure.dtype is None else dict(old) | {figure.dtype: figure.value}
        gpu = replace(gpu, **{figure.field: new})
    return gpu


def _products(rows: Rows, gpu: Gpu) -> list[Figure]:
    """floor + (operationsᵖ + bytesᵖ)^(1/p), by dtype."""
    m, n, k = (rows.detail[name] for name in "mnk")
    sized = (np.minimum(n, k) >= SIDE[0]) & (np.minimum(n, k) <= SIDE[1]) & (m <= TOKENS)
    out: list[Figure] = []
    for dtype in gpu.flops:
        of = rows.where((rows.dtype == dtype) & sized)
        operations, moved = of.flops / gpu.flops[dtype], of.bytes / gpu.bandwidth

        def predict(
            v: Mapping[str, float], operations: np.ndarray = operations, moved: np.ndarray = moved
        ) -> np.ndarray:
            p = v["overlap"]
            beside = (operations / v["matmul"]) ** p + (moved / v["streaming"]) ** p
            return v["matmul_floor_s"] + beside ** (1 / p)

        bounds = {"matmul": _SHARE, "streaming": _SHARE, "overlap": (3.0, 1.0, 8.0), "matmul_floor_s": _FLOOR}
        out += _figures(of, predict, bounds, dtype)
    return out


def _mixtures(rows: Rows, gpu: Gpu) -> list[Figure]:
    """As products, in bf16: experts are streamed as weights are, their operations have a peak of their own."""
    of = rows.where((rows.dtype == "bf16") & (rows.detail["num_tokens"] <= TOKENS))
    p = EXPERT_OVERLAP
    operations, moved = of.flops / gpu.flops["bf16"], of.bytes / (gpu.bandwidth * gpu.streaming["bf16"])
    floor_s = 2 * gpu.matmul_floor_s["bf16"]  # two of a layer's products are inside

    def predict(v: Mapping[str, float]) -> np.ndarray:
        return floor_s + v["expert_floor_s"] + ((operations / v["expert_matmul"]) ** p + moved**p) ** (1 / p)

    return _figures(of, predict, {"expert_matmul": _SHARE, "expert_floor_s": (3e-5, 0.0, 1e-3)}, None)


def _prefill(rows: Rows, gpu: Gpu) -> list[Figure]:
    """floor + pairs against peak + what goes in and out against bandwidth; the floor is that of decoding."""
    d = rows.detail
    plain = (rows.dtype == "bf16") & (d["window"] == 0) & (d["head_dim"] == HEAD)
    tokens = d["isl"] * d["batch_size"]
    grouped = d["num_heads"] >= GROUPED * d["num_key_value_heads"]
    mask = plain & grouped & (d["isl"] >= CHUNK[0]) & (tokens <= CHUNK[1])
    of = rows.where(mask)
    pairs = of.flops / gpu.flops["bf16"]
    sides = (4.0 * d["num_heads"] + 4.0 * d["num_key_value_heads"])[mask] * HEAD
    moved = tokens[mask] * sides / gpu.bandwidth
    bounds = {"prefill_attention": _SHARE, "attention_io": (0.5, 0.02, 4.0), "floor": _FLOOR}
    found = _figures(
        of, lambda v: v["floor"] + pairs / v["prefill_attention"] + moved / v["attention_io"], bounds, None
    )
    return [figure for figure in found if figure.field != "floor"]


def _decode(rows: Rows, gpu: Gpu) -> list[Figure]:
    """floor + rows read against bandwidth; rows that a cache may have held are left out."""
    d = rows.detail
    plain = (rows.dtype == "bf16") & (d["window"] == 0) & (d["head_dim"] == HEAD)
    grouped = d["num_heads"] >= GROUPED * d["num_key_value_heads"]
    of = rows.where(plain & grouped & ((rows.bytes <= CACHED[0]) | (rows.bytes >= CACHED[1])))
    moved = of.bytes / gpu.bandwidth
    bounds = {"decode_attention": _SHARE, "attention_floor_s": _FLOOR}
    return _figures(of, lambda v: v["attention_floor_s"] + moved / v["decode_attention"], bounds, None)


def _figures(rows: Rows, predict: Predict, bounds: Bounds, dtype: str | None) -> list[Figure]:
    """One fit, a figure for each of its constants; none where there are too few rows."""
    if len(rows) < ENOUGH:
        return []
    shapes = zip(*rows.detail.values(), strict=True)
    found = fit(predict, rows.seconds, bounds, held_out([" ".join(f"{v:g}" for v in shape) for shape in shapes]))
    counts = found.n_fit, found.n_held_out, found.fitted_error, found.held_out_error
    return [Figure(name, dtype, value, *counts) for name, value in found.values.items()]


def all_reduce_points(rows: Rows) -> dict[int, Points]:
    """Per tensor-parallel size: the median of messages up to the first of `SIZES`, then the times at the others.

    Between measured sizes a straight line in logarithms; sizes that were not reached are left out.
    """
    found: dict[int, Points] = {}
    for gpus in np.unique(rows.detail["gpus"]):
        mask = rows.detail["gpus"] == gpus
        order = np.argsort(rows.bytes[mask], kind="stable")
        size, seconds = rows.bytes[mask][order], rows.seconds[mask][order]
        small = size <= SIZES[0]
        if not small.any() or size[-1] < SIZES[1]:
            continue
        times = np.exp(np.interp(np.log(SIZES[1:]), np.log(size), np.log(seconds)))
        later = [(at, float(t)) for at, t in zip(SIZES[1:], times, strict=True) if at <= size[-1]]
        found[int(gpus)] = ((SIZES[0], float(np.median(seconds[small]))), *later)
    return found
