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

from ..errors import unknown
from .estimates import Estimate
from .identities import Identity, exact_checks
from .memory_reports import measured_peaks, ruled_peaks
from .paper_table import table_checks
from .queues import QUEUES, Queue
from .reality.checks import reality_checks
from .reality.elsewhere import elsewhere
from .reality.sensitivity import sensitivity
from .reality.shared import Comparison, Shared
from .recursions import recursion_checks
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


def exact(tick: Callable[[str], None]) -> Iterable[Check]:
    """All of one kind."""
    found = chain(exact_checks(), recursion_checks(), sample_path_checks(), trend_checks(), accounts())
    for name, value, truth, limit in found:
        yield absolute(name, "exact", value, truth, limit)
        tick(name)


def reality(shared: Shared, tick: Callable[[str], None]) -> Iterable[Check]:
    """All of one kind: what is not there is noted as skipped."""
    for name, value, truth, limit in ruled_peaks():
        yield absolute(name, "reality", value, truth, limit)
    for found in reality_checks(shared):
        yield measured(found)
        tick(found.name)


def validate(
    tick: Callable[[str], None] = lambda _: None,
    *,
    only: str | None = None,
    data: Path | str | None = None,
    share: float = 1.0,
    workers: int = 1,
) -> Found:
    """`{passed, checks[{name, kind, value, truth, error, limit, passed, …}], skipped[{name, reason}]}`, and beside them
    what the recorded runs rest on (`sensitivity`) and the errors where nothing was fitted (`elsewhere`).

    Seed 0. `only`: one kind. `data`: a folder of recorded runs, by default what KVMILL_SHARED_DATA names; runs that
    are not there are skipped with the reason. `share`: part of the interval checks' run lengths (wider intervals are
    then asked for). UserError on an unknown kind, or a folder that is not there.
    """
    if only is not None and only not in KINDS:
        raise unknown("kind of check", only, KINDS)
    shared = Shared.find(data)
    checks: list[Check] = []
    if only in (None, "exact"):
        checks += exact(tick)
    if only in (None, "interval"):
        checks += interval_checks(share, workers, tick)
    real = only in (None, "reality")
    if real:
        checks += reality(shared, tick)
    return {
        "passed": all(check.passed for check in checks),
        "checks": [asdict(check) for check in checks],
        "skipped": [{"name": name, "reason": reason} for name, reason in shared.skipped],
        "sensitivity": sensitivity(shared) if real else [],
        "elsewhere": elsewhere(shared) if real else [],
        "share": share,
    }
