"""Nights with a tiny random model on the bundled samples, cut to a few turns: seconds each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from kvmill import cli
from kvmill.traces import samples
from kvmill.traces.rows import trajectory_row, turn_rows
from kvmill.traces.store import Store
from kvmill.traces.trajectory import Message, Trajectory

INGEST = "ingest-nights"
TE, AM = "te(proxy=assistant,delay=1,keep=0.2)", "am(proxy=assistant,delay=1,keep=0.2,fallback=none)"
POLICIES = (TE, AM)
PER_FAMILY, CHARACTERS = 10, 120


def filled(where: Path | str, turns: int = 3) -> Store:
    """A store with ten trajectories of each sample family, `turns` turns long, as one ingest."""
    store = Store.open(where)
    cut = [
        short(trajectory, turns)
        for family in ("operations", "registry")
        for trajectory in [t for t in samples.load() if t.family == family][:PER_FAMILY]
    ]
    run = store.begin("ingest", {"paths": ["samples"], "format": "samples", "redact": False}, run_id=INGEST)
    rows = [row for t in cut for row in turn_rows(t)]
    run.add({"trajectories": [trajectory_row(t) for t in cut], "turns": rows}, key="samples")
    run.finish()
    return store


def short(trajectory: Trajectory, turns: int) -> Trajectory:
    """The first turns, every message cut: a run of its own id."""

    def cut(message: Message) -> Message:
        return replace(message, content=message.content[:CHARACTERS])

    return replace(
        trajectory,
        id=f"cut/{trajectory.id}",
        prefix=tuple(map(cut, trajectory.prefix)),
        turns=tuple(
            replace(turn, assistant=cut(turn.assistant), tools=tuple(map(cut, turn.tools)))
            for turn in trajectory.turns[:turns]
        ),
        probes=tuple(probe for probe in trajectory.probes if probe.fact_turn < turns)[:2],
    )


def configured(folder: Path, model: str, policies: tuple[str, ...] = POLICIES, more: str = "") -> Path:
    """The configuration of such nights; reports go beside it."""
    path = folder / "nightly.toml"
    path.write_text(
        f'name = "tiny"\nfolder = "{folder}/out"\nprometheus = "{folder}/out/kvmill.prom"\n'
        f'[traces]\npinned = ["{INGEST}"]\n'
        f'[replay]\nmodel = "{model}"\npolicies = {json.dumps(policies)}\ndtype = "float32"\nthreads = 1\n{more}'
    )
    return path


def night(store: Store, config: Path, *flags: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the printed object ({} if there is none) and what went to stderr."""
    result = CliRunner().invoke(
        cli.build(), ["nightly", "--config", str(config), "--store", str(store), "--json", *flags]
    )
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, json.loads(result.stdout) if result.stdout else {}, result.stderr
