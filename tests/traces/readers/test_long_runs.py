"""Runs of fifty thousand pieces are read in time that grows with their length, however they are put together."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from sources import Beside, found

from kvmill.traces.formats import FORMATS
from kvmill.traces.items import each
from kvmill.traces.reading import Item

N = 50_000
USER: dict[str, Any] = {"role": "user", "content": "u"}


def chat() -> list[Any]:
    results = [{"role": "tool", "content": "x"}] * N
    return [{"messages": [USER, {"role": "assistant", "content": "a"}, *results]}]


def chat_stream() -> list[Any]:
    chunks = [
        {"choices": [{"delta": {"content": "word ", "tool_calls": [{"index": 0, "function": {"arguments": "1"}}]}}]}
    ]
    chunks[0]["choices"][0]["delta"]["tool_calls"][0]["function"]["name"] = "f"
    return [{"request": {"messages": [USER]}, "response": chunks * N}]


def anthropic_stream() -> list[Any]:
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "word "}}
    events = [{"type": "message_start", "message": {"type": "message"}}, *[delta] * N]
    return [{"request": {"messages": [USER]}, "response": {"sse": events}}]


def responses() -> list[Any]:
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "word"}]}
    return [{"input": [{**USER, "type": "message"}, *[item] * N]}]


def claude_line(n: int, kind: str, **message: Any) -> dict[str, Any]:
    said = {"role": kind, "content": [{"type": "text", "text": str(n)}], **message}
    return {"type": kind, "uuid": str(n), "parentUuid": str(n - 1), "sessionId": "s", "message": said}


def claude_one_answer() -> list[Any]:
    return [claude_line(0, "user"), *(claude_line(n, "assistant", id="m") for n in range(1, N))]


def claude_cuts() -> list[Any]:
    span = {"preservedSegment": {"headUuid": "0", "tailUuid": "0"}}
    cut = {"type": "system", "subtype": "compact_boundary", "sessionId": "s", "compactMetadata": span}
    talk = [claude_line(n, ("user", "assistant")[n % 2]) for n in range(N // 5)]
    return [line for n, said in enumerate(talk) for line in (said, {**cut, "uuid": f"c{n}"})]


def codex() -> list[Any]:
    part = [{"type": "input_text", "text": "u"}]
    said = {"type": "response_item", "payload": {"type": "message", "role": "user", "content": part}}
    back = {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 10 * N}}
    lines: list[Any] = [said]
    for n in range(N):
        total = {"total_token_usage": {"input_tokens": n, "output_tokens": 1}}
        lines += [said, back, {"type": "event_msg", "payload": {"type": "token_count", "info": total}}]
    answer = {"type": "response_item", "payload": {"type": "message", "role": "assistant", "content": part}}
    return [*lines, answer]


def gemini() -> list[Any]:
    said = {"timestamp": "", "type": "user", "content": "u"}
    lines = [{**said, "id": str(n)} for n in range(N)]
    lines += [{"$rewindTo": str(n)} for n in range(N - 1, 0, -1)]
    return [*lines, {**said, "id": "a", "type": "gemini"}]


def openhands() -> list[Any]:
    event = {"source": "agent", "timestamp": ""}
    said = {**event, "kind": "MessageEvent", "llm_message": {"role": "user", "content": "u"}}
    ids = {**event, "kind": "TokenEvent", "prompt_token_ids": [1], "response_token_ids": [2]}
    cut = {**event, "kind": "Condensation", "forgotten_event_ids": []}
    lines = [
        {**each, "id": str(n)} for n in range(N // 2) for each in ((said, ids, cut) if n % 20 == 0 else (said, ids))
    ]
    return [*lines, {**said, "id": "a", "llm_message": {"role": "assistant", "content": "a"}}]


CASES: list[tuple[str, Callable[[], list[Any]]]] = [
    ("openai-chat", chat),
    ("openai-chat", chat_stream),
    ("anthropic-messages", anthropic_stream),
    ("openai-responses", responses),
    ("claude-code", claude_one_answer),
    ("claude-code", claude_cuts),
    ("codex", codex),
    ("gemini-cli", gemini),
    ("openhands", openhands),
]


@pytest.mark.parametrize(("name", "make"), CASES, ids=[f"{name}-{make.__name__}" for name, make in CASES])
def test_a_long_run_takes_no_more_than_its_length(name: str, make: Callable[[], list[Any]]) -> None:
    reader, records = FORMATS[name], found(make())
    begun = time.process_time()
    made: list[Item]
    if reader.gather is not None:
        made = list(reader.gather(iter(records), Beside()))
    else:
        assert reader.read is not None
        made = list(each(reader.read, records))
    assert any(item.value is not None for item in made), made[0].reason
    # A step that looks back over the whole run each time would take minutes.
    assert time.process_time() - begun < 15
