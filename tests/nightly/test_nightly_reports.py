"""Reports: valid, small, and never green where the night is not."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.errors import Incomplete, NoAnswer, RegressionFound, UserError
from kvmill.nightly import reports
from kvmill.nightly.commands import finish
from kvmill.nightly.config import NightConfig
from kvmill.nightly.junit import junit
from kvmill.nightly.markdown import markdown
from kvmill.nightly.night import EXIT_CODES, verdict_of
from kvmill.nightly.prometheus import prometheus
from kvmill.nightly.reports import NAMES, clear, write
from kvmill.replay.gate_nouns import CATEGORIES, Finding

RED = Finding("te", "a", "REGRESSION", "KL 0.1 → 0.3 (95 % interval +0.1 to +0.3)", True, "kl", 12)
FEW = Finding("te", "b", "INSUFFICIENT", "3 trajectories")
DRIFT = Finding("te", "c", "DRIFT", "a little")
FINE = Finding("full", "a", "OK", "unchanged")


def found(*rows: Finding, verdict: str = "green", **more: Any) -> dict[str, Any]:
    """What a night returns, as far as reports read it."""
    categories = [row.category for row in rows]
    return {
        "verdict": verdict,
        "exit_code": EXIT_CODES[verdict],
        "name": "tiny",
        "run": "nightly-1",
        "replay": "replay-1",
        "baseline": "nightly-0",
        "baseline_replay": "replay-0",
        "rerun": False,
        "machine": "a machine",
        "trajectories": 20,
        "newest": 0,
        "counts": {name: categories.count(name) for name in set(categories)},
        "rows": [asdict(row) for row in rows],
        "latency": [],
        "plan": None,
        "notes": [],
        "started_s": 1000.0,
        "duration_s": 75.0,
        "last_success": "2026-11-29T03:23:00.000000+00:00",
        **more,
    }


def test_junit_has_a_case_per_policy_and_family_and_one_for_the_night() -> None:
    suite = ET.fromstring(junit(found(RED, FEW, DRIFT, FINE, verdict="regression")))[0]
    cases = {(case.get("name"), case.get("classname")): case for case in suite}
    assert set(cases) == {("te", "a"), ("te", "b"), ("te", "c"), ("full", "a"), ("verdict", "night")}
    failed = {key for key, case in cases.items() if case.find("failure") is not None}
    assert failed == {("te", "a"), ("te", "b"), ("verdict", "night")}
    assert (suite.get("tests"), suite.get("failures")) == ("5", "3")
    failure = cases["te", "a"].find("failure")
    assert failure is not None
    assert "0.1 → 0.3 (95 % interval" in (failure.text or "")


@pytest.mark.parametrize("verdict", ["undecided", "incomplete", "regression"])
def test_junit_fails_where_the_night_is_not_green_even_without_a_bad_row(verdict: str) -> None:
    suite = ET.fromstring(junit(found(FINE, verdict=verdict)))[0]
    assert suite.get("failures") == "1"
    assert ET.fromstring(junit(found(FINE)))[0].get("failures") == "0"


@given(st.text())
def test_any_text_makes_valid_xml_and_one_table_row(text: str) -> None:
    row = Finding(text, text, "REGRESSION", text, True)
    night = found(row, verdict="regression", name=text, machine=text)
    ET.fromstring(junit(night))
    rows = [line for line in markdown(night).splitlines() if line.startswith("| REGRESSION")]
    assert len(rows) == 1
    assert rows[0].replace("\\\\", "").replace("\\|", "").count("|") == 5


def test_markdown_stays_below_one_mebibyte_and_says_what_was_cut() -> None:
    rows = [Finding("p" * 5000, f"f{i}", "REGRESSION", "✗" * 100_000, True) for i in range(2000)]
    text = markdown(found(*rows, verdict="regression", latency=[asdict(row) for row in rows], notes=["n" * 9999] * 999))
    assert len(text.encode()) < 1 << 20
    assert "… and 1950 more rows" in text


def test_prometheus_repeats_the_last_success_on_a_red_night_and_counts_every_category() -> None:
    text = prometheus(found(RED, DRIFT, verdict="regression", name='a "b"\n'))
    assert 'kvmill_nightly_exit_code{name="a \\"b\\"\\n"} 5\n' in text
    assert "last_success_timestamp_seconds{name=" in text
    assert " 1795922580\n" in text
    assert sum(line.startswith("kvmill_nightly_verdicts{") for line in text.splitlines()) == len(CATEGORIES)
    assert 'category="REGRESSION"} 1\n' in text
    never = prometheus(found(FEW, verdict="undecided", last_success=None))
    assert "last_success" not in never
    assert "last_run_timestamp_seconds" in never


def test_reports_of_an_earlier_night_are_removed_but_the_last_success_stays(tmp_path: Path) -> None:
    config = NightConfig("n", tmp_path / "out", tmp_path / "prom" / "kvmill.prom")
    paths = write(config, found(FINE))
    assert set(paths) == {*NAMES, "prometheus"}
    assert all(Path(path).stat().st_size for path in paths.values())
    clear(config)
    assert [path.name for path in (tmp_path / "out").iterdir()] == []
    assert (tmp_path / "prom" / "kvmill.prom").exists()


@pytest.mark.parametrize(
    ("rows", "failures", "complete", "compared", "verdict"),
    [
        ([FINE, DRIFT], 0, True, True, "green"),
        ([FINE, FEW], 0, True, True, "undecided"),
        ([FINE], 0, True, False, "undecided"),
        ([], 0, True, True, "undecided"),
        ([FINE, FEW], 1, True, True, "incomplete"),
        ([FINE], 0, False, True, "incomplete"),
        ([RED, FEW], 3, False, False, "regression"),
    ],
)
def test_the_worst_wins(rows: list[Finding], failures: int, complete: bool, compared: bool, verdict: str) -> None:
    assert verdict_of(rows, failures, complete, compared) == verdict


def test_exit_codes_follow_the_verdict() -> None:
    finish(found(FINE))
    with pytest.raises(RegressionFound, match="1 rows block; first REGRESSION of te on a: KL"):
        finish(found(RED, verdict="regression"))
    with pytest.raises(Incomplete, match="replay-1"):
        finish(found(FINE, verdict="incomplete"))
    with pytest.raises(NoAnswer, match="--accept nightly-1"):
        finish(found(FEW, verdict="undecided", baseline_replay=None))


def test_where_no_report_can_be_written_no_night_is_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for config in (
        NightConfig("n", tmp_path / "file"),
        NightConfig("n", tmp_path / "file" / "below"),
        NightConfig("n", tmp_path / "out", tmp_path / "file" / "kvmill.prom"),
    ):
        with pytest.raises(UserError, match=r"reports: .*file.* cannot be written \((File exists|Not a directory)\)"):
            clear(config)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(reports, "_replace", full)
    with pytest.raises(UserError, match=r"nightly\.json cannot be written \(No space left on device\)"):
        write(NightConfig("n", tmp_path / "out"), found(FINE))
