"""Closed-loop rows of a server: N requests always in flight, simulated event by event with constants fitted on half."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import simpy

from ...replay.policies.registry import parse_policy
from ..calibration.ends import BOUNDS, EndRow, end_rows, fit_ends, tpot_s, tuned
from ..calibration.fit import Fitted
from ..calibration.tables import read_table
from ..cost import CostModel
from ..deployment import Deployment
from ..hardware import find_gpu
from ..live import Live
from ..models import find_geometry
from ..replica import Replica
from ..session import SessionSpec, compile_session
from ..workload import assemble
from .shared import Comparison, Shared

FILE = "aiconfigurator/silicon_sample.part.csv"
MODEL, GPU = "llama-3.1-8b", "h100"
NAME = f"closed loop, {MODEL} on {GPU}"
LIMIT = 0.10
UNFITTED = 0.20
ROUNDS = 5  # requests per place in flight; the first burst is left out


def closed_loop_checks(shared: Shared) -> Iterator[Comparison]:
    """Mean absolute errors of the time per output token: nothing fitted; fitted and held-out rows, both ways round."""
    path = shared.path(FILE, NAME)
    if path is None:
        return
    rows = [row for row in end_rows(read_table(path)) if row.gpu == GPU and find_name(row.model) == MODEL]
    measured = np.array([row.tpot_s for row in rows])
    plain = np.array([tpot_s(CostModel.of(place_of(row)), row, place_of(row).token_budget) for row in rows])
    yield spread(f"{NAME}, nothing fitted ({len(rows)} rows), formula", plain / measured - 1, UNFITTED)
    for label, swapped in (("", False), ("halves swapped, ", True)):
        fitted = fit_ends(rows, place_of, swapped=swapped)
        yield from both_halves(label, rows, fitted)


def both_halves(label: str, rows: Sequence[EndRow], fitted: Fitted) -> Iterator[Comparison]:
    """Errors of the formula that was fitted, and of the event simulation with the same constants."""
    names = ", ".join(f"{name} {fitted.values[name]:.3g}" for name in BOUNDS)
    formula = fitted.predicted / fitted.measured - 1
    events = np.array([simulated_tpot_s(row, fitted) for row in rows]) / fitted.measured - 1
    for half, mask, told in (("fitted", ~fitted.held_out, f" ({names})"), ("held-out", fitted.held_out, "")):
        head = f"{NAME}, {label}{half} rows ({int(mask.sum())}){told}"
        yield spread(f"{head}, formula", formula[mask], LIMIT)
        yield spread(f"{head}, simulated", events[mask], LIMIT)


def spread(name: str, errors: np.ndarray, limit: float) -> Comparison:
    """Mean absolute error of the rows, their median error said in the name."""
    told = f"{name}: mean absolute error of TPOT, median {float(np.median(errors)):+.1%}"
    return Comparison(told, float(np.abs(errors).mean()), 0.0, limit, "absolute")


def find_name(model: str) -> str:
    """The catalogue's name of a model, or its own where the catalogue has none."""
    short = model.rsplit("/", 1)[-1].lower()
    return short.removesuffix("-instruct")


def place_of(row: EndRow) -> Deployment:
    """The machine of a row, from the catalogues."""
    return Deployment(find_geometry(MODEL), find_gpu(row.gpu), tp=row.tp, dtype=row.dtype)


def simulated_tpot_s(row: EndRow, fitted: Fitted) -> float:
    """Mean seconds per output token on the simulated replica: whoever ends is followed by the next at once."""
    place = place_of(row)
    cost = CostModel.of(replace(place, gpu=tuned(place.gpu, fitted.values)))
    spec = SessionSpec(assemble(row.prompt, [row.output], []), (0.0,))
    plan = compile_session(spec, parse_policy("full"), place, cost)
    assert plan is not None, "one request of a closed-loop row fits the model's window"
    env = simpy.Environment()
    found: list[float] = []
    sent = row.concurrency

    def done(live: Live, _: bool) -> None:
        nonlocal sent
        found.append((env.now - live.first) / (row.output - 1))
        if sent < ROUNDS * row.concurrency:
            sent += 1
            replica.submit(Live(plan, sent))

    replica = Replica(env, place, cost, done)
    for number in range(row.concurrency):
        replica.submit(Live(plan, number))
    while len(found) < ROUNDS * row.concurrency:
        env.step()
    return float(np.mean(found[row.concurrency :]))
