"""Responses items: calls join their outputs by call_id, thinking stays with what follows it, lacks are said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvmill.traces import checks, formats
from kvmill.traces.readers.openai_responses import read, sniff
from kvmill.traces.reading import Reject
from kvmill.traces.trajectory import Usage

USER = {"role": "user", "content": [{"type": "input_text", "text": "Where is 7?"}]}
SAID = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "In Oslo."}]}


def call(id: str, name: str = "find") -> dict[str, Any]:
    return {"type": "function_call", "id": f"fc_{id}", "call_id": f"call_{id}", "name": name, "arguments": '{"id":7}'}


def result(id: str, output: Any = "in Oslo") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"call_{id}", "output": output}


def thought(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text}], **more}


def test_calls_find_their_outputs_by_call_id_and_parallel_calls_are_one_turn() -> None:
    made = read([USER, call("b"), call("a"), result("a", "1"), result("b", "2"), SAID])
    assert [c.id for c in made.turns[0].assistant.tool_calls] == ["call_b", "call_a"]
    assert [(m.tool_call_id, m.content) for m in made.turns[0].tools] == [("call_a", "1"), ("call_b", "2")]
    assert made.turns[0].assistant.tool_calls[0].arguments == '{"id":7}'
    assert made.turns[1].assistant.content == "In Oslo."
    assert checks.trajectory_findings(made) == []
    assert made.losses == ("no_tool_schemas",)


def test_thinking_belongs_to_what_follows_it() -> None:  # bug 21
    made = read([USER, thought("A"), call("a"), result("a"), thought("B"), SAID, USER, thought("C"), call("c")])
    assert [t.assistant.reasoning for t in made.turns] == ["A", "B", "C"]
    assert [bool(t.assistant.tool_calls) for t in made.turns] == [True, False, True]


def test_thinking_at_the_end_of_an_input_belongs_to_the_answer() -> None:  # bug 21
    made = read({"input": [USER, call("a"), result("a"), thought("B")], "output": [SAID]})
    assert [(t.assistant.reasoning, t.assistant.content) for t in made.turns] == [(None, ""), ("B", "In Oslo.")]
    assert made.meta == {"one_call": True}


def test_the_thinking_of_open_models_is_kept_and_encrypted_thinking_is_said() -> None:
    own = thought("short", content=[{"type": "reasoning_text", "text": "the long way"}])
    made = read([USER, own, SAID])
    assert made.turns[0].assistant.reasoning == "the long way"
    assert made.losses == ()
    made = read([USER, thought("short", encrypted_content="gAAA"), SAID])
    assert made.turns[0].assistant.reasoning == "short"
    assert made.losses == ("reasoning_encrypted",)


def test_a_request_with_its_response() -> None:
    tools = [{"type": "function", "name": "find", "parameters": {}, "strict": True}, {"type": "web_search"}]
    request = {"model": "asked", "instructions": "Be brief.", "input": "Where is 7?", "tools": tools}
    usage = {"input_tokens": 50, "input_tokens_details": {"cached_tokens": 20}, "output_tokens": 6}
    response = {"object": "response", "model": "m-1", "output": [SAID], "usage": usage}
    events = "".join(
        f"event: {e['type']}\ndata: {json.dumps(e)}\n\n"
        for e in ({"type": "response.created", "response": {}}, {"type": "response.completed", "response": response})
    )
    wraps: list[Any] = [
        {"request": request, "response": response},
        {**request, **response},
        {"body": request, "response": {"status_code": 200, "body": response}},
        {"request": {"body": json.dumps(request)}, "response": {"status": 200, "body": events}},
    ]
    for record in wraps:
        assert sniff(record)
        made = read(record)
        assert [(m.role, m.content) for m in made.prefix] == [("system", "Be brief."), ("user", "Where is 7?")]
        assert made.turns[0].usage == Usage(30, 20, None, 6)
        assert made.tools == ({"type": "function", "function": {"name": "find", "parameters": {}, "strict": True}},)
        assert made.meta == {"one_call": True, "hosted_tools": ["web_search"]}
        assert made.model == "m-1"


def test_a_response_says_when_it_began_and_ended() -> None:
    made = read({"input": [USER, SAID, USER], "output": [SAID], "created_at": 100, "completed_at": 103})
    assert [(turn.started_s, turn.duration_s) for turn in made.turns] == [(None, None), (0.0, 3.0)]
    assert made.meta == {"one_call": True, "start_s": 100.0}


def test_a_history_on_the_server_is_said() -> None:
    assert "history_on_server" in read({"input": [USER], "output": [SAID], "previous_response_id": "resp_0"}).losses
    assert "history_on_server" in read([{"type": "item_reference", "id": "msg_0"}, USER, SAID]).losses
    assert read({"input": [USER], "output": [SAID], "previous_response_id": None}).losses == ()


def test_other_calls_are_kept_as_they_are() -> None:
    items = [
        USER,
        {"type": "custom_tool_call", "call_id": "p", "name": "apply_patch", "input": "*** Begin Patch"},
        {"type": "custom_tool_call_output", "call_id": "p", "output": "Done!"},
        {"type": "local_shell_call", "call_id": "s", "action": {"command": ["ls"]}},
        {"type": "local_shell_call_output", "call_id": "s", "output": "a.py"},
        {"type": "mcp_call", "id": "mcp_1", "name": "ask", "arguments": '{"q": 1}', "output": "42"},
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "oslo"}},
        SAID,
    ]
    made = read(items)
    called = [(c.name, c.arguments) for t in made.turns for c in t.assistant.tool_calls]
    assert called == [
        ("apply_patch", "*** Begin Patch"),
        ("local_shell", '{"command": ["ls"]}'),
        ("ask", '{"q": 1}'),
        ("web_search", '{"type": "search", "query": "oslo"}'),
    ]
    assert [m.content for t in made.turns for m in t.tools] == ["Done!", "a.py", "42"]
    assert {"hosted_tools", "arguments_were_objects"} <= set(made.losses)


def test_unknown_items_and_compaction_are_said() -> None:
    made = read([USER, {"type": "thought_bubble", "text": "x"}, SAID])
    assert made.losses == ("unknown_items",)
    made = read([USER, {"type": "compaction", "encrypted_content": "x"}, SAID])
    assert made.already_compacted


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"object": "response", "output": [SAID]}, "there is no prompt to replay"),
        ({"sse": [{"type": "response.completed", "response": {"output": [SAID]}}]}, "there is no prompt to replay"),
        ([SAID], "the first message is the assistant's"),
        ([USER, call("a"), 7], "an item is not an object"),
        ("x", "not an object"),
    ],
)
def test_what_cannot_be_read_is_rejected_with_a_reason(record: Any, reason: str) -> None:
    assert sniff(record) or record == "x"
    with pytest.raises(Reject, match=reason):
        read(record)


def test_chat_messages_are_not_taken_for_items() -> None:
    chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    assert formats.detect([chat], "x").name == "openai-chat"
    assert formats.detect([[{**m, "type": "message"} for m in chat]], "x").name == "openai-responses"


def test_what_a_remote_tool_failed_with_is_its_result() -> None:
    failed = {"type": "mcp_call", "id": "m", "name": "find", "arguments": "{}", "output": None, "error": "no such id"}
    made = read([USER, failed, SAID])
    assert [(m.tool_call_id, m.content) for m in made.turns[0].tools] == [("m", "no such id")]


def test_a_stream_that_breaks_off_keeps_its_items_and_says_so() -> None:
    begun = {"type": "message", "role": "assistant", "content": []}
    events = [
        {"type": "response.created", "response": {"object": "response", "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**call("a"), "arguments": ""}},
        {"type": "response.output_item.done", "output_index": 0, "item": call("a")},
        {"type": "response.output_item.added", "output_index": 1, "item": begun},
        {"type": "response.output_text.delta", "output_index": 1, "delta": "In "},
        {"type": "response.output_text.delta", "output_index": 1, "delta": "Os"},
    ]
    body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    made = read({"request": {"input": [USER, SAID, USER]}, "response": {"status": 200, "body": body}})
    said = made.turns[1].assistant
    assert (said.content, [c.arguments for c in said.tool_calls]) == ("In Os", ['{"id":7}'])
    assert "interrupted" in made.losses
    assert "trailing_user_dropped" not in made.losses


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_response_that_did_not_end_says_so(status: str) -> None:
    assert "interrupted" in read({"input": [USER, SAID, USER], "status": status, "output": [SAID]}).losses
