"""WideSearch responses: steps come apart into messages and results; scores beside are kept, and are no label."""

from __future__ import annotations

from typing import Any

from sources import Beside, items

from kvmill.traces import checks, formats
from kvmill.traces.readers.widesearch import FORMAT
from kvmill.traces.trajectory import Trajectory

STEP: dict[str, Any] = {
    "step_status": "continue",
    "content": "Searching.",
    "reasoning_content": "need hospitals",
    "signature": None,
    "tool_calls": [
        {"tool_name": "search", "arguments": '{"q":"a"}', "tool_call_id": "c1"},
        {"tool_name": "search", "arguments": {"q": "b"}, "tool_call_id": "c2"},
    ],
    "tool_call_results": [
        {"tool_call_id": "c1", "content": "hits", "error_marker": None, "extra": {}},
        {"tool_call_id": "c2", "content": None, "error_marker": {"message": "timed out"}},
    ],
    "error_marker": None,
}
TABLE = "```markdown\n| a | b |\n```"
RESPONSE: dict[str, Any] = {
    "instance_id": "ws_en_001",
    "response": TABLE,
    "messages": [
        {"role": "user", "content": "List all."},
        {"role": "assistant", "content": STEP},
        {"role": "assistant", "content": {"step_status": "finished", "content": TABLE, "tool_calls": []}},
    ],
    "trial_idx": 1,
}
NAME = "m_ws_en_001_1_response.jsonl"
SCORES = {"m_ws_en_001_1_eval_result.json": [{"instance_id": "ws_en_001", "score": 0.0, "f1_by_item": 0.5, "msg": "x"}]}


def read(response: Any, name: str = NAME) -> Trajectory:
    (item,) = items(FORMAT, [response], Beside(SCORES, name))
    assert isinstance(item.value, Trajectory), item.reason
    return item.value


def test_a_step_is_a_message_its_calls_and_their_results() -> None:
    assert formats.detect([RESPONSE], "x").name == "widesearch"
    run = read(RESPONSE)
    assert [(m.role, m.content) for m in run.messages()] == [
        ("user", "List all."),
        ("assistant", "Searching."),
        ("tool", "hits"),
        ("tool", "timed out"),
        ("assistant", TABLE),
    ]
    first = run.turns[0].assistant
    assert first.reasoning == "need hospitals"
    assert [call.arguments for call in first.tool_calls] == ['{"q":"a"}', '{"q": "b"}']
    assert set(run.losses) == {"no_system_prompt", "no_tool_schemas", "arguments_were_objects"}
    assert checks.trajectory_findings(run) == []


def test_scores_are_kept_and_are_no_label() -> None:
    run = read(RESPONSE)
    assert run.meta == {"instance_id": "ws_en_001", "trial_idx": 1, "scores": {"score": 0.0, "f1_by_item": 0.5}}
    assert run.label is None
    assert "scores" not in read(RESPONSE, "renamed.jsonl").meta


def test_the_files_of_the_judgement_belong_to_the_response() -> None:
    beside = Beside({**SCORES, "m_ws_en_001_1_eval_result.csv": "a,b"}, NAME)
    items(FORMAT, [RESPONSE], beside)
    assert sorted(beside.opened) == ["m_ws_en_001_1_eval_result.csv", "m_ws_en_001_1_eval_result.json"]


def test_plain_messages_with_only_the_last_one_nested_read_too() -> None:
    plain = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]
    run = read({**RESPONSE, "messages": [*plain, {"role": "assistant", "content": {"content": TABLE}}]})
    assert [m.content for m in run.messages()] == ["S", "Q", TABLE]
    assert run.losses == ()


def test_failed_calls_and_sub_agents_are_missing_calls() -> None:
    failed = {"role": "assistant", "content": {"content": None, "error_marker": {"message": "429"}}}
    run = read({**RESPONSE, "messages": [RESPONSE["messages"][0], failed, *RESPONSE["messages"][1:]]})
    assert len(run.turns) == 2
    assert "missing_calls" in run.losses
    assert "missing_calls" in read(RESPONSE, "m_ws_en_001_1_multi_agent_response.jsonl").losses


def test_a_response_without_messages_is_refused() -> None:
    (item,) = items(FORMAT, [{**RESPONSE, "messages": "none"}], Beside({}, NAME))
    assert item.reason == "no messages"
