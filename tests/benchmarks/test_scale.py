"""docs/scale.md says what the benchmark prints, the formulas give what pencil and paper do, and samples stay honest."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvmill.benchmarks import scale as bench
from kvmill.benchmarks.pages.scale import HEAD, page, tables
from kvmill.errors import UserError
from kvmill.simulator.hardware import find_gpu
from kvmill.traces.store import Store

BYTES = {"cells": 1000.0, "turn_metrics": 100.0, "probes": 50.0, "kept": 2.0}
MEASURED: dict[str, Any] = {
    "model": "m",
    "traces": "samples",
    "policies": ["full"],
    "rows": dict.fromkeys(BYTES, 10),
    "bytes_per_row": BYTES,
}


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    return json.loads(bench.FIGURES.read_text())


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Campaigns few enough for a test."""
    monkeypatch.setattr(bench, "CAMPAIGNS", 100)
    monkeypatch.setattr(bench, "DRAWS", 400)


def test_the_page_says_what_the_benchmark_prints(kept: dict[str, Any]) -> None:
    written = bench.PAGE.read_text()
    assert page(written, kept) == written
    assert tables(kept) in written
    with pytest.raises(ValueError, match="no section"):
        page("# Nothing\n", kept)


def test_the_kept_estimates_are_those_of_the_cost_model_now(kept: dict[str, Any]) -> None:
    """Deterministic: a changed cost model, price or assumption must renew the page."""
    for row, (model, gpu) in zip(kept["computing"], bench.PLACES, strict=True):
        now = bench.computing(model, gpu)
        assert row.keys() == now.keys()
        for name, value in now.items():
            assert row[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-9))
    assert kept["storage"] == bench.storage(kept["measured"])
    assert kept["assumed"]["trajectories"] == bench.TRAJECTORIES


def test_hours_and_money_follow_from_the_seconds_of_one_prefill() -> None:
    row = bench.computing("qwen3-8b", "h100")
    each = bench.seconds("qwen3-8b", "h100")
    assert row["gpu_hours"] == pytest.approx(1e6 * 5 * each / 3600)
    assert row["usd"] == pytest.approx(row["gpu_hours"] * (find_gpu("h100").price_per_hour or 0))
    # 8.2e9 parameters at two operations each, and attention over 50,000²/2 pairs: nothing is faster than the peak.
    peak = find_gpu("h100").flops["bf16"]
    assert 2 * 7.5e9 * 50_000 / peak < each < 10 * 2 * 8.2e9 * 50_000 / peak


def test_storage_is_rows_by_bytes_of_a_complete_run(tmp_path: Path) -> None:
    found = {row["table"]: row for row in bench.storage(MEASURED)}
    assert found["kept"]["bytes"] == 50_000 * 5 * 2.0
    assert found["turn_metrics"]["bytes"] == 60 * 5 * 100.0
    store = Store.open(tmp_path)
    run = store.begin("replay", {"model": "m", "policies": ["full"]}, device="cpu")
    key = {"cell_id": "c", "trajectory_id": "t", "policy": "full"}
    run.add({"cells": [key], "turn_metrics": [{**key, "turn": t} for t in range(4)]}, key="t")
    with pytest.raises(UserError, match="no complete replay run"):
        bench.stored(store, run.id)
    run.finish()
    with pytest.raises(UserError, match="no rows of probes, kept"):
        bench.stored(store, run.id)
    whole = store.begin("replay", {"model": "m", "policies": ["full"]}, device="cpu")
    whole.add({name: [key] * 3 for name in bench.TABLES}, key="t")
    whole.finish()
    seen = bench.stored(store, whole.id)
    size = next(p.stat().st_size for p in store.folder(whole.id).glob("kept.*.parquet"))
    assert seen["bytes_per_row"]["kept"] == size / 3
    assert seen["rows"] == dict.fromkeys(bench.TABLES, 3)


def test_what_is_drawn_has_the_loss_and_the_likeness_it_is_said_to_have(few: None) -> None:
    mine, full = next(bench.drawn(np.random.default_rng(0), [0.0, 0.2], 400))
    assert mine.shape == full.shape == (100, 2, 400)
    losses = 1 - mine.mean((0, 2)) / full.mean((0, 2))
    assert losses == pytest.approx([0.0, 0.2], abs=0.01)
    alike = np.corrcoef(mine[:, 0].ravel(), full[:, 0].ravel())[0, 1]
    assert 0.8 < alike < 0.97


def test_larger_effects_take_fewer_draws_and_nothing_is_proven_wrongly(few: None) -> None:
    found = {loss: bench.effect(loss) for loss in (0.0, 0.2, 0.5)}
    assert found[0.5]["median"] < found[0.2]["median"] < found[0.0]["median"] <= 240
    assert all(row["wrong"] <= 0.05 for row in found.values())
    assert all(row["fixed"] < row["median"] for row in found.values()), "looking often has its price"
    assert bench.effect(0.04)["median"] is None, "so near to the limit 400 draws prove nothing"


def test_the_kept_campaigns_keep_the_promise(kept: dict[str, Any]) -> None:
    assert kept["at_the_limit"]["wrong"] <= 1 - kept["limits"]["confidence"]
    assert kept["ladder"]["right"] >= kept["limits"]["confidence"]
    assert kept["ladder"]["most"] < kept["assumed"]["trajectories"] / 1000
    assert all(row["campaigns"] >= 1000 for row in (*kept["effects"], kept["ladder"], kept["at_the_limit"]))


def test_the_command_writes_figures_and_page(
    few: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "FIGURES", tmp_path / "scale.json")
    monkeypatch.setattr(bench, "PAGE", tmp_path / "scale.md")
    bench.FIGURES.write_text(json.dumps({"measured": MEASURED}))
    bench.PAGE.write_text(f"# Before\n\n{HEAD}\n\nOld.\n")
    monkeypatch.setattr(bench, "EFFECTS", (0.5,))
    monkeypatch.setattr(sys, "argv", ["bench", "--write"])
    bench.main()
    said, found = capsys.readouterr().out, json.loads(bench.FIGURES.read_text())
    assert said.strip() == tables(found)
    assert bench.PAGE.read_text() == page(f"# Before\n\n{HEAD}\n", found)
    assert re.search(r"Figures\n\nWritten by", bench.PAGE.read_text())
    assert all(label in said for label in ("*measured*", "*estimated*", "*assumed*", "*Simulated*"))
