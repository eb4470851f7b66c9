"""Anthropic Messages: results apart from words, usage beside the cache, streamed calls as the model spelt them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvmill.traces import checks, formats
from kvmill.traces.readers.anthropic_messages import read, sniff
from kvmill.traces.reading import Reject
from kvmill.traces.trajectory import Trajectory, Usage

ASKED = {"role": "user", "content": "Where is 7?"}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def use(id: str, name: str = "find") -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": {"id": 7}}


def result(id: str, content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, "is_error": False}


def said(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def told(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def run(record: Any) -> Trajectory:
    made = read(record)
    assert isinstance(made, Trajectory)
    return made


def test_results_answer_their_calls_and_words_after_them_belong_to_the_next_turn() -> None:
    made = run(
        [ASKED, said(text("Both."), use("a"), use("b")), told(result("b", "2"), result("a", "1"), text("Well?"))]
    )
    assert [(m.tool_call_id, m.content) for m in made.turns[0].tools] == [("b", "2"), ("a", "1")]
    assert made.losses == ("arguments_were_objects", "no_tool_schemas", "trailing_user_dropped")
    made = run([ASKED, said(use("a")), told(result("a", "1"), text("Well?"), text("Now.")), said(text("In Oslo."))])
    assert [m.content for m in made.turns[1].user] == ["Well?\nNow."]
    assert checks.trajectory_findings(made) == []


def test_system_schemas_and_usage_stand_where_the_api_has_them() -> None:
    tools = [
        {"name": "find", "description": "Finds.", "input_schema": {"type": "object"}},
        {"type": "web_search_20250305", "name": "web_search"},
    ]
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 20,
        "cache_creation_input_tokens": 5,
        "output_tokens": 4,
        "output_tokens_details": {"thinking_tokens": 3},
    }
    answer = {"type": "message", "content": [text("In Oslo.")], "usage": usage, "stop_reason": "end_turn", "model": "m"}
    made = run({"request": {"system": [text("Be brief.")], "tools": tools, "messages": [ASKED]}, "response": answer})
    assert [(m.role, m.content) for m in made.prefix] == [("system", "Be brief."), ("user", "Where is 7?")]
    function = {"name": "find", "description": "Finds.", "parameters": {"type": "object"}}
    assert made.tools == ({"type": "function", "function": function},)
    assert made.turns[0].usage == Usage(10, 20, 5, 4)
    assert made.meta == {"one_call": True, "hosted_tools": ["web_search_20250305"]}
    assert (made.losses, made.model) == ((), "m")


def test_thinking_is_kept_and_what_is_redacted_is_said() -> None:
    thinking = {"type": "thinking", "thinking": "Look.", "signature": "x"}
    made = run([ASKED, said(thinking, text("In Oslo."))])
    assert (made.turns[0].assistant.reasoning, made.losses) == ("Look.", ())
    made = run([ASKED, said({"type": "redacted_thinking", "data": "x"}, text("In Oslo."))])
    assert (made.turns[0].assistant.reasoning, made.losses) == (None, ("reasoning_encrypted",))


def test_a_call_that_nothing_answers_is_a_loss() -> None:  # bug 18
    made = run([ASKED, said(use("a")), told(text("Stop.")), said(text("Yes."))])
    assert "call_without_result" in made.losses
    assert [finding.code for finding in checks.trajectory_findings(made)] == ["call_without_result"]


def test_results_as_blocks_documents_and_pictures() -> None:
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "A page."}}
    picture = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
    made = run([told(document, text("Read.")), said(use("a")), told(result("a", [text("1"), document, picture]))])
    assert made.prefix[0].content == "A page.\nRead."
    assert made.turns[0].tools[0].content == "1\nA page."
    assert "non_text_content" in made.losses


def test_tools_of_the_provider_cut_the_answer() -> None:
    found = [{"type": "web_search_result", "title": "Oslo", "url": "https://a.b", "encrypted_content": "xxxx"}]
    ran = {"type": "web_search_tool_result", "tool_use_id": "s", "content": found}
    made = run([ASKED, said(text("I search."), {**use("s"), "type": "server_tool_use"}, ran, text("In Oslo."))])
    assert [t.assistant.content for t in made.turns] == ["I search.", "In Oslo."]
    assert "Oslo" in made.turns[0].tools[0].content
    assert "xxxx" not in made.turns[0].tools[0].content
    assert "hosted_tools" in made.losses
    assert checks.trajectory_findings(made) == []


def test_a_prefill_and_its_continuation_are_one_answer() -> None:
    answer = {"type": "message", "content": [text(" Oslo.")], "stop_reason": "end_turn"}
    made = run({"request": {"messages": [ASKED, {"role": "assistant", "content": "In"}]}, "response": answer})
    assert [t.assistant.content for t in made.turns] == ["In Oslo."]


def test_context_that_the_provider_edited_is_said() -> None:
    answer = {"type": "message", "content": [text("x")], "context_management": {"applied_edits": [{"cleared": 3}]}}
    assert run({"request": {"messages": [ASKED]}, "response": answer}).already_compacted
    assert run([ASKED, said({"type": "compaction", "content": "So far: …"}, text("x"), use("a"))]).already_compacted


def streamed(*events: dict[str, Any]) -> dict[str, Any]:
    body = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events)
    return {"request": {"body": json.dumps({"messages": [ASKED]})}, "response": {"status": 200, "body": body}}


START = {"type": "message_start", "message": {"type": "message", "stop_reason": None, "usage": {"input_tokens": 9}}}
BLOCK = {"type": "content_block_start", "index": 0, "content_block": text("")}
DELTA = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "In"}}


def test_a_stream_that_broke_off_is_interrupted_and_an_error_is_refused() -> None:
    made = run(streamed(START, BLOCK, DELTA))
    assert made.turns[0].assistant.content == "In"
    assert "interrupted" in made.losses
    with pytest.raises(Reject, match=r"the stream ends in an error: .*overloaded"):
        read(streamed(START, {"type": "error", "error": {"type": "overloaded_error"}}))
    alone = {"sse": [START, BLOCK, DELTA]}
    assert formats.detect([alone], "x").name == "anthropic-messages"
    with pytest.raises(Reject, match="a response without its request"):
        read(alone)
    with pytest.raises(Reject, match="the response is an error: rate_limit_error"):
        read({"request": {"messages": [ASKED]}, "response": {"type": "error", "error": {"type": "rate_limit_error"}}})


def test_a_cassette_of_several_calls_is_several_runs() -> None:
    answer = {"body": {"string": json.dumps({"type": "message", "content": [text("x")], "stop_reason": "end_turn"})}}
    call = {"request": {"body": json.dumps({"messages": [ASKED]})}, "response": answer}
    record = {"interactions": [call, call], "version": 1}
    assert sniff(record)
    assert [t.turns[0].assistant.content for t in read(record) if isinstance(t, Trajectory)] == ["x", "x"]


def test_openai_and_anthropic_are_told_apart() -> None:
    answer = {"type": "message", "content": [text("x")]}
    for record in (
        {"request": {"messages": [ASKED]}, "response": answer},
        {"request": {"messages": [ASKED], "system": "s"}, "response": answer},
        {"system": "s", "messages": [ASKED, {"role": "assistant", "content": "x"}]},
        {"messages": [ASKED, said(use("a"))]},
        [ASKED, said({"type": "thinking", "thinking": "x"})],
    ):
        assert formats.detect([record], "x").name == "anthropic-messages"
    assert formats.detect([{"messages": [ASKED, said(text("x"))]}], "x").name == "openai-chat"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"messages": []}, "no messages"),
        ([ASKED, {"role": "wizard", "content": "x"}], "message 1 has the unknown role 'wizard'"),
        ([ASKED, 7], "message 1 is not an object"),
        ([ASKED, {"role": "assistant", "tool_calls": [{"id": "c"}]}], "message 1 has tool_calls"),
        ({"interactions": [7]}, "not an object"),
        ("x", "not an object"),
    ],
)
def test_what_cannot_be_read_is_rejected_with_a_reason(record: Any, reason: str) -> None:
    with pytest.raises(Reject, match=reason):
        read(record)


def test_real_answers_are_refused_alone_and_whole_beside_a_request(shared_data: Path) -> None:
    files = sorted((shared_data / "traces/anthropic-messages").glob("*.json"))
    assert files
    made = {}
    for path in files:
        cassette = json.loads(path.read_text())
        assert formats.detect([cassette], "x").name == "anthropic-messages"
        with pytest.raises(Reject, match="a response without its request"):
            read(cassette)
        made[path.stem] = run({"request": {"messages": [ASKED]}, "response": cassette}).turns[0]
    streamed = made["reasoning-tool-use-streaming"]
    assert streamed.assistant.content == "Sure! Let me check the weather in San Francisco for you!"
    assert (streamed.assistant.reasoning or "").endswith(
        "I have all the required parameters to make the function call."
    )
    assert [(c.name, c.arguments) for c in streamed.assistant.tool_calls] == [
        ("get_weather", '{"location": "San Francisco"}')
    ]
    assert streamed.usage == Usage(596, 0, 0, 99)
    assert made["redacted-thinking-non-streaming"].assistant.content == "42"
    assert (made["thinking-multi-turn-0"].assistant.reasoning or "").startswith("27 * 453\n\nLet me break this down:")


def test_blocks_of_bedrock_are_read_as_what_they_are() -> None:
    called = {"toolUse": {"toolUseId": "a", "name": "find", "input": {"id": 7}}}
    thought = {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "x"}}}
    answer = {
        "toolResult": {"toolUseId": "a", "status": "success", "content": [{"text": "in Oslo"}, {"json": {"n": 1}}]}
    }
    record = {"messages": [told({"text": "Where is 7?"}), said({"text": "I look."}, called), told(answer)]}
    record["messages"].append(said(thought, {"text": "In Oslo."}))
    assert formats.detect([record], "x").name == "anthropic-messages"
    made = run(record)
    assert [(c.id, c.name, c.parsed) for c in made.turns[0].assistant.tool_calls] == [("a", "find", {"id": 7})]
    assert [(m.tool_call_id, m.content) for m in made.turns[0].tools] == [("a", 'in Oslo\n{"n": 1}')]
    assert (made.turns[1].assistant.reasoning, made.turns[1].assistant.content) == ("hm", "In Oslo.")
    assert made.losses == ("arguments_were_objects", "no_tool_schemas")


def test_a_document_is_read_with_its_title() -> None:
    document = {"type": "document", "title": "Rules", "source": {"type": "text", "data": "No pets."}}
    assert (
        run([told(document, text("Dogs?")), said(text("No."), use("a"))]).prefix[0].content == "Rules\nNo pets.\nDogs?"
    )


def test_a_message_of_a_responses_history_is_no_answer_of_this_api() -> None:
    assert not sniff({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]})
    assert sniff({"type": "message", "role": "assistant", "content": [text("x")]})
