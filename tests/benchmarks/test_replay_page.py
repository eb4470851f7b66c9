"""The section on costs says what the figures say, renews itself alone, and its bound is arithmetic."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kvmill.benchmarks import replay as bench
from kvmill.benchmarks.pages.replay import HEAD, bound, page, section, why


@pytest.fixture
def found() -> dict[str, Any]:
    """The figures that are kept."""
    return json.loads(bench.FIGURES.read_text())


def test_the_kept_section_is_written_from_the_kept_figures(found: dict[str, Any]) -> None:
    """`kvmill bench replay --from-figures` was run after the last change of either."""
    kept = bench.PAGE.read_text()
    assert page(kept, found) == kept


def test_every_target_has_a_line_with_its_verdict_and_every_missed_one_a_reason(found: dict[str, Any]) -> None:
    head, lines, *reasons = section(found)
    assert found["date"] in head
    assert len(lines.splitlines()) == 2 + len(found["targets"])
    for target, line in zip(found["targets"], lines.splitlines()[2:], strict=True):
        assert f"| {target['what']} |" in line
        assert f"| {target['value']:.3f} |" in line
        assert f"| {'yes' if target['met'] else 'no'} |" in line
    missed = [target["what"] for target in found["targets"] if not target["met"]]
    assert [what for what in missed if not any(what in reason and "Missed" in reason for reason in reasons)] == []


def test_a_disturbed_row_has_neither_a_verdict_nor_a_reason(found: dict[str, Any]) -> None:
    row = found["rows"][0] | {"met": None, "disturbed": True}
    assert why(row) == ""
    assert "| disturbed |" in section(found | {"rows": [row]})[1]


def test_the_bound_on_decoding_is_bytes_over_the_rate_of_the_output_head() -> None:
    """smollm2-135m in float32: 134.5 M parameters, of which the head is 49,152 × 576; 30 · 2 · 3 · 64 numbers a row."""
    row = {"model": "smollm2-135m", "dtype": "float32", "tokens": 1000, "seconds": 0.1, "against_s": 0.6, "target": 3.0}
    row |= {"part": "c", "profile": {"output head": 0.1}}
    rate = 49_152 * 576 * 4 / 0.01
    least = (134_515_008 * 4 + 1000 * 30 * 2 * 3 * 64 * 4) / rate
    said = bound(row)
    assert f"{rate / 1e9:.1f} GB/s" in said
    assert f"takes {least * 1e3:.3g} ms" in said
    assert f"more than {0.6 / least:.1f} × as fast" in said
    assert "3 × is within reach" in said
    assert "3 × is out of reach" in bound(row | {"against_s": 0.1})


def test_only_the_section_is_renewed(
    found: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, text = tmp_path / "replay.json", tmp_path / "method.md"
    changed = copy.deepcopy(found)
    changed["rows"][0]["value"] = 0.123
    figures.write_text(json.dumps(changed))
    text.write_text(f"# Before\n\nKept.\n\n{HEAD}\n\nOld figures.\n")
    monkeypatch.setattr(bench, "FIGURES", figures)
    monkeypatch.setattr(bench, "PAGE", text)
    monkeypatch.setattr(sys, "argv", ["kvmill bench replay", "--from-figures"])
    bench.main()
    assert text.read_text().startswith(f"# Before\n\nKept.\n\n{HEAD}\n")
    assert "Old figures" not in text.read_text()
    assert "| 0.123 |" in text.read_text()
    assert "16 policies in lockstep" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no section"):
        page("# Nothing\n", found)
