"""Reject files say what was refused and why, and stay small however much that is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvmill.traces import rejects
from kvmill.traces.reading import Item
from kvmill.traces.redact import Redactor
from kvmill.traces.rejects import Rejects


def lines(made: Rejects) -> list[dict[str, Any]]:
    made.close()
    return [json.loads(line) for line in made.path.read_text().splitlines()]


def test_each_refusal_has_its_source_line_reason_and_text(tmp_path: Path) -> None:
    made = Rejects(tmp_path, None)
    made.add("a.jsonl", Item(3, None, "no messages", '{"n": "\ud83d"}'))
    made.add("b.jsonl", Item(7, None, "message 12 has the unknown role 'x'", "x" * 20_000))
    made.add("b.jsonl", Item(9, None, "message 5 has the unknown role 'x'", ""))
    assert [(line["source"], line["line"]) for line in lines(made)] == [("a.jsonl", 3), ("b.jsonl", 7), ("b.jsonl", 9)]
    assert lines(made)[0]["raw"] == '{"n": "\ud83d"}'
    assert len(lines(made)[1]["raw"]) == 10_000
    assert made.reasons == {"no messages": 1, "message N has the unknown role 'x'": 2}


def test_without_refusals_there_is_no_file(tmp_path: Path) -> None:
    made = Rejects(tmp_path, None)
    made.close()
    assert list(tmp_path.iterdir()) == []


def test_reasons_and_text_are_redacted(tmp_path: Path) -> None:
    made = Rejects(tmp_path, Redactor())
    made.add("a", Item(1, None, "the role is 'ann@corp.io'", '{"mail": "ann@corp.io"}'))
    assert len(lines(made)) == 1
    assert "corp.io" not in made.path.read_text()
    assert "corp.io" not in str(made.reasons)


def test_the_file_and_the_reasons_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejects, "MAX_FILE_BYTES", 10_000)
    monkeypatch.setattr(rejects, "_MAX_REASONS", 10)
    made = Rejects(tmp_path, None)
    for n in range(1000):
        made.add("a", Item(n, None, f"unknown role {chr(97 + n % 20) * 3}", "x" * 500))
    assert len(lines(made)) == 1000 - made.left_out
    assert made.path.stat().st_size < 11_000
    assert made.reasons.total() == 1000
    assert len(made.reasons) == 11
    assert made.reasons["other reasons"] == 500


def test_a_file_that_is_refused_whole_counts_by_its_cause(tmp_path: Path) -> None:
    made = Rejects(tmp_path, None)
    for name in ("a/1.json", "a/2.json"):
        made.add(name, Item(0, None, f"{name}: no known format; its first record is null. Known formats: x, y"))
    assert made.reasons == {"no known format; its first record is null": 2}
