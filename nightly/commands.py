"""The command `nightly`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..console import answer, guarded, table
from ..errors import Incomplete, NoAnswer, RegressionFound, UserError
from ..options import JsonOption, StoreOption


def register(app: typer.Typer) -> None:
    """Add `nightly` to the command line."""
    app.command()(nightly)


@guarded
def nightly(
    config: Annotated[Path, typer.Option(help="What the night does, in TOML; docs/nightly.md has every key.")],
    baseline: Annotated[
        str | None, typer.Option(help="A night or replay run; previous (default): the newest accepted night.")
    ] = None,
    rerun_baseline: Annotated[
        bool, typer.Option("--rerun-baseline", help="Measure the baseline again, here and now, with its own code.")
    ] = False,
    accept: Annotated[
        str | None, typer.Option(help="Make this night or replay run the baseline from now on; replays nothing.")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay tonight's runs, gate them against a baseline, plan anew.

    Exit code 5 on a regression, 6 where cells failed, 4 without a baseline or with too few trajectories.
    """
    from ..replay.machine import machine_type
    from ..traces.store import Store
    from .baseline import accept as accepted
    from .config import load_config
    from .night import run_night

    opened, settings = Store.open(store), load_config(config)
    if accept is not None:
        if baseline is not None or rerun_baseline:
            raise UserError("--accept replays nothing: give it without --baseline and --rerun-baseline")
        done = accepted(opened, settings.name, accept, machine_type())
        answer(done, as_json, lambda: f"{done['accepted']} is the baseline of the nights named {settings.name!r} now")
        return
    found = run_night(opened, settings, baseline=baseline, rerun=rerun_baseline)
    answer(found, as_json, lambda: night_text(found))
    finish(found)


def night_text(found: Mapping[str, Any]) -> str:
    """Verdict first, then its rows."""
    against = found["baseline"] or found["baseline_replay"] or "no accepted baseline"
    columns = {"category": "verdict", "policy": "policy", "family": "family", "detail": "detail"}
    lines = [f"{found['verdict']}: run {found['run']} against {against}", "", table(found["rows"], columns)]
    if found["latency"]:
        columns = {"policy": "policy", "family": "family", "detail": "latency"}
        lines += ["", table(found["latency"], columns)]
    if found["plan"]:
        columns = {"policy": "policy", "gpus_before": "GPUs in the baseline", "gpus": "GPUs tonight"}
        lines += ["", found["plan"]["answer"], "", table(found["plan"]["rows"], columns)]
    lines += ["", *found["notes"], f"reports: {', '.join(found['files'].values())}"]
    return "\n".join(lines)


def finish(found: Mapping[str, Any]) -> None:
    """Raise what the exit code must say."""
    blocking = [row for row in found["rows"] if row["blocks"]]
    if found["verdict"] == "regression":
        first = blocking[0]
        where = f"{first['policy']} on {first['family']}"
        raise RegressionFound(f"{len(blocking)} rows block; first {first['category']} of {where}: {first['detail']}")
    if found["verdict"] == "incomplete":
        raise Incomplete(f"cells of {found['replay']} failed or are missing: no green night")
    if found["verdict"] == "undecided":
        more = f"; kvmill nightly --accept {found['run']} makes it the baseline" if not found["baseline_replay"] else ""
        raise NoAnswer(f"the night decides nothing{more}", "no baseline or too few trajectories")
