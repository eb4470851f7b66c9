"""`validate`: the simulator against identities (exact), closed forms (interval) and measured runs (reality).

An *exact* check holds at any seed. An *interval* check passes when the truth lies inside the simulation's own
interval from batch means, 99 % over all interval checks together (Bonferroni), and that interval is narrow enough to
be a test. A *reality* check compares with what was measured on machines.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from ..console import table
from ..errors import unknown
from .estimates import Estimate
from .identities import Identity, exact_checks
from .memory_reports import assumed_peaks, measured_peaks
from .paper_table import table_checks
from .queues import QUEUES, Queue
from .reality.checks import reality_checks
from .reality.sensitivity import sensitivity
from .reality.shared import Comparison, Shared
from .sample_path import sample_path_checks
from .trends import trend_checks

KINDS = ("exact", "interval", "reality")
FAMILY_ERROR = 0.01
Found = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison: `passed` when `error` is at most `limit`, and for interval checks `limit` at most `asked`.

    `error` is relative for interval and reality checks (signed in `signed`), absolute for exact ones.
    """

    name: str
    kind: str
    value: float
    truth: float
    error: float
    limit: float
    passed: bool
    asked: float | None = None
    signed: float | None = None


def absolute(name: str, kind: str, value: float, truth: float, limit: float = 0.0) -> Check:
    """A value that must equal the truth within `limit`."""
    error = abs(value - truth)
    return Check(name, kind, value, truth, error, limit, error <= limit)


def measured(found: Comparison) -> Check:
    """A measured value that is to be met."""
    if found.error == "absolute":
        return absolute(found.name, "reality", found.value, found.truth, found.limit)
    signed = found.value / found.truth - 1
    error = abs(signed)
    return Check(
        found.name, "reality", found.value, found.truth, error, found.limit, error <= found.limit, signed=signed
    )


def interval(found: Estimate, family: int) -> Check:
    """A mean whose interval must hold the truth, one of `family` such checks; `limit` is its half-width."""
    value, half = found.interval(FAMILY_ERROR / family)
    error, limit = abs(value / found.truth - 1), half / found.truth
    passed = error <= limit <= found.widest
    return Check(found.name, "interval", value, found.truth, error, limit, passed, found.widest)


def interval_checks(share: float, workers: int, tick: Callable[[str], None]) -> list[Check]:
    """All queues; `share` of the run lengths. Two processes at most: the figures do not depend on how many."""
    found: list[Estimate] = []
    for estimates in _spread(partial(Queue.run, share=share), QUEUES, workers):
        found += estimates
        tick(estimates[0].name)
    return [interval(one, len(found)) for one in found]


def _spread(work: Callable[[Queue], list[Estimate]], queues: Sequence[Queue], workers: int) -> Iterable[list[Estimate]]:
    if workers < 2:
        yield from map(work, queues)
        return
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(work, queues)


def accounts() -> Iterable[Identity]:
    """Memory as engines report it, and the paper's table from its own inputs."""
    yield from measured_peaks()
    yield from table_checks()


def validate(
    tick: Callable[[str], None] = lambda _: None,
    *,
    only: str | None = None,
    data: Path | str | None = None,
    share: float = 1.0,
    workers: int = 1,
) -> Found:
    """`{passed, checks[{name, kind, value, truth, error, limit, passed, …}], skipped[{name, reason}], sensitivity[]}`.

    Seed 0. `only`: one kind. `data`: a folder of recorded runs, by default what KVMILL_SHARED_DATA names; runs that
    are not there are skipped with the reason. `share`: part of the interval checks' run lengths (wider intervals are
    then asked for). UserError on an unknown kind, or a folder that is not there.
    """
    if only is not None and only not in KINDS:
        raise unknown("kind of check", only, KINDS)
    shared = Shared.find(data)
    checks: list[Check] = []
    swings: list[dict[str, Any]] = []
    if only in (None, "exact"):
        for name, value, truth, limit in chain(exact_checks(), sample_path_checks(), trend_checks(), measured_peaks()):
            checks.append(absolute(name, "exact", value, truth, limit))
            tick(name)
    if only in (None, "interval"):
        checks += interval_checks(share, workers, tick)
    if only in (None, "reality"):
        checks += [absolute(name, "reality", value, truth, limit) for name, value, truth, limit in assumed_peaks()]
        for found in reality_checks(shared):
            checks.append(measured(found))
            tick(found.name)
        swings = sensitivity(shared)
    return {
        "passed": all(check.passed for check in checks),
        "checks": [asdict(check) for check in checks],
        "skipped": [{"name": name, "reason": reason} for name, reason in shared.skipped],
        "sensitivity": swings,
        "share": share,
    }


def text(found: Found) -> str:
    """The checks as a table, the verdict first; then what was skipped, and what the recorded runs rest on."""
    rows = [check | {"passed": "yes" if check["passed"] else "NO"} for check in found["checks"]]
    columns = ("name", "kind", "value", "truth", "error", "limit", "passed")
    parts = [verdict(found), table(rows, {name: name for name in columns})]
    if found["skipped"]:
        parts.append("\n".join(f"skipped: {row['name']}: {row['reason']}" for row in found["skipped"]))
    if found["sensitivity"]:
        parts.append(table([_swing(row) for row in found["sensitivity"]], {name: name for name in SWING}))
    return "\n\n".join(parts)


def verdict(found: Found) -> str:
    """How many checks, and how many failed or were left out."""
    failed = sum(not check["passed"] for check in found["checks"])
    left = f"; {len(found['skipped'])} skipped" if found["skipped"] else ""
    return f"{len(found['checks'])} checks, {f'{failed} failed' if failed else 'all passed'}{left}."


SWING = ("run", "constant", "times", "TTFT", "TPOT", "E2E")


def _swing(row: dict[str, Any]) -> dict[str, str]:
    errors = {metric.upper(): f"{row[metric]:+.1%}" for metric in ("ttft", "tpot", "e2e")}
    return {"run": row["run"], "constant": row["constant"] or "as it is", "times": f"{row['factor']:g}"} | errors


HEAD = """# Validation of the simulator

Printed by `kvmill validate --markdown`. *exact*: an identity of the engine, true at any seed; an order between runs of
the same seeds; an account of memory. Its error is absolute. *interval*: a closed form that lies inside the simulation's
own interval from 30 batch means (99 % over all interval checks together, seed 0; the limit is the half-width, 2 % of
the truth at most, 5 % beyond a load of 0.9). *reality*: what was measured on real machines, simulated again.
"""


def markdown(found: Found) -> str:
    """The same as a page of the documentation."""
    checks = [
        f"| {c['name']} | {c['kind']} | {c['value']:.6g} | {c['truth']:.6g} | {_error(c)} | {c['limit']:.2g} | "
        f"{'yes' if c['passed'] else 'NO'} |"
        for c in found["checks"]
    ]
    head = ["| check | kind | value | truth | error | limit | passed |", "|---|---|---:|---:|---:|---:|---|"]
    lines = [HEAD, verdict(found), "", *head, *checks]
    if found["skipped"]:
        lines += ["", *(f"- skipped: {row['name']}: {row['reason']}" for row in found["skipped"])]
    if found["sensitivity"]:
        lines += ["", SENSITIVITY_HEAD, "", "| " + " | ".join(SWING) + " |", "|---|---|---:|---:|---:|---:|"]
        lines += ["| " + " | ".join(_swing(row).values()) + " |" for row in found["sensitivity"]]
    return "\n".join(lines) + "\n"


SENSITIVITY_HEAD = """## What the recorded runs rest on

Signed errors of the means when one constant of the cost model is 20 % smaller or larger."""


def _error(check: dict[str, Any]) -> str:
    return f"{check['signed']:+.2g}" if check["signed"] is not None else f"{check['error']:.2g}"
