"""`kvmill calibrate | gpus`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...console import answer, guarded


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("calibrate")(calibrate_command)
    app.command("gpus")(gpus_command)


@guarded
def calibrate_command(
    tables: Annotated[list[str], typer.Argument(help="measured tables: operators, engine steps, or servers")],
    gpu: Annotated[str, typer.Option(help="GPU that they were measured on")],
    model: Annotated[str | None, typer.Option(help="model that ran, where a table does not say it")] = None,
    tp: Annotated[int, typer.Option(help="tables of engine steps: tensor-parallel size")] = 1,
    dtype: Annotated[str, typer.Option(help="tables of engine steps: bf16 or fp8")] = "bf16",
    engine: Annotated[str | None, typer.Option(help="tables of servers: only rows of this engine")] = None,
    out: Annotated[Path | None, typer.Option(help="write a TOML for --gpu or --calibration")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
) -> None:
    """Constants of a GPU from measured tables, with the error on rows that nothing was fitted on."""
    from .calibrate import calibrate, calibrate_text

    found = calibrate(tables, gpu, model=model, tp=tp, dtype=dtype, engine=engine, out=out)
    answer(found, as_json, lambda: calibrate_text(found))


@guarded
def gpus_command(
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
) -> None:
    """The known GPUs, your own among them (KVMILL_GPUS), and what of them was not measured."""
    from ..hardware import gpu_rows, gpus_text

    rows = gpu_rows()
    answer({"gpus": rows}, as_json, lambda: gpus_text(rows))
