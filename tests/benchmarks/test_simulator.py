"""The simulator's benchmark measures what it says, and its kept figures hold what is promised."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kvmill.benchmarks import simulator as bench
from kvmill.benchmarks.pages.simulator import HEAD, page, walks


def test_agents_have_25_turns_and_fill_16_replicas() -> None:
    asked, replicas = bench.scenario("agents", "full", 15_000)
    assert replicas == 16
    assert asked.turns == 10_000
    assert {asked.plan_of(i).turns for i in asked.positions.usable} == {25}
    assert len(asked.positions.usable) == len(asked.load.sessions), "every session fits the window"


def test_single_requests_have_one_turn() -> None:
    asked, replicas = bench.scenario("requests", "full", 1000)
    assert replicas == 1
    assert [asked.plan_of(i).turns for i in asked.positions.usable] == [1]


def test_every_size_is_simulated_in_its_own_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figures, text = tmp_path / "simulator.json", tmp_path / "simulator.md"
    text.write_text(f"# Before\n\nKept.\n\n{HEAD}\n\nOld figures.\n")
    monkeypatch.setattr(bench, "FIGURES", figures)
    monkeypatch.setattr(bench, "PAGE", text)
    asked = ["--sizes", "600,1200", "--requests", "300", "--replications", "0", "--json", "--write"]
    monkeypatch.setattr(sys, "argv", ["bench", *asked])
    bench.main()
    found = json.loads(capsys.readouterr().out)
    assert json.loads(figures.read_text()) == found
    rows = found["rows"]
    assert [(row["what"], row["policy"]) for row in rows] == [
        ("agents", "full"),
        ("agents", "full"),
        ("agents", bench.TE),
        ("requests", "full"),
    ]
    for row, wanted in zip(rows, (600, 1200, 600, 300), strict=True):
        assert row["turns"] == pytest.approx(wanted, rel=0.35), "the horizon is set at a nominal speed"
        assert row["ms_per_turn"] == pytest.approx(row["cpu_s"] / row["turns"] * 1e3)
        assert 20 << 20 < row["peak_rss_bytes"] < 300 << 20, "no torch in it"
    assert {target["what"] for target in found["targets"]} >= {"ms per turn, full"}
    assert text.read_text().startswith(f"# Before\n\nKept.\n\n{HEAD}\n")
    assert "Old figures" not in text.read_text()
    assert f"| {rows[0]['turns']:,} |" in text.read_text()
    assert "at most 0.1" in text.read_text()
    assert f"- {found['findings'][0]}\n" in text.read_text()
    assert "ms/turn" in bench.shown(found)


def test_targets_are_those_of_the_design() -> None:
    def row(turns: int, ms: float) -> dict[str, object]:
        return {"what": "agents", "policy": "full", "turns": turns, "ms_per_turn": ms}

    found = {t["what"]: t for t in bench.targets([row(10_000, 0.05), row(1_000_000, 0.13)])}
    assert not found["ms per turn, full"]["met"]
    assert not found["seconds of a million turns, full"]["met"], "130 s"
    assert not found["ms per turn at the most turns over that at the fewest, full"]["met"]
    assert all(t["met"] for t in bench.targets([row(10_000, 0.05), row(1_000_000, 0.05)]))


def test_the_walk_is_a_table_of_both_cases() -> None:
    def line(key: str, ratio: float) -> dict[str, object]:
        pair = [1.0, ratio]
        return {"key": key, "what": key, "label": "estimated", "batch": pair, "sessions_per_hour": pair, "ratio": ratio}

    def row(model: str, *keys: str) -> dict[str, object]:
        lines = [line(key, 2.0) for key in keys]
        return {"what": "walk", "model": model, "gpu": "h100", "dtype": "fp8", "policy": "te", "lines": lines}

    *_, table = walks([row("a", "paper", "batching"), row("b", "paper", "batching", "promises")])
    assert table.splitlines()[0].count("ratio") == 2
    assert "| paper | *estimated* | 1 → 2 | 1 → 2 | 2 × | 1 → 2 | 1 → 2 | 2 × |" in table
    assert "| promises | *estimated* | – | – | – | 1 → 2 | 1 → 2 | 2 × |" in table
    assert walks([]) == []


def test_a_page_without_the_section_is_refused() -> None:
    with pytest.raises(ValueError, match="no section"):
        page("# Nothing\n", {})


@pytest.mark.skipif(not bench.FIGURES.exists(), reason="not measured yet: kvmill bench simulator --write")
def test_the_figures_that_are_kept_hold_what_is_promised() -> None:
    found = json.loads(bench.FIGURES.read_text())
    agents = [row for row in found["rows"] if row["what"] == "agents"]
    assert max(row["turns"] for row in agents) > 900_000
    assert all(row["ms_per_turn"] <= bench.TARGET_MS for row in agents)
    assert all(target["met"] for target in found["targets"])
    full = sorted((row for row in agents if row["policy"] == "full"), key=lambda row: row["turns"])
    per_turn = (full[-1]["peak_rss_bytes"] - full[0]["peak_rss_bytes"]) / (full[-1]["turns"] - full[0]["turns"])
    assert per_turn < 320, "bytes per turn: its row of 72, twice while percentiles are taken, and parts of it"
    assert page(bench.PAGE.read_text(), found) == bench.PAGE.read_text()
