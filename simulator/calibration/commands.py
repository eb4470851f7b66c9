"""`kvmill calibrate | gpus`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...console import answer, guarded
from ...options import JsonOption


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("calibrate")(calibrate_command)
    app.command("gpus")(gpus_command)


@guarded
def calibrate_command(
    tables: Annotated[
        list[str], typer.Argument(metavar="TABLE", help="Measured tables: operators, engine steps, or servers.")
    ],
    gpu: Annotated[str, typer.Option(help="GPU that they were measured on.")],
    model: Annotated[str | None, typer.Option(help="Model that ran, where a table does not say it.")] = None,
    tp: Annotated[int, typer.Option(help="Tables of engine steps: tensor-parallel size.")] = 1,
    dtype: Annotated[str, typer.Option(help="Tables of engine steps: bf16 or fp8.")] = "bf16",
    engine: Annotated[str | None, typer.Option(help="Tables of servers: only rows of this engine.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write a TOML for --gpu or --calibration.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit a GPU's constants to measured tables. With the error on rows that nothing was fitted on."""
    from .calibrate import calibrate, calibrate_text

    found = calibrate(tables, gpu, model=model, tp=tp, dtype=dtype, engine=engine, out=out)
    answer(found, as_json, lambda: calibrate_text(found))


@guarded
def gpus_command(
    as_json: JsonOption = False,
) -> None:
    """List the known GPUs, your own among them (KVMILL_GPUS). And what of them was not measured."""
    from ..hardware import gpu_rows, gpus_text

    rows = gpu_rows()
    answer({"gpus": rows}, as_json, lambda: gpus_text(rows))
