"""Bodies as proxies and cassettes keep them: JSON, JSON text or the events of a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvmill.traces.readers.http import body_of, events_of

BODY = {"messages": [{"role": "user", "content": "a\u2028b"}]}
STREAM = f"event: x\ndata: {json.dumps(BODY, ensure_ascii=False)}\n\n: a comment\n\ndata: [DONE]\n\n"


@pytest.mark.parametrize(
    "kept",
    [
        BODY,
        json.dumps(BODY),
        {"status": 200, "headers": {}, "body": BODY},
        {"status": 200, "body": json.dumps(BODY, ensure_ascii=False)},
        {"body": {"encoding": "utf-8", "string": json.dumps(BODY)}},
    ],
)
def test_a_body_is_found_however_it_is_kept(kept: Any) -> None:
    assert body_of(kept) == BODY
    assert events_of(body_of(kept)) is None


def test_the_events_of_a_stream_are_a_body() -> None:
    assert body_of({"status": 200, "body": STREAM}) == {"sse": [BODY]}
    assert events_of(body_of(STREAM)) == [BODY]
    assert events_of({"sse": [BODY, 7]}) == [BODY]


@pytest.mark.parametrize("kept", [None, "", "<html>", {"body": "{"}, "data: {\n\n"])
def test_what_is_no_body_is_none(kept: Any) -> None:
    assert body_of(kept) is None
