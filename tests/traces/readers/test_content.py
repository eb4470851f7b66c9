"""Content that is no text: parts lose only what is no text, and data that stands in their place is kept as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvmill.traces.readers.content import text_of, thinking_of

PICTURE = {"type": "image_url", "image_url": {"url": "x"}}


@pytest.mark.parametrize(
    "content",
    [
        [{"stdout": "a.txt", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        [{"text": "found", "score": 0.5}, {"text": "other", "score": 0.1}],
        [{"type": "flight", "number": "HAT001"}],
        [1, 2],
        {"rows": [1, 2], "text": "x"},
        {"content": "x", "status": "failed"},
        3.5,
        True,
    ],
)
def test_data_in_the_place_of_content_is_kept_whole(content: Any) -> None:
    losses: set[str] = set()
    assert json.loads(text_of(content, losses)) == content
    assert losses == {"content_not_text"}


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "one"}, PICTURE, {"type": "output_text", "text": "two", "annotations": []}],
        [{"text": "one"}, {"inlineData": {"mimeType": "image/png", "data": "AA"}}, {"text": "two"}],
        [{"type": "text", "text": {"value": "one", "annotations": []}}, {"type": "input_file", "file_id": "f"}, "two"],
    ],
)
def test_of_parts_the_text_is_taken_and_what_is_no_text_is_noted(content: Any) -> None:
    losses: set[str] = set()
    assert text_of(content, losses) == "one\ntwo"
    assert losses == {"non_text_content"}


def test_data_among_parts_stands_between_them() -> None:
    losses: set[str] = set()
    assert text_of([{"type": "text", "text": "rows:"}, {"n": 1}], losses) == 'rows:\n{"n": 1}'
    assert losses == {"content_not_text"}


@pytest.mark.parametrize(
    "blocks",
    [
        [{"type": "thinking", "thinking": "let me see", "signature": "x"}],
        [{"type": "thinking", "thinking": [{"type": "text", "text": "let me see"}]}, {"type": "text", "text": "said"}],
        [{"type": "reasoning.text", "text": "let me see"}],
        [{"type": "reasoning.summary", "summary": "let me see"}],
    ],
)
def test_thinking_is_found_in_every_spelling_and_is_no_content(blocks: Any) -> None:
    losses: set[str] = set()
    assert thinking_of(blocks, losses) == "let me see"
    assert text_of(blocks, losses) == ("said" if len(blocks) > 1 else "")
    assert losses == set()


@pytest.mark.parametrize("kind", ["redacted_thinking", "reasoning.encrypted"])
def test_encrypted_thinking_is_noted(kind: str) -> None:
    losses: set[str] = set()
    assert thinking_of([{"type": kind, "data": "x"}], losses) is None
    assert losses == {"reasoning_encrypted"}
