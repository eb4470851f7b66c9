"""`calibrate`: tables in, a GPU's constants and their held-out error out, as an object and as a file for `--gpu`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ...console import table as text_table
from ...errors import InputError, UserError
from ..deployment import Deployment
from ..geometry import Geometry
from ..gpu import Gpu
from ..gpus import GPUS
from ..hardware import find_gpu
from ..models import find_geometry
from . import ends, steps
from .fit import Fitted
from .operators import fit_operators
from .tables import Rows, Table, operator_rows, read_table
from .toml import gpu_toml

WHOLE = {"steps": "engine steps", "servers": "servers in a closed loop"}


def calibrate(
    paths: Sequence[str | Path],
    gpu: str,
    *,
    model: str | None = None,
    tp: int = 1,
    dtype: str = "bf16",
    engine: str | None = None,
    out: str | Path | None = None,
) -> dict[str, Any]:
    """What the tables say of `gpu`: `figures` of operators, `constants` of whole steps, errors fitted and held out.

    `model`, `tp` and `dtype` say what ran where a table does not; `engine` picks rows of server tables by the start of
    their engine's name. `out` is written as TOML. InputError when no row of any table can be used.
    """
    base, geometry = find_gpu(gpu), find_geometry(model) if model else None
    tables = [read_table(path) for path in paths]
    rows = [part for table in tables for part in operator_rows(table, geometry)]
    found = fit_operators(rows, base)
    made = found.gpu
    result: dict[str, Any] = {
        "gpu": base.name,
        "model": geometry.name if geometry else None,
        "tables": [{"name": t.name, "format": t.format, "rows": len(t), "sha256": t.sha256} for t in tables],
        "read": dict(found.read),
        "dropped": dict(found.dropped),
        "figures": [asdict(figure) for figure in found.figures],
        "all_reduce_us": _reduced(rows, made),
    }
    whole = _whole(tables, made, geometry, tp, dtype, engine, result)
    if not found.figures and whole is None and not result["all_reduce_us"]:
        raise InputError(f"no row of {', '.join(t.name for t in tables)} says anything of {base.name}")
    if whole is not None:
        made = whole
    result["error"], result["error_source"] = made.step_error, made.error_source
    result["date"] = datetime.now(UTC).date().isoformat()
    if out is not None:
        made = replace(made, name=f"{base.name}-calibrated", efficiency_source=_efficiencies(result, made))
        Path(out).expanduser().write_text(gpu_toml(made, base, facts(result)), encoding="utf-8")
    result["out"] = str(out) if out is not None else None
    return result


def _whole(
    tables: Sequence[Table],
    gpu: Gpu,
    geometry: Geometry | None,
    tp: int,
    dtype: str,
    engine: str | None,
    result: dict[str, Any],
) -> Gpu | None:
    """The GPU with what whole steps or servers say, or None; their errors go into `result`."""
    kinds = [kind for kind in WHOLE if any(table.format == kind for table in tables)]
    result["constants"] = result["fitted_error"] = result["held_out_error"] = result["swapped_error"] = None
    result["n_fit"] = result["n_held_out"] = result["bias"] = None
    if not kinds:
        return None
    if len(kinds) == 2:
        raise UserError("tables of engine steps and of servers together: fit one, then the other")
    chosen = [table for table in tables if table.format == kinds[0]]
    if kinds[0] == "steps":
        if len(chosen) > 1:
            raise UserError("several tables of engine steps: give one at a time")
        if geometry is None:
            raise UserError("a table of engine steps needs --model")
        fits, keep = _steps(chosen[0], Deployment(geometry, gpu, tp=tp, dtype=dtype))
        tuned = steps.tuned(gpu, dtype, fits[0].values)
    else:
        fits, keep = _ends(chosen, gpu, geometry, engine)
        tuned = ends.tuned(gpu, fits[0].values)
    first, second = fits
    result["read"][kinds[0]], result["dropped"][kinds[0]] = len(keep), int((~keep).sum())
    result["constants"] = dict(first.values)
    result |= {"fitted_error": first.fitted_error, "held_out_error": first.held_out_error, "bias": first.bias}
    result |= {"n_fit": first.n_fit, "n_held_out": first.n_held_out, "swapped_error": second.held_out_error}
    source = f"measured: {first.n_held_out} held-out rows of {WHOLE[kinds[0]]}"
    host = f"measured: fitted on {first.n_fit} rows of {WHOLE[kinds[0]]}"
    return replace(tuned, step_error=first.held_out_error, error_source=source, host_source=host)


def _steps(table: Table, place: Deployment) -> tuple[tuple[Fitted, Fitted], np.ndarray]:
    keep = steps.possible_steps(table, place)
    if keep.sum() < 2 * ends.FEWEST:
        raise InputError(f"table {table.name}: {keep.sum()} steps are possible on {place.gpu.name}, of {len(keep)}")
    picked = replace(table, columns={name: values[keep] for name, values in table.columns.items()})
    return (steps.fit_steps(picked, place), steps.fit_steps(picked, place, swapped=True)), keep


def _ends(
    tables: Sequence[Table], gpu: Gpu, geometry: Geometry | None, engine: str | None
) -> tuple[tuple[Fitted, Fitted], np.ndarray]:
    shapes = cache(_shape)
    all_rows = [row for table in tables for row in ends.end_rows(table)]
    rows = []
    for row in all_rows:
        shape = shapes(row.model) if row.gpu == gpu.name and row.engine.startswith(engine or "") else None
        if shape is None or (geometry is not None and shape.name != geometry.name):
            continue
        served = ends.as_served(row, shape)
        if served is not None and served.dtype in gpu.flops:
            rows.append(served)
    if not rows:
        known = sorted({row.gpu for row in all_rows})
        raise InputError(
            f"no row of servers is of {gpu.name} and this model and engine; GPUs there: {', '.join(known)}"
        )

    def deployment_of(row: ends.EndRow) -> Deployment:
        shape = shapes(row.model)
        assert shape is not None, "only rows of known models are kept"
        return Deployment(shape, gpu, tp=row.tp, dtype=row.dtype)

    keep = ends.possible_ends(rows, deployment_of)
    kept = [row for row, fine in zip(rows, keep, strict=True) if fine]
    return (ends.fit_ends(kept, deployment_of), ends.fit_ends(kept, deployment_of, swapped=True)), keep


def _shape(name: str) -> Geometry | None:
    try:
        return find_geometry(name)
    except UserError:
        return None


def _reduced(rows: Sequence[Rows], gpu: Gpu) -> dict[str, list[list[float]]]:
    """The points of an all-reduce that the tables gave, in bytes and µs."""
    sizes = {int(n) for part in rows if part.kind == "all_reduce" for n in np.unique(part.detail["gpus"])}
    return {
        str(tp): [[size, seconds * 1e6] for size, seconds in points]
        for tp, points in sorted(gpu.all_reduce_s.items())
        if tp in sizes
    }


def _efficiencies(result: Mapping[str, Any], gpu: Gpu) -> str:
    if not result["figures"]:
        return gpu.efficiency_source
    return "measured: fitted to " + ", ".join(table["name"] for table in result["tables"])


def facts(result: Mapping[str, Any]) -> dict[str, Any]:
    """What the file says of its own origin; nothing that was not measured."""
    plain = ("date", "model", "fitted_error", "held_out_error", "swapped_error", "n_fit", "n_held_out")
    known = {key: result[key] for key in plain if result[key] is not None}
    dropped = {f"dropped_{kind}": count for kind, count in result["dropped"].items()}
    return known | dropped | {"tables": [f"{t['name']} sha256:{t['sha256']}" for t in result["tables"]]}


def calibrate_text(result: Mapping[str, Any]) -> str:
    """One screen: the errors first, then the figures, then what was read and dropped."""
    head = (
        f"No whole steps among the tables: the error of a step stays ±{result['error']:.1%} ({result['error_source']})."
    )
    if result["held_out_error"] is not None:
        found = ", ".join(f"{name} {value:.4g}" for name, value in result["constants"].items())
        head = (
            f"Held-out error {result['held_out_error']:.1%} ({result['n_held_out']} rows; fitted "
            f"{result['fitted_error']:.1%} on {result['n_fit']}; halves swapped {result['swapped_error']:.1%}), "
            f"median {result['bias']:+.1%}.\nConstants: {found}"
        )
    columns = {"field": "figure", "dtype": "dtype", "value": "value", "fitted_error": "fitted", "n_fit": "rows"}
    columns |= {"held_out_error": "held out", "n_held_out": "rows"}
    body = f"\n\n{text_table(result['figures'], columns)}" if result["figures"] else ""
    lines = [
        f"{kind}: {count:,} rows, {result['dropped'][kind]:,} dropped as beyond what {result['gpu']} can do"
        for kind, count in result["read"].items()
    ]
    ways = "--gpu or --calibration" if result["gpu"] in GPUS else "--calibration"
    written = f"\n\nWritten to {result['out']}: give it as {ways}." if result["out"] else ""
    return f"{head}{body}\n\n" + "\n".join(lines) + written
