"""Contests as rows: seconds, rates, the share of the roofline, and the targets of the kernels that they decide."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .kernel_contests import Contest, contests
from .kernel_shapes import Shape
from .machine import identity
from .roofline import Roofline
from .timing import FEWEST, Times, compared

Row = dict[str, Any]
ROTATED_BYTES = {"cpu": 1 << 27, "cuda": 1 << 28}
"""Calls go round input sets of this size together, several times a large cache."""
MOST_SETS = 8

ON_CPU = (
    ("attention_mass", "naive", 2.0, "times as fast as softmax(QKᵀ) written naively"),
    ("decode_attention", "sdpa repeated", 3.0, "times as fast as SDPA with repeated KV"),
    ("compact_kv", "copy", 0.7, "of the bandwidth of a plain copy"),
)
ON_GPU = (
    ("attention_mass", "tflop_per_s", 0.5, "of the dense bfloat16 matmul rate"),
    ("compact_kv", "gb_per_s", 0.7, "of the copy bandwidth"),
    ("decode_attention", "gb_per_s", 0.7, "of the copy bandwidth"),
)


def rows_of(
    op: str, device: torch.device, roofline: Roofline, *, size: str, budget_s: float, compiled: bool, **more: Any
) -> Iterator[Row]:
    """One row per contest and provider, without speed-ups; `more` goes into each. A form that fails has a note.

    `compiled` has the first shape compiled too: each takes torch.compile seconds.
    """
    for number, contest in enumerate(contests(op, device, size=size)):
        kept = compiled and number == 0
        forms = {name: form for name, form in contest.forms.items() if kept or name != "compiled"}
        given = [contest.inputs(seed) for seed in range(_sets(contest, device))]
        fewest = 2 if size == "toy" else FEWEST
        called = {name: lambda call, form=form: form(*call[0], **call[1]) for name, form in forms.items()}
        for provider, times in compared(called, given, device, budget_s, fewest).items():
            yield _row(contest, provider, times, roofline) | identity(device) | more


def with_speedups(rows: Sequence[Row], verified: Mapping[str, str | None]) -> list[Row]:
    """The rows with `speedup_naive` and `speedup_torch` for kvmill's forms: null unless the operation is `verified`.

    `verified` says for each operation what is wrong, None where its tests pass.
    """
    out = []
    for row in rows:
        rivals = {r["provider"]: r["seconds"] for r in rows if _same(r, row) and r["seconds"] is not None}
        wrong = verified.get(row["op"], "not verified")
        speedups: Row = {"verified": wrong is None, "speedup_naive": None, "speedup_torch": None}
        if row["provider"].startswith("kvmill") and wrong is None and row["seconds"] and not row.get("disturbed"):
            best = [s for name, s in rivals.items() if not name.startswith(("kvmill", "naive", "copy"))]
            speedups["speedup_naive"] = _over(rivals.get("naive"), row["seconds"])
            speedups["speedup_torch"] = _over(min(best, default=None), row["seconds"])
        if row["provider"].startswith("kvmill") and wrong is not None:
            speedups["note"] = "; ".join(filter(None, (row["note"], "not verified, so no speed-up")))
        out.append({**row, **speedups})
    return out


def targets(rows: Sequence[Row], roofline: Roofline, device: str) -> list[Row]:
    """The targets of the device: value, target, met; a value is null where nothing was measured or verified.

    Of several shapes the worst counts. On a CPU the ratios compare providers of one contest; on a GPU rates compare
    with the roofline.
    """
    out = []
    for op, what, least, words in ON_CPU if device == "cpu" else ON_GPU:
        mine = [r for r in rows if r["op"] == op and r["target_shape"] and r["provider"] == _best_form(device)]
        good = [r for r in mine if r["seconds"] and r.get("verified") and not r.get("disturbed")]
        values = [v for r in good if (v := _value(r, rows, what, roofline, device)) is not None]
        value = min(values, default=None)
        met = None if value is None else value >= least
        shapes = [f"{r['shape']} {r['dtype']}" for r in mine]
        out.append({"op": op, "what": words, "value": value, "target": least, "met": met, "shapes": shapes})
    return out


def _best_form(device: str) -> str:
    return "kvmill torch" if device == "cpu" else "kvmill triton"


def _value(row: Row, rows: Sequence[Row], what: str, roofline: Roofline, device: str) -> float | None:
    if device == "cpu":
        rival = next((r["seconds"] for r in rows if _same(r, row) and r["provider"] == what), None)
        return _over(rival, row["seconds"])
    rate = row[what]
    if rate is None:
        return None
    ceiling = roofline.copy_bytes_per_s / 1e9 if what == "gb_per_s" else roofline.flops_per_s[row["dtype"]] / 1e12
    return rate / ceiling


def _row(contest: Contest, provider: str, times: Times | str, roofline: Roofline) -> Row:
    shape: Shape = contest.shape
    row: Row = {"op": contest.op, "provider": provider, "shape": str(shape), "dtype": shape.dtype}
    row |= {"target_shape": shape.target, "note": None}
    figures = ("seconds", "seconds_p20", "seconds_p80", "repeats", "host_s", "gb_per_s", "tflop_per_s")
    if isinstance(times, str):
        return {**row, **dict.fromkeys(figures), "roofline_share": None, "note": times}
    products = contest.products * contest.passes.get(provider, 1)
    floor = roofline.floor_s(contest.moved, contest.products, shape.dtype)
    return {
        **row,
        "seconds": times.seconds,
        "seconds_p20": times.p20_s,
        "seconds_p80": times.p80_s,
        "repeats": times.repeats,
        "host_s": times.host_s,
        "gb_per_s": contest.moved / times.seconds / 1e9,
        "tflop_per_s": products / times.seconds / 1e12 if products else None,
        "roofline_share": floor / times.seconds,
    }


def _sets(contest: Contest, device: torch.device) -> int:
    args, options = contest.inputs(0)
    size = sum(x.nbytes for x in _tensors([*args, *options.values()]))
    return min(MOST_SETS, max(1, math.ceil(ROTATED_BYTES[device.type] / max(size, 1))))


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _same(one: Row, other: Row) -> bool:
    return all(one[key] == other[key] for key in ("op", "shape", "dtype"))


def _over(rival_s: float | None, mine_s: float) -> float | None:
    return None if rival_s is None else rival_s / mine_s
