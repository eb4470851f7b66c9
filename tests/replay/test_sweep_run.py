"""`kvmill replay --sweep` on a tiny model: the policies of the sweep run, and the run says its plateau."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import save_tiny
from typer.testing import CliRunner

import kvmill
from kvmill import cli
from kvmill.errors import UserError
from kvmill.replay import start
from kvmill.traces import samples
from kvmill.traces.store import Store

SPEC = "te(proxy=assistant,delay=1,keep=0.1|0.4)"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("tiny-model")))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two short trajectories, whatever is asked for."""
    cut = [replace(run, turns=run.turns[:3], probes=()) for run in samples.load()[:2]]
    monkeypatch.setattr(start, "_select", lambda *_: cut)
    monkeypatch.setattr(start, "_same_again", lambda *_: cut)


def test_a_sweep_runs_alone_beside_full_and_its_plateau_is_an_answer(own_store: Path, model: str, few: None) -> None:
    args = [
        "replay",
        "--traces",
        "samples",
        "--model",
        model,
        "--sweep",
        SPEC,
        "--threads",
        "1",
        "--probes",
        "none",
        "--dtype",
        "float32",
    ]
    ran = CliRunner().invoke(cli.build(), [*args, "--json"])
    assert ran.exit_code == 0, (ran.output, ran.exception)
    found = json.loads(ran.stdout)
    assert [entry["policy"] for entry in found["policies"]] == [
        "full",
        *(SPEC.replace("0.1|0.4", k) for k in ("0.1", "0.4")),
    ]
    (sweep,) = found["sweeps"]
    assert (sweep["sweep"], sweep["score"], sweep["n"], sweep["settings"]) == (SPEC, "delta_nll", 2, 2)
    losses = {entry["policy"]: entry["delta_nll"] for entry in found["policies"][1:]}
    assert sweep["peak"] == min(losses, key=lambda policy: losses[policy])
    text = CliRunner().invoke(cli.build(), ["results"]).stdout
    assert f"sweep {SPEC}: " in text
    assert "judged by −ΔNLL" in text
    assert kvmill.results(store=own_store)["sweeps"] == [sweep]


def test_a_resumed_sweep_is_the_same_sweep(own_store: Path, model: str, few: None) -> None:
    same: dict[str, Any] = {"model": model, "threads": 1, "probes": "none", "dtype": "float32", "store": own_store}
    first = kvmill.run_replay("samples", sweep=[SPEC], policies=["random"], **same)
    assert len(first["policies"]) == 4
    again = kvmill.run_replay(resume=first["run"], store=own_store)
    assert again["sweeps"] == first["sweeps"]
    with pytest.raises(UserError, match="cannot be resumed with other settings"):
        kvmill.run_replay(resume=first["run"], sweep=["te(keep=0.3|0.5)"], store=own_store)
    assert Store.open(own_store).info(first["run"]).config["sweeps"] == [SPEC]


def test_a_sweep_at_equal_size_is_refused(own_store: Path) -> None:
    with pytest.raises(UserError, match="--equal-size solves the keep ratios anew"):
        kvmill.run_replay("samples", sweep=[SPEC], equal_size="te(keep=0.2)", store=own_store)
