"""docs/kernels.md from the figures of `kvmill bench kernels` and, where there are any, of `benchmarks/gpu_check.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

_METHOD = """Medians of calls that take turns with those of the rivals, in a new order each round, after a warm-up. On a
CPU every call gets inputs that no cache holds, a call whose threads had to wait for a core is made again, and malloc
keeps freed memory up to the limits that glibc itself comes to (32 MiB a block, 64 MiB of the heap), so that no form
pays for what the one before has freed. GB/s counts every input and output once; TFLOP/s the matrix products as they run
(the Triton `attention_mass` runs them twice and keeps no weights). The share of the roofline is the larger of bytes
over the measured copy bandwidth and operations over the measured rate of a large matrix product, divided by the median.
`naive` is the operation as its formula reads; the best torch form is the quickest of SDPA, `index_select` and the like,
and `torch.compile`. A factor is shown only where the operation's tests pass on the same source."""

_WHY = {
    "decode_attention": """`decode_attention` on a CPU saves the three copies of keys and values that SDPA with repeated
KV writes and reads. Of kvmill's 1.1 ms at 8k about 0.4 are the product with the keys, 0.45 that with the values, 0.1
softmax and log-sum-exps, and the rest some ten calls of torch whose code is no longer in the caches. A product of three
rows reads 16 GB/s on two cores, a mere sum of the same keys 33: what is missing is missing in torch's product of a few
rows. SDPA on folded heads, torch's best, takes about as long, without log-sum-exps and activity, and so do its kernel
with the keys split over both cores, batches of narrower products, and a product per query head. The rival is timed at
its best: where its 36 MiB of copies come as fresh pages, which glibc decides by what was freed before, it takes 6 to 14
ms instead of 3.""",
    "compact_kv": """`compact_kv` on a CPU is a gather of short rows: a kept row of 64 float32 is four cache lines,
the rows between are skipped, and the hardware fetches lines ahead that nobody needs. `index_select`, the gather that
torch has, reaches about as much of a copy's bandwidth on the same rows (last column): what is missing is missing in
the gather, not around it. Longer rows and higher keep ratios come closer.""",
}

_NO_GPU = """Nothing is claimed: the Triton forms have run under Triton's interpreter only.
`python benchmarks/gpu_check.py --out FILE` is made to verify and time them on a GPU machine in six minutes at most,
from a bare checkout."""


def page(found: Row, gpu: Row | None = None) -> str:
    """The whole page. `found` is what `benchmarks.kernels.figures` returns, `gpu` the file of `gpu_check`."""
    parts = [
        "# Kernels, measured",
        f"Written by `kvmill bench kernels --write`; do not edit. {_machine(found)}.",
        _METHOD,
        f"## On a CPU\n\n{_ceilings(found['roofline'])}",
        aims(found["targets"]),
        *(_WHY[aim["op"]] for aim in found["targets"] if aim["met"] is False and aim["op"] in _WHY),
        table(found["rows"]),
        "## On a GPU",
    ]
    if gpu is None:
        return "\n\n".join([*parts, _NO_GPU]) + "\n"
    wrong = [op for op, reason in gpu["verified"].items() if reason]
    right = sum(row["passed"] for row in gpu["cases"])
    told = f"{_machine(gpu)}: {right:,} of {len(gpu['cases']):,} comparisons with the float64 reference are right"
    told += f"; wrong or not finished: {', '.join(wrong)}." if wrong else "."
    return "\n\n".join([*parts, told, aims(gpu["targets"]), table(gpu["rows"])]) + "\n"


def aims(targets: Sequence[Row]) -> str:
    """The targets as a table."""
    lines = ["| target | value | at least | |", "|---|---:|---:|---|"]
    for aim in targets:
        said = {None: "not measured", True: "met", False: "**not met**"}[aim["met"]]
        lines.append(f"| `{aim['op']}`, {aim['what']} | {_number(aim['value'])} | {aim['target']:g} | {said} |")
    return "\n".join(lines)


def table(rows: Sequence[Row]) -> str:
    """A line per operation and shape for each of kvmill's forms."""
    lines = [
        "| operation | shape | form | ms | GB/s | TFLOP/s | of roofline | × naive | × best torch |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        if row["provider"].startswith("kvmill") and row["seconds"] is not None:
            figures = (
                f"{row['seconds'] * 1e3:.3g}",
                f"{row['gb_per_s']:.3g}",
                _number(row["tflop_per_s"]),
                f"{row['roofline_share']:.0%}",
                _number(row["speedup_naive"]),
                _number(row["speedup_torch"]),
            )
            form = row["provider"].removeprefix("kvmill ")
            lines.append(f"| `{row['op']}` | {row['shape']} {row['dtype']} | {form} | {' | '.join(figures)} |")
    return "\n".join(lines)


def _machine(found: Row) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items() if number)
    threads = f"{found['threads']} torch thread{'s' * (found['threads'] != 1)}, " if found["device"] == "cpu" else ""
    return f"{found['device_name']}, {threads}{versions}, {found['date']}"


def _ceilings(roofline: Row) -> str:
    rates = ", ".join(f"{name} products {rate:.3g} TFLOP/s" for name, rate in roofline["tflop_per_s"].items())
    return f"Measured ceilings: copy {roofline['copy_gb_per_s']:.1f} GB/s, {rates}."


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
