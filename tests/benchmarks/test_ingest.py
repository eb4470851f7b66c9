"""The ingest benchmark measures what it says: made recordings of the right shape, each ingested whole."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kvmill.benchmarks import agent_log
from kvmill.benchmarks import ingest as bench
from kvmill.traces.readers import mooncake, tau_bench
from kvmill.traces.request_checks import summarise


def test_made_runs_are_like_those_of_agents() -> None:
    lines = list(agent_log.runs(6))
    assert 6e6 <= sum(map(len, lines)) < 6.3e6
    assert len(set(lines)) == len(lines)
    assert all(18_000 < len(line) < 300_000 for line in lines)
    made = [tau_bench.read(json.loads(line)) for line in lines]
    assert all(len(run.turns) > 4 and run.losses == ("no_tool_schemas",) for run in made)
    per_message = sum(map(len, lines)) / sum(len(run.messages()) for run in made)
    assert 400 < per_message < 1200, "tau-bench's own have 650 bytes a message"
    assert list(agent_log.runs(1)) == list(agent_log.runs(1))


def test_made_logs_grow_by_session() -> None:
    rows = [mooncake.read(json.loads(line)) for line in agent_log.requests(0.5)]
    summary = summarise(rows)
    assert summary["rows_out_of_order"] == 0
    assert summary["prefix"]["block_count_differs"] == 0
    assert summary["prefix"]["hit_rate_blocks"] > 0.5


def test_every_case_is_ingested_whole_in_its_own_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "FIGURES", tmp_path / "ingest.json")
    monkeypatch.setattr(
        sys, "argv", ["bench", "--sizes", "1", "--redacted", "0.5", "--repeats", "1", "--json", "--write"]
    )
    bench.main()
    found = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "ingest.json").read_text()) == found
    assert set(found) == {"machine", "versions", "date", "holds", "rows"}
    assert [(row["holds"], row["redact"], row["packed"]) for row in found["rows"]] == [
        ("runs", False, None),
        ("runs", True, None),
        ("runs", False, "gzip"),
        ("requests", False, None),
    ]
    for row in found["rows"]:
        assert row["records"] == sum(1 for _ in getattr(agent_log, row["holds"])(row["megabytes"]))
        assert row["bytes"] >= row["megabytes"] * 1e6
        assert row["mb_per_core_s"] == pytest.approx(row["bytes"] / 1e6 / row["cpu_s"])
        assert 50 << 20 < row["peak_rss_bytes"] < 1 << 30
    assert "MB/s of a core" in bench.shown(found["rows"])


def test_the_figures_that_are_kept_hold_what_is_promised() -> None:
    rows = json.loads(bench.FIGURES.read_text())["rows"]
    plain = [row for row in rows if row["holds"] == "runs" and not row["redact"] and row["packed"] is None]
    assert max(row["megabytes"] for row in plain) >= 300
    assert all(row["mb_per_core_s"] >= 40 for row in plain if row["megabytes"] >= 100)
    assert all(row["mb_per_core_s"] >= 5 for row in rows if row["redact"])
    assert all(row["peak_rss_bytes"] < 1 << 29 for row in rows)
    first, last = min(plain, key=lambda row: row["bytes"]), max(plain, key=lambda row: row["bytes"])
    slope = (last["peak_rss_bytes"] - first["peak_rss_bytes"]) / (last["bytes"] - first["bytes"])
    assert first["peak_rss_bytes"] + slope * 5e9 < 1 << 30 or slope < 0.1
