"""One message in every spelling is the same chat message, and nothing said in it is lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.traces.readers.parts import chat_messages, is_message, joined

RAW = '{"city":  "Oslo"}'
ARGS = {"city": "Oslo"}
FUNCTION = {"name": "weather", "arguments": RAW}
TEXT = {"type": "text", "text": "I look."}
PARSED = {"name": "weather", "args": ARGS, "id": "c1"}
GEMINI = {"id": "c1", "name": "weather", "args": ARGS}
SPELLINGS: dict[str, dict[str, Any]] = {
    "openai": {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"id": "c1", "type": "function", "function": FUNCTION}],
    },
    "anthropic": {
        "role": "assistant",
        "content": [TEXT, {"type": "tool_use", "id": "c1", "name": "weather", "input": ARGS}],
    },
    "gemini": {"role": "model", "parts": [{"text": "I look."}, {"function_call": GEMINI}]},
    "gemini-rest": {"role": "model", "parts": [{"text": "I look."}, {"functionCall": GEMINI}]},
    "otel": {
        "role": "assistant",
        "parts": [
            {"type": "text", "content": "I look."},
            {"type": "tool_call", "id": "c1", "name": "weather", "arguments": ARGS},
        ],
    },
    "vercel": {
        "role": "assistant",
        "content": [TEXT, {"type": "tool-call", "toolCallId": "c1", "toolName": "weather", "input": ARGS}],
    },
    "vercel-4": {
        "role": "assistant",
        "content": [TEXT, {"type": "tool-call", "toolCallId": "c1", "toolName": "weather", "args": ARGS}],
    },
    "langchain": {"type": "ai", "content": "I look.", "tool_calls": [PARSED]},
    "langchain-dump": {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", "AIMessage"],
        "kwargs": {"content": "I look.", "tool_calls": [PARSED]},
    },
    "langchain-raw": {
        "type": "AIMessageChunk",
        "content": "I look.",
        "tool_calls": [PARSED],
        "additional_kwargs": {"tool_calls": [{"id": "c1", "function": FUNCTION}]},
    },
    "openinference": {"role": "assistant", "content": [TEXT], "tool_calls": [{"id": "c1", "function": FUNCTION}]},
}
RESULTS: dict[str, dict[str, Any]] = {
    "openai": {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    "anthropic": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "rain"}]},
    "otel": {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "rain"}]},
    "vercel": {
        "role": "tool",
        "content": [{"type": "tool-result", "toolCallId": "c1", "output": {"type": "text", "value": "rain"}}],
    },
    "vercel-4": {"role": "tool", "content": [{"type": "tool-result", "toolCallId": "c1", "result": "rain"}]},
    "langchain": {"type": "tool", "content": "rain", "tool_call_id": "c1", "id": "not-this"},
    "responses": {"type": "function_call_output", "call_id": "c1", "output": "rain", "id": "not-this"},
}


def text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@pytest.mark.parametrize("raw", SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_of_a_call_is_the_same(raw: dict[str, Any]) -> None:
    losses: set[str] = set()
    (message,) = chat_messages(raw, losses)
    assert is_message(raw)
    assert (message["role"], text(message), losses) == ("assistant", "I look.", set())
    (call,) = message["tool_calls"]
    assert (call["id"], call["function"]["name"]) == ("c1", "weather")
    assert call["function"]["arguments"] in (RAW, {"city": "Oslo"})


def test_the_models_own_argument_string_goes_before_a_parsed_one() -> None:
    for name in ("openai", "langchain-raw", "openinference"):
        (message,) = chat_messages(SPELLINGS[name], set())
        assert message["tool_calls"][0]["function"]["arguments"] == RAW


@pytest.mark.parametrize("raw", RESULTS.values(), ids=RESULTS)
def test_every_spelling_of_a_result_is_the_same(raw: dict[str, Any]) -> None:
    (message,) = chat_messages(raw, set())
    assert (message["role"], message["content"], message["tool_call_id"]) == ("tool", "rain", "c1")


def test_results_come_before_the_words_said_with_them() -> None:
    parts = [{"type": "text", "text": "Go on."}, {"type": "tool_result", "tool_use_id": "c1", "content": "rain"}]
    assert [m["role"] for m in chat_messages({"role": "user", "content": parts}, set())] == ["tool", "user"]


def test_a_result_that_was_an_object_is_kept_and_noted() -> None:
    losses: set[str] = set()
    part = {"type": "tool_call_response", "id": "c1", "response": {"sky": "grau", "ß": 1}}
    (message,) = chat_messages({"role": "tool", "parts": [part]}, losses)
    assert message["content"] == '{"sky": "grau", "ß": 1}'
    assert losses == {"results_were_objects"}


def test_thoughts_are_kept_apart_and_encrypted_ones_noted() -> None:
    for part in (
        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
        {"type": "reasoning", "content": "Hm."},
        {"text": "Hm.", "thought": True},
    ):
        losses: set[str] = set()
        (message,) = chat_messages({"role": "assistant", "content": [part, {"type": "text", "text": "Yes."}]}, losses)
        assert (message["reasoning_content"], text(message), losses) == ("Hm.", "Yes.", set())
    for part in ({"type": "redacted_thinking", "data": "x"}, {"type": "reasoning", "encrypted_content": "x"}):
        losses = set()
        chat_messages({"role": "assistant", "content": [part, {"type": "text", "text": "Yes."}]}, losses)
        assert losses == {"reasoning_encrypted"}


def test_items_of_one_response_are_one_turn_with_its_thinking() -> None:
    items: list[dict[str, Any]] = [
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "function_call", "id": "fc", "call_id": "c1", "name": "weather", "arguments": RAW},
        {"type": "function_call", "id": "fd", "call_id": "c2", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Rain."}]},
    ]
    messages = joined([message for item in items for message in chat_messages(item, set())])
    assert [m and m["role"] for m in messages] == ["assistant", "tool", "assistant"]
    first = messages[0] or {}
    assert [call["id"] for call in first["tool_calls"]] == ["c1", "c2"]
    assert first["reasoning_content"] == "Hm."


def test_parts_that_are_no_text_stay_so_that_they_are_counted_as_lost() -> None:
    for part in (
        {"type": "blob", "content": "aGk="},
        {"type": "uri", "uri": "x"},
        {"type": "server_tool_call", "name": "s"},
    ):
        (message,) = chat_messages({"role": "user", "parts": [part, {"type": "text", "content": "see"}]}, set())
        assert message["content"] == [part, {"type": "text", "text": "see"}]


def test_items_of_unknown_kinds_are_noted() -> None:
    losses: set[str] = set()
    assert chat_messages({"type": "web_search_call", "id": "x"}, losses) == []
    assert chat_messages({"type": "oracle"}, losses) == []
    assert losses == {"hosted_tools", "unknown_items"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from(["tool_use", "tool", "user"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "type", "content", "parts", "text", "id", "kwargs", "tool_calls", "function", "output"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["role", "type", "content", "parts", "tool_calls", "id", "kwargs"]), JSON))
def test_no_value_makes_it_fail(raw: dict[str, Any]) -> None:
    is_message(raw)
    for message in chat_messages(raw, set()):
        assert message["role"] is not None
