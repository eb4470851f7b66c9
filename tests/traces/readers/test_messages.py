"""Requests, responses, batches and texts: what was given and answered is found in each, word for word."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given as example
from hypothesis import strategies as st

from kvmill.traces.readers.messages import Said, answered, given, instructions, parsed, required, schemas
from kvmill.traces.reading import Reject

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
GIVEN: dict[str, Any] = {
    "list": CHAT,
    "text of a list": json.dumps(CHAT),
    "openai": {"model": "m", "messages": CHAT},
    "anthropic": {"system": "Be brief.", "messages": [CHAT[1]]},
    "anthropic parts": {"system": [{"type": "text", "text": "Be brief."}], "messages": [CHAT[1]]},
    "responses": {"instructions": "Be brief.", "input": "Hi"},
    "gemini": {
        "config": {"system_instruction": "Be brief."},
        "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
    },
    "gemini parts": {"systemInstruction": {"parts": [{"text": "Be brief."}]}, "contents": {"parts": [{"text": "Hi"}]}},
    "vercel": {"system": "Be brief.", "prompt": "Hi"},
    "langchain batch": {"messages": [[{"type": "system", "content": "Be brief."}, {"type": "human", "content": "Hi"}]]},
    "role lines": "system: Be brief.\nuser: Hi",
}
ANSWERS: dict[str, Any] = {
    "text": "Hello.",
    "message": {"role": "assistant", "content": "Hello."},
    "list": [{"role": "assistant", "parts": [{"type": "text", "content": "Hello."}], "finish_reason": "stop"}],
    "openai": {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello."}}]},
    "responses": {
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]}]
    },
    "gemini": {"content": {"parts": [{"text": "Hello."}], "role": "model"}, "finish_reason": "STOP"},
    "gemini rest": {"candidates": [{"content": {"parts": [{"text": "Hello."}], "role": "model"}}]},
    "langchain": {"generations": [[{"text": "Hello.", "message": {"type": "ai", "content": "Hello."}}]]},
    "langchain text": {"generations": [[{"text": "Hello.", "generation_info": {}}]]},
    "completion": {"text": "Hello.", "finish_reason": "stop"},
    "choice": {"index": 0, "message": {"role": "assistant", "content": "Hello."}},
}


def words(messages: list[dict[str, Any] | None]) -> list[tuple[str, str]]:
    out = []
    for message in messages:
        assert message is not None
        content = message["content"]
        content = (
            content
            if isinstance(content, str)
            else "".join(part if isinstance(part, str) else part["text"] for part in content)
        )
        out.append((message["role"], content))
    return out


@pytest.mark.parametrize("value", GIVEN.values(), ids=GIVEN)
def test_every_shape_of_a_request_gives_the_same_messages(value: Any) -> None:
    said = given(value)
    assert words(said.messages) == [("system", "Be brief."), ("user", "Hi")]
    assert said.losses <= {"roles_from_text"}
    assert said.as_text == ("roles_from_text" in said.losses)


@pytest.mark.parametrize("value", ANSWERS.values(), ids=ANSWERS)
def test_every_shape_of_a_response_gives_the_same_answer(value: Any) -> None:
    for spelled in (value, value if isinstance(value, str) else json.dumps(value)):
        answer, losses = answered(spelled)
        assert answer is not None
        assert words([answer]) == [("assistant", "Hello.")]
        assert losses == set()


def test_an_answer_that_is_some_json_is_kept_to_the_letter() -> None:
    text = '{"name":"eggs",  "steps":[1, 2.0]}'
    assert answered(text) == ({"role": "assistant", "content": text}, set())
    assert words(given(text).messages) == [("user", text)]


def test_calls_alone_are_an_answer() -> None:
    for calls in (
        [{"toolCallId": "c1", "toolName": "f", "input": "{}"}],
        [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    ):
        answer, _ = answered(json.dumps(calls))
        assert answer is not None
        assert answer["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


def test_one_of_several_answers_is_read_and_the_others_noted() -> None:
    choices = [{"message": {"role": "assistant", "content": text}} for text in ("one", "two")]
    answer, losses = answered({"choices": choices})
    assert answer is not None
    assert (answer["content"], losses) == ("one", {"branches_dropped"})


def test_nothing_said_is_no_answer() -> None:
    for value in (None, "", [], {}, [None], {"choices": []}):
        assert answered(value)[0] is None
    with pytest.raises(Reject, match="not recorded"):
        required(Said())


def test_schemas_in_every_shape_are_openais() -> None:
    parameters = {"type": "object", "properties": {}}
    shapes: list[Any] = [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}},
        {"type": "function", "name": "f", "description": "d", "parameters": parameters, "strict": True},
        {"name": "f", "description": "d", "input_schema": parameters},
        json.dumps({"type": "function", "name": "f", "description": "d", "inputSchema": parameters}),
        {"function_declarations": [{"name": "f", "description": "d", "parameters": parameters}]},
    ]
    for shape in shapes:
        (tool,) = schemas([shape])
        assert tool == {"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}
    assert schemas([None, 1, {"x": 1}, "text", {"function_declarations": [1]}]) == []


def test_schemas_listed_among_the_messages_are_no_messages() -> None:
    said = given([*CHAT, {"role": "tool", "content": {"type": "function", "function": {"name": "f"}}}])
    assert len(said.messages) == 2
    assert said.tools == [{"type": "function", "function": {"name": "f"}}]


def test_role_lines_split_where_they_begin_and_lose_only_the_breaks() -> None:
    text = "system: a\nb\nuser: c: d\n\ntool: {}\nassistant: "
    said = given(text)
    assert words(said.messages) == [("system", "a\nb"), ("user", "c: d\n"), ("tool", "{}"), ("assistant", "")]
    assert words(given("Dear assistant: hi").messages) == [("user", "Dear assistant: hi")]


def test_instructions_are_a_system_message() -> None:
    assert words(instructions("user: me").messages) == [("system", "user: me")]
    assert words(instructions('[{"type": "text", "content": "a"}]').messages) == [("system", "a")]
    assert instructions(None).messages == []


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.sampled_from(["system: x\nuser: y", "[1]", "{"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "type",
                    "content",
                    "messages",
                    "input",
                    "output",
                    "prompt",
                    "system",
                    "choices",
                    "tools",
                    "text",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@example(JSON)
def test_no_value_makes_it_fail(value: Any) -> None:
    for message in given(value).messages:
        assert message is not None
    answer, _ = answered(value)
    assert answer is None or answer["role"] == "assistant"
    schemas(value)


@pytest.mark.parametrize(
    "text", ['{"a": NaN}', "[" * 5000 + "]" * 5000, '["\\ud800"', "{", '{"a": ' + "9" * 5000 + "}"]
)
def test_json_that_cannot_be_kept_stays_text(text: str) -> None:
    assert parsed(text) is text
    assert words(given(text).messages) == [("user", text)]


def test_half_characters_in_an_inner_json_are_replaced() -> None:
    assert parsed('["\\ud800x"]') == ["\ufffdx"]
