"""The baseline measured again, on the same machine in the same hour: other code in a process of its own, or this code
with the baseline's settings.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import Incomplete, UserError
from ..traces.rows import trajectory_row, turn_rows
from ..traces.store import Store
from ..traces.trajectory import Trajectory
from .config import NightConfig

TABLES = ("cells", "turn_metrics", "probes", "kept")
_SWITCHES = ("include_compacted",)
_NOT_FLAGS = ("policies", "latency_repeats")


def require_other_code(config: NightConfig) -> None:
    """UserError where the baseline's interpreter or checkout is not there: before tonight's replay, not after it."""
    if config.baseline_python and not shutil.which(config.baseline_python):
        raise UserError(f"baseline_python {config.baseline_python}: no such program")
    if config.baseline_checkout and not (_checkout(config.baseline_checkout) / "cli.py").is_file():
        raise UserError(f"baseline_checkout {config.baseline_checkout}: no checkout of kvmill")


def measure_elsewhere(
    store: Store, config: NightConfig, settings: Mapping[str, Any], trajectories: Sequence[Trajectory]
) -> str:
    """Replay with the baseline's own interpreter or checkout; its rows become a run of `store`. Returns that run.

    The other code gets the trajectories as an ingest of a store of its own. UserError where it fails.
    """
    with tempfile.TemporaryDirectory(prefix="kvmill-baseline-") as folder:
        there = Store.open(Path(folder) / "store")
        ingest = there.begin("ingest", {"paths": ["nightly"], "format": "nightly", "redact": False})
        rows = [trajectory_row(trajectory) for trajectory in trajectories]
        ingest.add({"trajectories": rows, "turns": [row for t in trajectories for row in turn_rows(t)]}, key="nightly")
        ingest.finish()
        command = [config.baseline_python or sys.executable, "-m", "kvmill", "replay", "--json"]
        command += ["--traces", ingest.id, "--store", str(there.path), *_flags(settings)]
        return _taken_over(store, there, _run(command, _environment(config, Path(folder)), Path(folder)))


def _checkout(path: Path) -> Path:
    return path.expanduser().resolve()


def _environment(config: NightConfig, folder: Path) -> dict[str, str]:
    """Where a checkout is given it is what `import kvmill` finds, whatever is installed."""
    environment = {key: value for key, value in os.environ.items() if key != "KVMILL_STORE"}
    if config.baseline_checkout is None:
        return environment
    (folder / "code").mkdir()
    (folder / "code" / "kvmill").symlink_to(_checkout(config.baseline_checkout), target_is_directory=True)
    return environment | {"PYTHONPATH": str(folder / "code")}


def _flags(settings: Mapping[str, Any]) -> list[str]:
    flags = [word for policy in settings.get("policies", ()) for word in ("--policy", policy)]
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        if name in _SWITCHES:
            flags += [flag] if value else []
        elif name not in _NOT_FLAGS and value is not None:
            flags += [flag, str(value)]
    return flags


def _run(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> str:
    done = subprocess.run(command, env=dict(environment), cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in (0, Incomplete.exit_code):
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise UserError(f"the baseline's code failed with exit code {done.returncode}: {said[-1]}")
    try:
        return str(json.loads(done.stdout)["run"])
    except (ValueError, KeyError, TypeError):
        raise UserError("the baseline's code printed no JSON object with a run: is it kvmill?") from None


def _taken_over(store: Store, there: Store, run_id: str) -> str:
    """Copy a run's rows into `store`, with where they come from."""
    info, old = there.info(run_id), there.open_run(run_id)
    origin = {"git_revision": info.git_revision, "versions": info.versions}
    run = store.begin("replay", {**info.config, "measured_by": origin}, seed=info.seed, device=info.device)
    for table in TABLES:
        if (rows := old.read(table)).num_rows:
            run.add({table: rows.drop_columns(["run_id"])}, key=table)
    run.finish(info.state if info.state == "complete" else "incomplete")
    return run.id
