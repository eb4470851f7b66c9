"""The store that pages are timed on has the size and the shape it says, and every page opens on it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import fabricate
import pytest

from kvmill.benchmarks import dashboard as bench
from kvmill.benchmarks.dashboard_store import POLICIES, fill
from kvmill.dashboard import queries_compare, queries_gates, queries_inspect
from kvmill.replay.results import summary
from kvmill.traces.store import Store


def test_the_store_has_200_turn_rows_per_trajectory_and_reads_like_a_real_one(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    runs = fill(store, 20, nights=2)
    assert store.check() == []
    assert store.info(runs["replay"]).rows("cells") >= 20 * len(POLICIES)
    question = "SELECT count(*) AS n FROM turn_metrics WHERE run_id = ? AND measure = 'quality'"
    assert store.query(question, [runs["replay"]])["n"][0].as_py() == 200 * 20
    assert [row["policy"] for row in summary(store, runs["replay"])["policies"]] == list(POLICIES)
    assert queries_compare.acted(store, runs["replay"]) == [runs["closed"]]
    assert queries_compare.behaviour(store, runs["closed"])["policies"]
    assert len({row["run"] for row in queries_gates.gates(store)}) == 2
    (first, *_) = queries_inspect.trajectories(store, runs["replay"])
    shares = queries_inspect.turn_shares(store, runs["replay"], first["trajectory_id"])
    assert {row["kept"] for row in shares if row["policy"] == "full"} == {1.0}


def test_every_page_is_visited() -> None:
    pages = {page for page, _ in bench.visits({"replay": "r"})}
    files = {path.stem for path in (bench.ROOT / "dashboard" / "app_pages").glob("*.py")} - {"__init__"}
    assert pages == files, "a page that is not timed may be slow"


def test_pages_are_timed_on_a_large_store_and_the_figures_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "FIGURES", tmp_path / "dashboard.json")
    monkeypatch.setattr(bench, "SMALL", 4)
    monkeypatch.setattr(bench, "planned", lambda store: store.folder(fabricate.plan(store)))
    monkeypatch.setattr(bench, "visits", lambda runs: [("regressions", {}), ("inspector", {"run": runs["replay"]})])
    monkeypatch.setattr(sys, "argv", ["bench", "--trajectories", "12", "--repeats", "1", "--write", "--json"])
    bench.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert json.loads((tmp_path / "dashboard.json").read_text()) == found
    assert [row["page"] for row in found["rows"]] == ["regressions", "inspector"]
    assert all(row["first_s"] > 0 and row["again_s"] > 0 for row in found["rows"])


@pytest.mark.skipif(not bench.FIGURES.exists(), reason="not measured yet: kvmill bench dashboard --write")
def test_the_kept_figures_are_of_the_promised_size_and_within_the_target() -> None:
    found = json.loads((bench.ROOT / "benchmarks" / "results" / "dashboard.json").read_text())
    assert found["trajectories"] == 1000
    assert all(row["first_s"] <= bench.TARGET_S for row in found["rows"])
