"""Efficiencies and floors of a GPU from operator tables, each found where it binds; impossible rows are dropped.

A row is impossible when its operations take less time than the dense peak allows, or when it moves more bytes than any
cache holds and faster than the memory can. Such rows exist in published tables, up to hundreds of times too fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..gpu import Gpu, Points
from ..gpus import SIZES
from .fit import fit, held_out
from .tables import Rows

SLACK = 1.05  # clocks above the data sheet's, and its rounding
CACHE_BYTES = 0.5e9  # beyond it no chip's cache can hide the memory's bandwidth
LARGE, FEW, STREAMED, LONG = 4096, 16, 8192.0**2, 4096
READ_BYTES, KV_HEADS, HEAD = 2e8, 8, 128
FLOOR_BYTES, FLOOR_SEQUENCES = 1e6, 8
ENOUGH = 8  # rows below which nothing is fitted


@dataclass(frozen=True)
class Figure:
    """One constant: where it goes in `Gpu`, its value, the rows behind it, and their errors."""

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
    seconds = np.where(fine, rows.seconds, 1.0)
    peak = np.array([gpu.flops.get(str(d).split("_")[0], gpu.flops["bf16"]) for d in rows.dtype])
    computed = rows.flops / seconds <= SLACK * peak
    moved = (rows.bytes < CACHE_BYTES) | (rows.bytes / seconds <= SLACK * gpu.bandwidth)
    return fine & (computed & moved if rows.kind != "all_reduce" else True)


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
    for rows in kinds.get("matmul", []):
        figures += _matmul(rows, gpu)
    for rows in kinds.get("prefill", []):
        figures += _prefill(rows, gpu)
    for rows in kinds.get("decode", []):
        figures += _decode(rows, gpu)
    found = apply(gpu, figures)
    reduced = {tp: points for rows in kinds.get("all_reduce", []) for tp, points in all_reduce_points(rows).items()}
    return OperatorFit(replace(found, all_reduce_s=dict(gpu.all_reduce_s) | reduced), tuple(figures), read, dropped)


def apply(gpu: Gpu, figures: Sequence[Figure]) -> Gpu:
    """The GPU with these figures in place of its own."""
    for figure in figures:
        if figure.dtype is None:
            gpu = replace(gpu, **{figure.field: figure.value})
        else:
            gpu = replace(gpu, **{figure.field: dict(getattr(gpu, figure.field)) | {figure.dtype: figure.value}})
    return gpu


def _matmul(rows: Rows, gpu: Gpu) -> list[Figure]:
    """Large products against peak, products of few rows against bandwidth, small ones as a floor (bf16)."""
    out: list[Figure] = []
    m, n, k = (rows.detail[name] for name in "mnk")
    large = min(LARGE, float(m.max()))  # profiles end at the engine's token budget
    for dtype in gpu.flops:
        of = rows.dtype == dtype
        most = of & (m >= large) & (m >= LARGE / 2) & (n >= LARGE) & (k >= LARGE)
        out += _share("matmul", dtype, rows.where(most), rows.flops[most] / gpu.flops[dtype])
        few = of & (m <= FEW) & (n * k >= STREAMED)
        out += _share("streaming", dtype, rows.where(few), rows.bytes[few] / gpu.bandwidth)
    small = (rows.dtype == "bf16") & (rows.bytes < FLOOR_BYTES) & (m <= FEW)
    return out + _floor("matmul_floor_s", rows.where(small))


def _prefill(rows: Rows, gpu: Gpu) -> list[Figure]:
    """Causal attention of long prompts against peak."""
    isl = rows.detail["isl"]
    plain = (rows.dtype == "bf16") & (rows.detail["window"] == 0) & (rows.detail["head_dim"] == HEAD)
    mask = plain & (isl >= min(LONG, float(isl.max())))
    return _share("prefill_attention", None, rows.where(mask), rows.flops[mask] / gpu.flops["bf16"])


def _decode(rows: Rows, gpu: Gpu) -> list[Figure]:
    """Reading long contexts against bandwidth, short ones as a floor."""
    plain = (rows.dtype == "bf16") & (rows.detail["window"] == 0) & (rows.detail["num_key_value_heads"] == KV_HEADS)
    mask = plain & (rows.bytes > READ_BYTES)
    small = plain & (rows.bytes < FLOOR_BYTES) & (rows.detail["batch_size"] <= FLOOR_SEQUENCES)
    read = _share("decode_attention", None, rows.where(mask), rows.bytes[mask] / gpu.bandwidth)
    return read + _floor("attention_floor_s", rows.where(small))


def _share(field: str, dtype: str | None, rows: Rows, ideal_s: np.ndarray) -> list[Figure]:
    """The share of an ideal that the rows reach: ideal seconds/share, fitted in logarithms."""
    return _figure(field, dtype, rows, lambda value: ideal_s / value, (0.5, 0.01, 1.0))


def _floor(field: str, rows: Rows) -> list[Figure]:
    """One constant time."""
    return _figure(field, None, rows, lambda value: np.full(len(rows), value), (1e-5, 1e-7, 1e-3))


def _figure(
    field: str,
    dtype: str | None,
    rows: Rows,
    seconds_of: Callable[[float], np.ndarray],
    bounds: tuple[float, float, float],
) -> list[Figure]:
    if len(rows) < ENOUGH:
        return []
    shapes = zip(*rows.detail.values(), strict=True)
    apart = held_out([" ".join(f"{value:g}" for value in shape) for shape in shapes])
    found = fit(lambda values: seconds_of(values["value"]), rows.seconds, {"value": bounds}, apart)
    errors = found.fitted_error, found.held_out_error
    return [Figure(field, dtype, found.values["value"], found.n_fit, found.n_held_out, *errors)]


def all_reduce_points(rows: Rows) -> dict[int, Points]:
    """Per tensor-parallel size: the median of messages up to the first of `SIZES`, then the times at the others.

    Between measured sizes a straight line in logarithms; sizes that were not reached are left out.
    """
    found: dict[int, Points] = {}
    for gpus in np.unique(rows.detail["gpus"]):
        mask = rows.detail["gpus"] == gpus
        order = np.argsort(rows.bytes[mask])
        size, seconds = rows.bytes[mask][order], rows.seconds[mask][order]
        small = size <= SIZES[0]
        if not small.any() or size[-1] < SIZES[1]:
            continue
        points = [(SIZES[0], float(np.median(seconds[small])))]
        for at in SIZES[1:]:
            if at <= size[-1]:
                points.append((at, float(np.exp(np.interp(np.log(at), np.log(size), np.log(seconds))))))
        found[int(gpus)] = tuple(points)
    return found
