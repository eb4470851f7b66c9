"""`validate`: the simulator against identities (exact), closed forms (interval) and measured memory (reality).

An *exact* check holds at any seed. An *interval* check passes when the truth lies inside the simulation's own
interval from batch means, 99 % over all interval checks together (Bonferroni), and inside the stated limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import numpy as np

from ..console import table
from .closed_forms import batching_closed, batching_open, processor_sharing, single_server
from .identities import exact_checks
from .laws import Law, closed_queue, open_queue

BATCHES = 30
INTERVAL_CHECKS = 8
FAMILY_ERROR = 0.01
RELATIVE_LIMIT = 0.05


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison. `error` is relative for interval checks, absolute otherwise; it must not exceed `limit`."""

    name: str
    kind: str
    value: float
    truth: float
    error: float
    limit: float
    passed: bool


def absolute(name: str, kind: str, value: float, truth: float, limit: float = 0.0) -> Check:
    """A value that must equal the truth within `limit`."""
    error = abs(value - truth)
    return Check(name, kind, value, truth, error, limit, error <= limit)


def interval(name: str, samples: Sequence[float] | np.ndarray, truth: float) -> Check:
    """A mean whose batch-means interval must hold the truth; `limit` is its half-width, 5 % of the truth at most."""
    from scipy.special import stdtrit

    values = np.asarray(samples, dtype=float)
    size = len(values) // BATCHES
    means = values[: size * BATCHES].reshape(BATCHES, size).mean(axis=1)
    quantile = float(stdtrit(BATCHES - 1, 1 - FAMILY_ERROR / INTERVAL_CHECKS / 2))
    half = quantile * float(means.std(ddof=1)) / math.sqrt(BATCHES) / truth
    value = float(means.mean())
    error = abs(value - truth) / truth
    limit = min(half, RELATIVE_LIMIT)
    return Check(name, "interval", value, truth, error, limit, error <= limit)


def interval_checks(requests: int) -> Iterable[Check]:
    """The limits of continuous batching that have closed forms."""
    tokens = 200.0
    one = Law(step_s=0.005, cap=1)
    yield interval(
        "M/G/1: one sequence at a time, load 0.5, mean time",
        open_queue(one, 0.5, tokens, requests, seed=0).times,
        single_server(0.5, tokens * 0.005, 1 - 1 / tokens),
    )
    share = Law(sequence_s=0.005, cap=256)
    yield interval(
        "processor sharing: step = b·n, load 0.5, mean time",
        open_queue(share, 0.5, tokens, requests, seed=0).times,
        processor_sharing(0.5, tokens * 0.005),
    )
    flat = Law(step_s=0.01, cap=100_000)
    many = open_queue(flat, 10.0, tokens, requests, seed=0)
    yield interval("M/G/∞: step constant, mean time", many.times, tokens * 0.01 + 0.01 / 2)
    yield interval("M/G/∞: step constant, mean number present", many.present, 10.0 * (tokens * 0.01 + 0.01 / 2))
    batch = Law(step_s=0.01, sequence_s=0.0002, cap=16)
    for rate in (2.0, 4.0):
        yield interval(
            f"birth-death chain: step = a + b·n, 16 at once, {rate:g} requests/s, mean time",
            open_queue(batch, rate, tokens, requests, seed=0).times,
            batching_open(rate, 0.01, 0.0002, tokens, 16),
        )
    for agents in (16, 64):
        yield interval(
            f"birth-death chain, {agents} agents thinking 10 s, turns/s",
            closed_queue(batch, agents, 10.0, tokens, requests, seed=0).rates,
            batching_closed(agents, 10.0, 0.01, 0.0002, tokens, 16),
        )


def memory_checks() -> Iterable[Check]:
    """GiB left for the cache on an H100, against vLLM's own reports: with its activation peak, and with ours."""
    from .deployment import Deployment
    from .hardware import find_gpu
    from .models import find_geometry

    gpu = find_gpu("h100")
    for model, tp, dtype, activation, left in MEMORY_CASES:
        geometry = find_geometry(model)
        measured = Deployment(geometry, gpu, tp=tp, dtype=dtype, activation_gib=activation)
        name = f"vLLM's memory report, {model} {dtype} TP {tp}, GiB for the cache"
        yield absolute(f"{name}, its activation peak", "reality", measured.cache_gib(), left, 0.12)
        assumed = Deployment(geometry, gpu, tp=tp, dtype=dtype)
        yield absolute(f"{name}, ours", "reality", assumed.cache_gib(), left, 0.75)


# H100-80 at utilisation 0.9, one GPU's share: model, tensor-parallel size, weights, activation peak GiB, cache GiB.
MEMORY_CASES: tuple[tuple[str, int, str, float, float], ...] = (
    ("llama-3.1-8b", 1, "bf16", 4.76, 51.38),
    ("qwen3-0.6b", 1, "bf16", 5.56, 64.45),
    ("qwen3-32b", 1, "bf16", 5.64, 4.45),
    ("qwen3-32b", 2, "bf16", 5.64, 34.49),
    ("llama-3.1-70b", 2, "fp8", 4.84, 32.0),
)


def validate(requests: int = 40_000, tick: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """`{passed, checks[{name, kind, value, truth, error, limit, passed}]}`, seed 0. `requests` per interval check."""
    checks: list[Check] = []
    for name, value, truth, limit in exact_checks():
        checks.append(absolute(name, "exact", value, truth, limit))
        tick(name)
    for check in chain(memory_checks(), interval_checks(requests)):
        checks.append(check)
        tick(check.name)
    return {"passed": all(check.passed for check in checks), "checks": [asdict(check) for check in checks]}


def text(found: dict[str, Any]) -> str:
    """The checks as a table, the verdict first."""
    failed = sum(not check["passed"] for check in found["checks"])
    head = f"{len(found['checks'])} checks, " + ("all passed" if found["passed"] else f"{failed} failed")
    rows = [check | {"passed": "yes" if check["passed"] else "NO"} for check in found["checks"]]
    columns = ("name", "kind", "value", "truth", "error", "limit", "passed")
    return f"{head}\n\n{table(rows, {name: name for name in columns})}"


HEAD = """# Validation of the simulator

Printed by `kvmill validate --markdown`. *exact*: an identity of the engine, true at any seed. *interval*: a closed form
that lies inside the simulation's own interval from 30 batch means (99 % over all interval checks together, seed 0; the
limit is the half-width, 5 % of the truth at most). *reality*: a measured figure, with the stated tolerance in its unit.
"""


def markdown(found: dict[str, Any]) -> str:
    """The same as a page of the documentation."""
    failed = sum(not check["passed"] for check in found["checks"])
    rows = [
        f"| {c['name']} | {c['kind']} | {c['value']:.6g} | {c['truth']:.6g} | {c['error']:.2g} | {c['limit']:.2g} | "
        f"{'yes' if c['passed'] else 'NO'} |"
        for c in found["checks"]
    ]
    verdict = f"{len(rows)} checks, {'all passed' if not failed else f'{failed} failed'}."
    head = ["| check | kind | value | truth | error | limit | passed |", "|---|---|---:|---:|---:|---:|---|"]
    return "\n".join([HEAD, verdict, "", *head, *rows])
