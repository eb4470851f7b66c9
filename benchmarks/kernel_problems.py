"""The problems of every operation: ragged shapes, every option, and the answers that count. Run by `kernel_cases`."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .kernel_cases import CLOSE, Case, Draw, Operation, Problem

COUNTS = (63, 129, 1000)
DIMS = (64, 80, 128, 256, 512)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LONG = (16_384, 128)
"""One long context: sums over many keys."""
SMALL = ((63, 80, 0), (129, 64, 2), (63, 128, 1))
"""(n, D, which dtype) of the cases that an interpreter can do."""
GROUPS = (1, 3, 8)
REDUCTIONS = ("rms", "mean", "max", "sum")
FITTED = 2e-3
"""A fit solves equations of condition 1/ridge: float32 leaves that much of β and V_C undecided."""


def cases(op: str, *, full: bool = True) -> Iterator[Case]:
    """Every problem of an operation: all shapes and dtypes, or (not `full`) few small ones."""
    build, allowed = PROBLEMS[op]
    sizes = list(itertools.product(COUNTS, DIMS, range(3))) if full else list(SMALL)
    if full and op not in _NOT_LONG:
        sizes += [(*LONG, kind) for kind in range(3)]
    # Shuffled, so that no option always meets the same dtype or size.
    numbers = random.Random(0).sample(range(len(sizes)), len(sizes)) if full else range(len(sizes))
    for number, (n, dim, kind) in zip(numbers, sizes, strict=True):
        dtype = DTYPES[kind]
        name, problem = build(number, n, dim)
        yield Case(op, f"n {n}, D {dim}, {name}, {str(dtype).removeprefix('torch.')}", dtype, problem, allowed)


def _rows(number: int) -> tuple[int, int, int]:
    """(KV heads, query heads per KV head, query tokens) of the number-th problem."""
    return 1 + number % 2, GROUPS[number % 3], (1, 5, 16)[number // 3 % 3]


def _mass(number: int, n: int, dim: int) -> tuple[str, Problem]:
    heads, group, length = _rows(number)
    rows, reduction = group * length, REDUCTIONS[number % 4]
    option = ("plain", "limits", "bias", "log_total", "positions")[number % 5]

    def problem(draw: Draw, f: Operation) -> Sequence[Tensor | None]:
        queries, keys = draw.normal(heads, rows, dim, scale=2), draw.normal(heads, n, dim)
        more = _option(draw, option, heads, rows, n)
        if reduction == "sum":
            more["row_weights"] = draw.floats(heads, rows).abs()
        return (f(queries, keys, dim**-0.5, reduction=reduction, **more),)

    return f"G·L {rows}, {reduction}, {option}", problem


def _option(draw: Draw, option: str, heads: int, rows: int, n: int) -> dict[str, object]:
    if option == "limits":
        return {"limits": draw.integers(0, n + 1, rows)}  # some rows may see nothing
    if option == "bias":
        return {"bias": draw.floats(heads, n)}
    if option == "log_total":
        return {"log_total": draw.floats(heads, rows) + 5}
    if option == "positions":
        return {"positions": (draw.integers(0, 2 * n, rows), draw.integers(0, n, n)), "distance": n // 4}
    return {}


def _totals(number: int, n: int, dim: int) -> tuple[str, Problem]:
    heads, group, length = _rows(number)
    rows, option = group * length, ("plain", "limits", "bias")[number % 3]

    def problem(draw: Draw, f: Operation) -> Sequence[Tensor | None]:
        queries, keys = draw.normal(heads, rows, dim, scale=2), draw.normal(heads, n, dim)
        return (f(queries, keys, dim**-0.5, **_option(draw, option, heads, rows, n)),)

    return f"G·L {rows}, {option}", problem


def _use(number: int, n: int, dim: int) -> tuple[str, Problem]:
    heads, group, _ = _rows(number)
    length, first = 4, number % 2 * 9

    def problem(draw: Draw, f: Operation) -> Sequence[Tensor | None]:
        queries, keys = draw.normal(heads * group, length, dim, scale=2), draw.normal(heads, n, dim)
        limits = torch.arange(n - length + 1, n + 1, device=draw.device)
        return f(queries, keys, dim**-0.5, limits=limits, positions=limits + 7, first=first)

    return f"G {group}, first {first}", problem


def _decode(number: int, n: int, dim: int) -> tuple[str, Problem]:
    heads, group, length = 1 + number % 2, GROUPS[number % 3], 1 + number // 2 % 3
    ragged, biased, width = number % 2 == 1, number % 3 == 1, 64 if number % 5 == 4 else dim

    def problem(draw: Draw, f: Operation) -> Sequence[Tensor | None]:
        queries = draw.normal(heads * group, length, dim, scale=2)
        keys, values = draw.normal(heads, n, dim), draw.normal(heads, n, width)
        lengths = None
        if ragged:
            lengths = draw.integers(0, n + 1, heads)
            hidden = torch.arange(n, device=draw.device)[None, :] >= lengths[:, None]
            keys, values = (x.masked_fill(hidden[:, :, None], float("nan")) for x in (keys, values))
        bias = draw.floats(heads, n) if biased else None
        return f(queries, keys, values, dim**-0.5, lengths=lengths, bias=bias, activity=number % 4 < 2)

    told = [f"G {group}, L {length}", *(["ragged"] if ragged else []), *(["bias"] if biased else [])]
    return ", ".join([*told, f"D_v {width}"]), problem


def _fit(number: int, n: int, dim: int, *, held: bool = False) -> tuple[str, Problem]:
    heads, rows = 1 + number % 2, (48, 130, 17)[number % 3]
    keep, weighted, fixed = max(1, n // 5), number % 2 == 0, number % 3 == 2

    def problem(draw: Draw, f: Operation) -> Sequence[Tensor | None]:
        queries, keys, values = draw.normal(heads, rows, dim), draw.normal(heads, n, dim), draw.normal(heads, n, dim)
        index = draw.ascending(heads, n, keep)
        more = {"row_weights": draw.floats(rows).abs() if weighted else None}
        more["fixed"] = draw.integers(0, 4, heads, keep) == 0 if fixed else None
        given = (torch.arange(rows, device=draw.device) % 4 == 0,) if held else ()
        bias, new, *worse = f(queries, keys, values, index, dim**-0.5, *given, **more)
        return bias.exp(), new, *worse

    return f"R {rows}, m {keep}" + ", weighted" * weighted + ", fixed" * fixed, problem


def _heldout(number: int, n: int, dim: int) -> tuple[str, Problem]:
    return _fit(number, n, dim, held=True)


def _compact(number: int, n: int, dim: int) -> tuple[str, Problem]:
    heads, layers, keep = 1 + number % 3, (0, 2, 3)[number % 3], (n + 4) // 5 + number % 2
    shared, in_place, ragged = number % 4 == 1, number % 5 in (2, 4), number % 7 == 3
    listed = layers > 0 and number % 2 == 1

    def problem(draw: Draw, f: Operation) -> Sequence[Tensor | None]:
        lead = (layers, heads) if layers else (heads,)
        keys, values = (draw.normal(*lead, n, dim) for _ in range(2))
        index = draw.ascending(1, n, keep)[0] if shared else draw.ascending(heads * max(1, layers), n, keep)
        index = index if shared else index.view(*lead, keep)
        more = {"lengths": draw.integers(0, keep + 1, *lead)} if ragged and not in_place else {}
        given = (list(keys), list(values)) if listed else (keys, values)
        found = f(*given, index, in_place=in_place, **more)
        return [torch.stack(list(x)) if layers else x for x in found]

    told = ["shared" if shared else "per head"] + ["in place"] * in_place + ["ragged"] * ragged + ["listed"] * listed
    return f"H {heads}, layers {layers or 'none'}, m {keep}, {', '.join(told)}", problem


def _blocks(number: int, n: int, dim: int) -> tuple[str, Problem]:
    heads, block, keep = 1 + number % 2, (16, 64)[number % 2], max(1, n // 5)
    layers = (0, 2)[number % 2]

    def problem(draw: Draw, f: Operation) -> Sequence[Tensor | None]:
        used = -(-n // block)
        lead = (layers,) if layers else ()
        keys, values = (draw.normal(*lead, used + 3, heads, block, dim) for _ in range(2))
        table = draw.ascending(1, used + 3, used)[0].flip(0)
        index = draw.ascending(1, n, keep)[0]
        held, freed = f(keys, values, table, n, index)
        slots = torch.arange(keep, device=draw.device)
        at = held[slots // block]
        moved = [x.movedim(-4, 0)[at, ..., slots % block, :] for x in (keys, values)]
        return held, freed, *moved

    return f"H {heads}, block {block}, layers {layers or 'none'}", problem


def _merge(number: int, n: int, dim: int) -> tuple[str, Problem]:
    heads, clusters, weighted = 1 + number % 3, max(1, n // 5), number % 2 == 1

    def problem(draw: Draw, f: Operation) -> Sequence[Tensor | None]:
        keys, values = draw.normal(heads, n, dim), draw.normal(heads, n, dim)
        labels = draw.integers(0, clusters, heads, n)
        more = {}
        if weighted:
            more = {"key_weights": draw.floats(heads, n).abs(), "value_weights": draw.floats(heads, n).abs()}
            more["counts"] = draw.integers(1, 5, heads, n).to(more["key_weights"].dtype)
        return f(keys, values, labels, clusters, **more)

    return f"H {heads}, m {clusters}" + ", weighted" * weighted, problem


def _clusters(number: int, n: int, dim: int) -> tuple[str, Problem]:
    heads, clusters, batch = 1 + number % 2, 7 + number % 5, 32

    def problem(draw: Draw, f: Operation) -> Sequence[Tensor | None]:
        home = draw.integers(0, clusters, heads, n).cpu()
        keys = draw.given(20 * torch.eye(clusters, dim)[home] + draw.raw(heads, n, dim), draw.dtype)
        weights = draw.floats(heads, n).abs() if number % 2 else None
        start, batches = draw.ascending(heads, n, clusters), draw.integers(0, n, 4, batch)
        return (f(keys, clusters, start=start, batches=batches, weights=weights),)

    return f"H {heads}, m {clusters}", problem


def _rotate(number: int, n: int, dim: int) -> tuple[str, Problem]:
    heads, half = 1 + number % 3, dim // (2, 8, 4)[number % 3]
    far, shared = number % 2 == 1, number % 4 < 2

    def problem(draw: Draw, f: Operation) -> Sequence[Tensor | None]:
        keys = draw.normal(heads, n, dim)
        offsets = draw.integers(-(10**6) if far else -50, 10**6 if far else 50, *(() if shared else (heads,)), n)
        frequencies = 10_000.0 ** (-torch.arange(half, device=draw.device) / half)
        return (f(keys, offsets, frequencies),)

    return f"H {heads}, F {half}, {'far' if far else 'near'}, {'shared' if shared else 'own'} offsets", problem


def _topk(number: int, n: int, _: int) -> tuple[str, Problem]:
    heads, keep, kernel = 1 + number % 3, max(1, n // 5), (1, 5, 7)[number % 3]
    pooling, forced = ("mean", "max")[number % 2], number % 3 != 0

    def problem(draw: Draw, f: Operation) -> Sequence[Tensor | None]:
        # Multiples of 1/128 with many ties: every mean of them has the same order in every precision.
        scores = draw.given((draw.raw(heads, n).sigmoid() * 128).round() / 128, draw.dtype)
        must = (draw.integers(0, 8, heads, n) == 0) & (torch.arange(n, device=draw.device) % 2 == 0) if forced else None
        return (f(scores, keep, must, kernel=kernel, pooling=pooling),)

    return f"H {heads}, m {keep}, {pooling} {kernel}" + ", forced" * forced, problem


PROBLEMS = {
    "attention_mass": (_mass, CLOSE),
    "log_totals": (_totals, CLOSE),
    "attention_use": (_use, CLOSE),
    "decode_attention": (_decode, CLOSE),
    "ridge_fit": (_fit, FITTED),
    "heldout_fit": (_heldout, FITTED),
    "compact_kv": (_compact, CLOSE),
    "compact_blocks": (_blocks, CLOSE),
    "merge_kv": (_merge, CLOSE),
    "k_means": (_clusters, CLOSE),
    "rotate_keys": (_rotate, CLOSE),
    "pool_topk": (_topk, CLOSE),
}
_NOT_LONG = ("ridge_fit", "heldout_fit", "k_means", "attention_use")
