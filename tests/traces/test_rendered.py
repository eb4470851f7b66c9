"""Every character of content that a template leaves out, trims or escapes is counted under its cause."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvmill.traces.record import tool_call
from kvmill.traces.tokens import tokenize
from kvmill.traces.trajectory import Message, Trajectory, Turn

BODY = "message.content + '<|im_end|>"


def losses(tokenizer: Any, *turns: Turn, tools: tuple[dict[str, Any], ...] = ()) -> set[str]:
    prefix = (Message("system", "Be brief."), Message("user", "Where?"))
    return set(tokenize(Trajectory("t", "test", "test", prefix, turns, tools), tokenizer).losses)


def test_a_result_that_a_template_writes_as_json_is_not_lost(tokenizer_with: Any, templates: dict[str, str]) -> None:
    escaping = templates["chatml"].replace(
        BODY, "(message.content | tojson if message.role == 'tool' else message.content) + '<|im_end|>"
    )
    said = Turn(Message("assistant", "Look"), (Message("tool", 'a "b"\nc\n'),))
    assert losses(tokenizer_with(escaping), said) == {"content_escaped:4"}


def test_of_content_that_is_half_printed_the_missing_half_counts(
    tokenizer_with: Any, templates: dict[str, str]
) -> None:
    cutting = templates["chatml"].replace(BODY, "message.content.split('###')[-1] + '<|im_end|>")
    found = losses(tokenizer_with(cutting), Turn(Message("assistant", "hm, hm###\nIt is here.")))
    assert found == {"content_dropped:10"}


def test_schemas_of_which_only_names_are_printed_lose_their_descriptions(
    tokenizer_with: Any, templates: dict[str, str]
) -> None:
    names = templates["raw"].replace("{{ tool | tojson }}", "{{ tool.function.name }}")
    tool = {
        "type": "function",
        "function": {"name": "look_up", "description": "Finds it.", "parameters": {"a": {"description": "Who"}}},
    }
    assert losses(tokenizer_with(names), Turn(Message("assistant", "Hi")), tools=(tool,)) == {"schema_text_dropped:12"}
    assert losses(tokenizer_with(templates["raw"]), Turn(Message("assistant", "Hi")), tools=(tool,)) == set()


def calls(*ids: str) -> Turn:
    made = tuple(tool_call(id, "look_up", json.dumps({"id": id})) for id in ("call_a", "call_b"))
    return Turn(Message("assistant", "", made), tuple(Message("tool", id, tool_call_id=id) for id in ids))


@pytest.mark.parametrize(
    ("ids", "expected"),
    [(("call_a", "call_b"), set()), (("call_b", "call_a"), {"results_attributed_by_order:1"}), (("call_b",), set())],
)
def test_results_in_another_order_than_their_calls_need_ids_to_be_understood(
    tokenizer_with: Any, templates: dict[str, str], ids: tuple[str, ...], expected: set[str]
) -> None:
    assert losses(tokenizer_with(templates["raw"]), calls(*ids)) == expected
    printing = templates["raw"].replace(
        "message.content + '\\n</tool", "message.tool_call_id + message.content + '\\n</tool"
    )
    assert "results_attributed_by_order:1" not in losses(tokenizer_with(printing), calls(*ids))


def test_an_empty_thought_before_a_real_one_is_named(tokenizer_with: Any, templates: dict[str, str]) -> None:
    doubling = templates["drops-thinking"].replace("{{- '<think>\\n' +", "{{- '<think>\\n\\n</think>\\n<think>\\n' +")
    found = losses(tokenizer_with(doubling), Turn(Message("assistant", "One.", reasoning="hm")))
    assert found == {"empty_thinking_added:1"}
