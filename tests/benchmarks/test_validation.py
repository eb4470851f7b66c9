"""The validation benchmark keeps what the checks found, and writes nothing that would lose the recorded runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kvmill.benchmarks import validation as bench
from kvmill.errors import UserError
from kvmill.simulator.validate import KINDS

CHECK = {
    "name": "x", "kind": "exact", "value": 1.23456789, "truth": 1.0, "error": 0.23456789, "limit": 0.5, "passed": True,
    "asked": None, "signed": None,
}  # fmt: skip


def told(skipped: bool) -> Any:
    """A stand-in for `validate`: one check of each kind."""

    def run(*, only: str, data: Path | None, share: float, workers: int) -> dict[str, Any]:
        left = [{"name": "run", "reason": "no folder"}] if skipped and only == "reality" else []
        checks = [CHECK | {"kind": only}]
        return {"passed": True, "checks": checks, "skipped": left, "sensitivity": [], "elsewhere": [], "share": share}

    return run


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Path, Path]:
    """Where figures and page go."""
    figures, page = tmp_path / "validation.json", tmp_path / "validation.md"
    monkeypatch.setattr(bench, "FIGURES", figures)
    monkeypatch.setattr(bench, "PAGE", page)
    monkeypatch.setattr(sys, "argv", ["kvmill bench validation", "--write"])
    return figures, page


def test_figures_and_page_are_of_one_run(monkeypatch: pytest.MonkeyPatch, places: tuple[Path, Path]) -> None:
    monkeypatch.setattr(bench, "validate", told(skipped=False))
    bench.main()
    kept = json.loads(places[0].read_text())
    assert {check["kind"] for check in kept["checks"]} == set(KINDS)
    assert kept["checks"][0]["value"] == 1.23457
    assert set(kept["seconds"]) == set(KINDS)
    assert {"machine", "versions", "date", "passed"} <= set(kept)
    assert "3 checks, all passed." in places[1].read_text()


def test_without_recorded_runs_nothing_is_written(monkeypatch: pytest.MonkeyPatch, places: tuple[Path, Path]) -> None:
    monkeypatch.setattr(bench, "validate", told(skipped=True))
    with pytest.raises(UserError, match="nothing written"):
        bench.main()
    assert not any(place.exists() for place in places)
