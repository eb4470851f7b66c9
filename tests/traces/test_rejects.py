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


SECRET = "sk-proj-a1B2c3D4e5F6g7H8i9J0k1L2"


def in_pieces(layers: int) -> str:
    text = json.dumps([{"delta": {"content": SECRET[n : n + 4]}} for n in range(0, len(SECRET), 4)])
    for _ in range(layers):
        text = json.dumps({"body": text})
    return text


@pytest.mark.parametrize("raw", [in_pieces(0), in_pieces(1), in_pieces(2), "x " * 4990 + SECRET + " and on"])
def test_of_a_secret_in_pieces_or_cut_in_two_nothing_is_kept(tmp_path: Path, raw: str) -> None:
    made = Rejects(tmp_path, Redactor())
    made.add("a", Item(1, None, "no prompt", raw))
    [line] = lines(made)
    assert not [n for n in range(8, len(SECRET) - 4) if SECRET[n : n + 4] in line["raw"]]
    plain = Rejects(tmp_path, None)
    plain.add("a", Item(1, None, "no prompt", raw))
    assert lines(plain)[0]["raw"] == raw[:10_000]


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
