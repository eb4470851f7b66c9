"""OpenInference's flattened messages come back in order and whole; what the attribute limit cut off is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sources import items

from kvmill.traces import formats
from kvmill.traces.readers.openinference import FORMAT
from kvmill.traces.trajectory import Trajectory, Usage


def flattened(messages: list[dict[str, Any]], answer: str | None = "Done.", **more: Any) -> dict[str, Any]:
    flat: dict[str, Any] = {"openinference.span.kind": "LLM", "llm.model_name": "m"}
    for n, message in enumerate(messages):
        flat |= {f"llm.input_messages.{n}.message.{key}": value for key, value in message.items()}
    if answer is not None:
        flat |= {"llm.output_messages.0.message.role": "assistant", "llm.output_messages.0.message.content": answer}
    return flat | more


def talk(length: int) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[n % 2], "content": f"said {n}"} for n in range(length)]


def span(attributes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "LLM", "traceId": "t", "spanId": "s", "attributes": attributes, **more}


def one(*records: Any) -> Trajectory:
    (item,) = items(FORMAT, list(records))
    assert isinstance(item.value, Trajectory), item.reason
    return item.value


def test_the_tenth_message_comes_after_the_second() -> None:
    run = one(flattened(talk(13)))
    assert [m.content for m in run.messages()] == [*(f"said {n}" for n in range(13)), "Done."]
    assert run.losses == ()


def test_sixty_messages_cut_at_128_attributes_are_incomplete() -> None:  # bug 10
    whole = flattened(talk(79))
    assert len(whole) > 128
    first = dict(list(whole.items())[:124]) | dict(list(whole.items())[-2:])
    for record in (span(first, droppedAttributesCount=len(whole) - 126), span(dict(list(whole.items())[-128:]))):
        run = one(record)
        assert "truncated_source" in run.losses
    last_gone = span(dict(list(whole.items())[:128]), droppedAttributesCount=len(whole) - 128)
    (item,) = items(FORMAT, [last_gone])
    assert item.reason == "the model's answer is not in the span, which has 128 attributes, 34 dropped"


def test_a_long_conversation_that_was_kept_whole_is_not_called_cut() -> None:
    assert "truncated_source" not in one(span(flattened(talk(59)))).losses


def test_content_and_contents_may_be_mixed_within_a_span() -> None:
    contents = "message.contents.{}.message_content.{}"
    parts = {
        "llm.input_messages.1." + contents.format(n, key): value
        for n, part in enumerate([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])
        for key, value in part.items()
    }
    run = one(flattened([{"role": "system", "content": "Be brief."}, {"role": "user"}], **parts))
    assert [m.content for m in run.prefix] == ["Be brief.", "one\ntwo"]
    both = parts | {"llm.input_messages.1.message.content": "zero"}
    assert one(flattened([{"role": "system"}, {"role": "user"}], **both)).prefix[-1].content == "zero\none\ntwo"
    same = parts | {"llm.input_messages.1.message.content": "one\ntwo"}
    assert one(flattened([{"role": "system"}, {"role": "user"}], **same)).prefix[-1].content == "one\ntwo"


def test_thinking_parts_and_calls_keep_what_was_recorded() -> None:
    calls = "llm.output_messages.0.message.tool_calls.{}.tool_call.{}"
    thought = "llm.output_messages.0.message.contents.0.message_content."
    more = {
        calls.format(0, "id"): "c1",
        calls.format(0, "function.name"): "f",
        calls.format(0, "function.arguments"): '{"x":  1.0}',
        thought + "type": "reasoning",
        thought + "text": "Hm.",
        "llm.tools.0.tool.json_schema": '{"type":"function","function":{"name":"f"}}',
    }
    run = one(flattened(talk(1), None, **more, **{"llm.output_messages.0.message.role": "assistant"}))
    assert run.turns[0].assistant.tool_calls[0].arguments == '{"x":  1.0}'
    assert run.turns[0].assistant.reasoning == "Hm."
    assert run.tools == ({"type": "function", "function": {"name": "f"}},)
    assert run.losses == ("ends_with_call",)


def test_a_dropped_message_leaves_a_hole_that_is_said() -> None:
    holes = {key: value for key, value in flattened(talk(5)).items() if ".3.message." not in key}
    run = one(holes)
    assert "truncated_source" in run.losses
    assert "said 3" not in str(run)


def test_usage_counts_the_cache_inside_the_prompt() -> None:  # bug 9
    counts = {
        "llm.token_count.prompt": 97,
        "llm.token_count.completion": 52,
        "llm.token_count.prompt_details.cache_read": 60,
        "llm.token_count.prompt_details.cache_write": 30,
    }
    assert one(flattened(talk(1), **counts)).turns[0].usage == Usage(7, 60, 30, 52)


def test_a_table_of_spans_has_messages_as_lists() -> None:
    messages = [{"message.role": "user", "message.content": "Hi"}]
    answer = [{"message.role": "assistant", "message.content": "Hello."}]
    row = {
        "name": "LLM",
        "context.trace_id": "t",
        "attributes.openinference.span.kind": "LLM",
        "attributes.llm.input_messages": messages,
        "attributes.llm.output_messages": json.dumps(answer),
    }
    assert formats.detect([row], "f").name == "openinference"
    assert [m.content for m in one(row).messages()] == ["Hi", "Hello."]


def test_attributes_may_be_nested_and_spans_come_in_pages() -> None:
    message = {"message": {"role": "user", "contents": [{"message_content": {"type": "text", "text": "Hi"}}]}}
    llm = {
        "model_name": "m",
        "input_messages": [message],
        "output_messages": [{"message": {"role": "assistant", "content": "Hello."}}],
        "token_count": {"prompt": 9, "completion": 2, "prompt_details": {"cache_read": 4}},
    }
    attributes = {"openinference": {"span": {"kind": "LLM"}}, "llm": llm, "session": {"id": "s"}}
    context = {"context": {"trace_id": "t", "span_id": "s"}, "start_time": "2025-01-01T00:00:00Z"}
    page = {"data": [{"name": "LLM", **context, "attributes": attributes}], "next_cursor": None}
    assert formats.detect([page], "f").name == "openinference"
    run = one(page)
    assert [m.content for m in run.messages()] == ["Hi", "Hello."]
    assert (run.turns[0].usage, run.meta["chain"]) == (Usage(5, 4, None, 2), "s")


def test_chains_and_retrievers_are_no_calls_and_a_session_is_the_chain() -> None:
    chain = {"openinference.span.kind": "CHAIN", "input.value": "x", "output.value": "y"}
    (item,) = items(FORMAT, [span(chain)])
    assert item.reason == "no span of a model call in this trace"
    assert one(span(chain, spanId="c"), span(flattened(talk(1), **{"session.id": "s7"}))).meta["chain"] == "s7"


def test_the_real_span_reads_whole(shared_data: Path) -> None:
    path = shared_data / "traces/openinference/openinference_client_span_tool_calls.json"
    record = json.loads(path.read_text())
    assert formats.detect([record], "x").name == "openinference"
    run = one(record)
    said = [value for key, value in record.items() if key.endswith((".text", "message.content"))]
    assert [m.content for m in run.messages()] == said
    assert run.turns[0].assistant.tool_calls[0].arguments == '{"location":"Paris"}'
    assert run.turns[1].usage == Usage(97, None, None, 52)
