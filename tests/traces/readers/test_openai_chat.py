"""OpenAI chat in its variants: nothing said is lost, calls keep raw arguments, usage falls in disjoint buckets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvmill.traces import formats
from kvmill.traces.readers.openai_chat import read, sniff, usage_of
from kvmill.traces.reading import Reject
from kvmill.traces.trajectory import Usage

USER = {"role": "user", "content": "Where is order 7?"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"id":7,  "x":1.0}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "name": "find", "content": "in Oslo"}
SAID = {"role": "assistant", "content": "It is in Oslo."}
TALK = [{"role": "system", "content": "Be brief."}, USER, CALL, RESULT, SAID]


def test_a_conversation_becomes_prefix_and_turns() -> None:
    run = read({"messages": TALK, "model": "m-1"})
    assert [m.role for m in run.prefix] == ["system", "user"]
    assert [(t.assistant.content, len(t.tools), len(t.user)) for t in run.turns] == [
        ("", 1, 0),
        ("It is in Oslo.", 0, 0),
    ]
    assert run.turns[0].assistant.tool_calls[0].arguments == '{"id":7,  "x":1.0}'
    assert run.turns[0].assistant.tool_calls[0].parsed == {"id": 7, "x": 1.0}
    assert run.turns[0].tools[0].tool_call_id == "c1"
    assert (run.model, run.family, run.losses) == ("m-1", "chat", ("no_tool_schemas",))
    assert [m.content for m in run.messages()] == [m["content"] or "" for m in TALK]


def test_user_messages_after_the_prefix_go_before_the_answer_and_trailing_ones_are_dropped() -> None:
    talk = [USER, SAID, {"role": "user", "content": "And 8?"}, {"role": "user", "content": "Hello?"}, SAID, USER]
    run = read({"messages": talk})
    assert [m.content for m in run.turns[1].user] == ["And 8?", "Hello?"]
    assert len(run.turns) == 2
    assert run.losses == ("trailing_user_dropped",)


def test_a_greeting_belongs_to_the_prefix() -> None:
    hello = {"role": "assistant", "content": "Hi, how can I help?"}
    run = read({"messages": [hello, USER, SAID]})
    assert [m.content for m in run.prefix] == ["Hi, how can I help?", "Where is order 7?"]
    assert len(run.turns) == 1


@pytest.mark.parametrize(
    ("wrap", "model"),
    [
        (lambda q, a: {"request": q, "response": a}, "m-2"),
        (lambda q, a: {"body": q, "response": {"status_code": 200, "body": a}}, "m-2"),
        (lambda q, a: {**q, **a}, "m-2"),
    ],
)
def test_a_request_with_its_response_is_one_conversation_with_usage(wrap: Any, model: str) -> None:
    request = {"model": "asked", "messages": TALK[:-1], "tools": [{"name": "find", "parameters": {}}]}
    usage = {"prompt_tokens": 100, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 64}}
    response = {"model": model, "choices": [{"message": {"content": "It is in Oslo."}}], "usage": usage}
    record = wrap(request, response)
    assert sniff(record)
    run = read(record)
    assert run.turns[-1].assistant.content == "It is in Oslo."
    assert run.turns[-1].usage == Usage(36, 64, None, 9)
    assert run.turns[0].usage is None
    assert run.model == model
    assert run.tools == ({"type": "function", "function": {"name": "find", "parameters": {}}},)
    assert run.losses == ()


def test_parts_are_joined_and_what_is_no_text_is_noted() -> None:
    parts = [
        {"type": "text", "text": "one"},
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "text", "text": "two"},
    ]
    run = read(
        {
            "messages": [
                {"role": "user", "content": parts},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            ]
        }
    )
    assert run.prefix[0].content == "one\ntwo"
    assert run.turns[0].assistant.content == "No."
    assert run.losses == ("non_text_content",)


def test_objects_as_arguments_and_calls_without_ids_are_kept() -> None:
    call = {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, "ü"]}}}, {"function": {"name": "g"}}],
    }
    legacy = {"role": "assistant", "content": "", "function_call": {"name": "h", "arguments": "{}"}}
    answers = [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    run = read({"messages": [USER, call, *answers, legacy, {"role": "function", "name": "h", "content": "3"}]})
    first, second = run.turns[0].assistant.tool_calls
    assert (first.arguments, second.arguments) == ('{"a": [1, "ü"]}', "{}")
    assert len({first.id, second.id, run.turns[1].assistant.tool_calls[0].id}) == 3
    assert run.turns[1].tools[0].name == "h"
    assert "arguments_were_objects" in run.losses
    assert "call_without_result" not in run.losses


def test_thinking_is_taken_out_of_the_content() -> None:
    field = read([USER, {"role": "assistant", "content": "Oslo.", "reasoning_content": "Let me see."}])
    tags = read([USER, {"role": "assistant", "content": "<think>\nLet me see.\n</think>\n\nOslo."}])
    assert field.turns == tags.turns
    assert field.turns[0].assistant.reasoning == "Let me see."


def test_broken_pairs_are_losses() -> None:
    interrupted = read([USER, CALL, USER, SAID])
    assert interrupted.losses == ("call_without_result", "no_tool_schemas")
    orphan = read([USER, SAID, RESULT])
    assert orphan.losses == ("result_without_call",)
    late = read([USER, CALL, USER, RESULT, SAID])
    assert late.losses == ("no_tool_schemas", "results_out_of_order")
    assert late.turns[0].tools[0].content == "in Oslo"


def test_a_developer_message_keeps_its_role() -> None:
    assert read([{"role": "developer", "content": "x"}, USER, SAID]).prefix[0].role == "developer"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"messages": []}, "no messages"),
        ({"messages": [USER]}, "no assistant message"),
        ({"messages": [SAID]}, "the first message is the assistant's"),
        ({"messages": [USER, {"role": "wizard", "content": "x"}]}, "message 1 has the unknown role 'wizard'"),
        ({"messages": [USER, "text"]}, "message 1 is not an object"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "no function name"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": "f()"}]}, "tool_calls is not a list"),
        ({"messages": [USER, SAID], "tools": "[not json"}, "tools is a string"),
        ({"messages": [USER], "response": {"choices": []}}, "the response holds no message"),
        ("text", "not an object"),
    ],
)
def test_what_cannot_be_read_is_rejected_with_a_reason(record: Any, reason: str) -> None:
    with pytest.raises(Reject, match=reason.replace("(", r"\(")):
        read(record)


def test_a_real_message_list_keeps_every_character(shared_data: Path) -> None:
    record = json.loads((shared_data / "traces/openhands/sdk__fncall-llm-message.json").read_text())
    assert formats.detect([record], "x").name == "openai-chat"
    run = read(record)
    assert [m.content for m in run.messages()] == [m["content"] for m in record]
    calls = [c["function"]["arguments"] for m in record for c in m.get("tool_calls", [])]
    assert [c.arguments for turn in run.turns for c in turn.assistant.tool_calls] == calls
    assert len(calls) == 6


def chunk(**delta: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "model": "m-2", "choices": [{"index": 0, "delta": delta}]}


def test_a_streamed_response_is_put_together() -> None:
    def piece(index: int, text: str, **more: Any) -> dict[str, Any]:
        return {"index": index, "function": {"arguments": text, **more.pop("function", {})}, **more}

    chunks = [
        chunk(role="assistant", content="Let me "),
        chunk(content="look.", reasoning_content="Hm."),
        chunk(tool_calls=[piece(0, "", id="c1", function={"name": "find"})]),
        chunk(tool_calls=[piece(0, '{"id"'), piece(1, "{}", id="c2", function={"name": "stop"})]),
        chunk(tool_calls=[piece(0, ":7}")]),
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}},
    ]
    body = "".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + "data: [DONE]\n\n"
    for response in (chunks, {"status": 200, "body": body}, {"sse": chunks}):
        record = {"request": {"messages": [USER]}, "response": response}
        assert sniff(record)
        run = read(record)
        said = run.turns[0].assistant
        assert (said.content, said.reasoning) == ("Let me look.", "Hm.")
        assert [(c.id, c.name, c.arguments) for c in said.tool_calls] == [
            ("c1", "find", '{"id":7}'),
            ("c2", "stop", "{}"),
        ]
        assert run.turns[0].usage == Usage(5, None, None, 3)
        assert run.model == "m-2"


@pytest.mark.parametrize(
    ("usage", "buckets"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 1, "prompt_cache_hit_tokens": 4}, Usage(5, 4, None, 1)),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 1,
                "cache_read_input_tokens": 4,
                "cache_creation_input_tokens": 3,
            },
            Usage(2, 4, 3, 1),
        ),
        ({"prompt_tokens": 0, "completion_tokens": 0}, Usage(0, None, None, 0)),
        ({"prompt_tokens": True, "completion_tokens": "3"}, None),
    ],
)
def test_usage_falls_in_disjoint_buckets(usage: dict[str, Any], buckets: Usage | None) -> None:
    assert usage_of(usage) == buckets


@pytest.mark.parametrize(
    "record",
    [
        {"object": "chat.completion", "choices": [{"message": {"content": "x"}}]},
        {"sse": [chunk(content="x")]},
        {"custom_id": "1", "response": {"status_code": 200, "body": {"object": "chat.completion", "choices": []}}},
    ],
)
def test_a_response_alone_is_known_and_refused(record: dict[str, Any]) -> None:
    assert formats.detect([record], "x").name == "openai-chat"
    with pytest.raises(Reject, match="a response without its request"):
        read(record)


def test_other_answers_of_a_call_are_counted() -> None:
    answers = [{"message": {"content": said}} for said in "abc"]
    run = read({"messages": [USER], "choices": answers})
    assert run.turns[0].assistant.content == "a"
    assert run.losses == ("branches_dropped:2",)


def test_a_system_prompt_beside_the_messages_is_kept() -> None:
    record = {"system": "Be brief.", "messages": [USER, CALL, RESULT, SAID]}
    assert formats.detect([record], "x").name == "openai-chat"
    assert [(m.role, m.content) for m in read(record).prefix] == [("system", "Be brief."), ("user", USER["content"])]


def test_a_log_that_times_its_calls() -> None:
    answer = {"choices": [{"message": {"content": "x"}}]}
    run = read({"messages": [USER, SAID, USER], "response": answer, "startTime": 100.5, "endTime": 102.0})
    assert [(turn.started_s, turn.duration_s) for turn in run.turns] == [(None, None), (0.0, 1.5)]
    assert run.meta == {"one_call": True, "start_s": 100.5}


def test_the_words_of_a_spoken_answer_are_its_content() -> None:
    spoken = {"role": "assistant", "content": None, "audio": {"id": "a", "data": "AA", "transcript": "In Oslo."}}
    run = read([USER, spoken])
    assert run.turns[0].assistant.content == "In Oslo."
    assert run.losses == ("non_text_content",)


@pytest.mark.parametrize(
    "more",
    [
        {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "x"}]},
        {
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                {"type": "text", "text": "a"},
            ]
        },
    ],
)
def test_thinking_is_kept_where_gateways_put_it(more: dict[str, Any]) -> None:
    said = read([USER, {"role": "assistant", "content": "a", **more}]).turns[0].assistant
    assert (said.content, said.reasoning) == ("a", "hm")


def test_custom_tools_are_called_with_a_text() -> None:
    called = {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls"}}],
    }
    tools = [{"type": "custom", "custom": {"name": "sh", "description": "a shell"}}]
    run = read({"messages": [USER, called], "tools": tools})
    assert [(c.name, c.arguments, c.parsed) for c in run.turns[0].assistant.tool_calls] == [("sh", "ls", None)]
    assert run.tools == ({"type": "function", "function": {"name": "sh", "description": "a shell"}},)


def piece(index: int, id: str | None, arguments: str) -> dict[str, Any]:
    return chunk(tool_calls=[{"index": index, "id": id, "function": {"name": "find", "arguments": arguments}}])


def test_streamed_calls_under_one_index_are_told_apart_by_their_ids() -> None:
    pieces = [piece(0, "a", '{"id"'), piece(0, "a", ":1}"), piece(0, "b", '{"id":'), piece(0, None, "2}")]
    calls = read({"messages": [USER], "response": pieces}).turns[0].assistant.tool_calls
    assert [(call.id, call.arguments) for call in calls] == [("a", '{"id":1}'), ("b", '{"id":2}')]


def test_a_streamed_call_of_the_first_api_is_a_call() -> None:
    pieces = [chunk(function_call={"name": "find", "arguments": '{"id"'}), chunk(function_call={"arguments": ":7}"})]
    calls = read({"messages": [USER], "response": pieces}).turns[0].assistant.tool_calls
    assert [(call.name, call.arguments) for call in calls] == [("find", '{"id":7}')]


@pytest.mark.parametrize("whole", [True, False])
def test_a_stream_that_breaks_off_keeps_what_came_and_says_so(whole: bool) -> None:
    text = f"data: {json.dumps(chunk(content='In Os'))}\n\n"
    end = {**chunk(content="lo."), "choices": [{"delta": {"content": "lo."}, "finish_reason": "stop"}]}
    text += f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n" if whole else 'data: {"choices": [{"del'
    run = read({"request": {"messages": [USER]}, "response": {"status": 200, "body": text}})
    assert run.turns[0].assistant.content == ("In Oslo." if whole else "In Os")
    assert ("interrupted" in run.losses) is not whole


def test_an_error_in_place_of_an_answer_is_named() -> None:
    with pytest.raises(Reject, match="the response is an error: slow down"):
        read({"messages": [USER], "response": {"error": {"message": "slow down", "code": 429}}})


def test_an_answer_may_be_a_plain_text_and_one_that_cannot_be_read_is_missed() -> None:
    run = read({"messages": [USER], "response": "In Oslo."})
    assert (run.turns[0].assistant.content, run.meta) == ("In Oslo.", {"one_call": True})
    assert "no_last_reply" in read({"messages": [*TALK, USER], "response": '{"choices": [{"mess'}).losses


@pytest.mark.parametrize(
    "record",
    [{"conversation": TALK}, {"conversations": TALK}, {"messages": json.dumps(TALK)}],
    ids=lambda r: next(iter(r)),
)
def test_a_list_of_messages_has_other_names_and_may_be_text(record: dict[str, Any]) -> None:
    assert formats.detect([record], "x").name == "openai-chat"
    assert read(record) == read({"messages": TALK})
