"""OpenHands logs of calls and conversation folders: nothing said is lost, usage and ids find their answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sources import Beside, items

from kvmill.traces import checks, formats
from kvmill.traces.files import read_file
from kvmill.traces.readers.openhands import FORMAT, sniff
from kvmill.traces.reading import Bad
from kvmill.traces.trajectory import RecordedIds, Trajectory, Usage


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


def event(kind: str, at: float, **values: Any) -> dict[str, Any]:
    return {"id": f"e{at}", "timestamp": f"2025-12-01T10:00:{at:09.6f}", "source": "agent", "kind": kind, **values}


def acted(at: float, answer: str, id: str, thought: str = "", **values: Any) -> dict[str, Any]:
    call = {"id": id, "name": "terminal", "arguments": '{"command":"ls"}', "origin": "completion"}
    said = {"thought": [text(thought)] if thought else [], "tool_call": call, "tool_call_id": id}
    return event("ActionEvent", at, tool_name="terminal", llm_response_id=answer, **said, **values)


def saw(at: float, id: str, said: str) -> dict[str, Any]:
    observation = {"content": [text(said)], "kind": "TerminalObservation"}
    return event("ObservationEvent", at, tool_name="terminal", tool_call_id=id, action_id="x", observation=observation)


SCHEMA = {"type": "function", "function": {"name": "terminal", "parameters": {}}}
SYSTEM = event("SystemPromptEvent", 0, system_prompt=text("You help."), tools=[SCHEMA], dynamic_context=text("Today."))
TASK = event("MessageEvent", 1, llm_message={"role": "user", "content": [text("Look.")]}) | {"source": "user"}
DONE = event("MessageEvent", 9, llm_message={"role": "assistant", "content": [text("Empty.")]}, llm_response_id="r9")
USES = [
    {
        "response_id": "r1",
        "prompt_tokens": 90,
        "completion_tokens": 7,
        "cache_read_tokens": 50,
        "cache_write_tokens": 10,
    }
]
STATE = {
    "id": "conversation-1",
    "agent": {"llm": {"model": "m-1"}, "kind": "Agent"},
    "persistence_dir": "x",
    "stats": {"usage_to_metrics": {"agent": {"token_usages": USES}}},
}


def run(values: list[Any], source: Beside | None = None) -> Trajectory:
    (item,) = items(FORMAT, values, source)
    assert isinstance(item.value, Trajectory), item.reason
    return item.value


def test_a_conversation_folder_is_one_run_with_usage_and_times() -> None:
    talk = [SYSTEM, TASK, acted(3, "r1", "c", "Let me see."), saw(3.5, "c", "a.py"), DONE]
    files: dict[str, Any] = {f"events/event-{n:05}-x.json": [e] for n, e in enumerate(talk)}
    source = Beside(files, "base_state.json")
    made = run([STATE], source)
    assert source.opened == sorted(files)
    assert [m.content for m in made.messages()] == ["You help.\nToday.", "Look.", "Let me see.", "a.py", "Empty."]
    assert made.turns[0].usage == Usage(30, 50, 10, 7)
    assert (made.turns[0].duration_s, made.turns[0].tool_wait_s, made.turns[1].started_s) == (2.0, 0.5, 2.5)
    assert (made.model, made.meta, made.tools) == ("m-1", {"session": "conversation-1"}, (SCHEMA,))
    assert made.losses == ("prompt_not_exact",)
    assert checks.trajectory_findings(made) == []


def test_a_state_alone_and_broken_events_are_refused() -> None:
    (item,) = items(FORMAT, [STATE])
    assert "no events folder" in item.reason
    (item,) = items(FORMAT, [SYSTEM])
    assert "a single event" in item.reason
    source = Beside({"events/0.json": [SYSTEM, TASK], "events/1.json": [Bad(1, "no valid JSON", "{")]})
    found = items(FORMAT, [STATE], source)
    assert [item.reason for item in found] == ["events/1.json: no valid JSON", "no assistant message to replay"]


def test_calls_of_one_answer_are_one_turn_even_if_they_ran_in_turn() -> None:
    ran = [acted(2, "r1", "a", "Both."), saw(3, "a", "1"), acted(4, "r1", "b"), saw(5, "b", "2"), DONE]
    made = run([SYSTEM, TASK, *ran])
    assert [c.id for c in made.turns[0].assistant.tool_calls] == ["a", "b"]
    assert [m.content for m in made.turns[0].tools] == ["1", "2"]
    assert (made.turns[0].assistant.content, len(made.turns)) == ("Both.", 2)


def test_thinking_is_kept_wherever_it_stands() -> None:
    item = {"summary": [text("C")], "content": [], "encrypted_content": None}
    turns = [
        [acted(2, "r1", "a", reasoning_content="A"), saw(3, "a", "1")],
        [acted(4, "r2", "b", thinking_blocks=[{"type": "thinking", "thinking": "B"}]), saw(5, "b", "2")],
        [acted(6, "r3", "c", responses_reasoning_item=item), saw(7, "c", "3")],
    ]
    made = run([SYSTEM, TASK, *(e for turn in turns for e in turn)])
    assert [t.assistant.reasoning for t in made.turns] == ["A", "B", "C"]


def test_errors_and_rejections_answer_their_calls() -> None:
    no = event("UserRejectObservation", 3, tool_call_id="a", tool_name="terminal", rejection_reason="Not that.")
    failed = event("AgentErrorEvent", 5, tool_call_id="b", tool_name="terminal", error="no such tool")
    made = run([SYSTEM, TASK, acted(2, "r1", "a"), no, acted(4, "r2", "b"), failed])
    assert [m.content for t in made.turns for m in t.tools] == ["Action rejected: Not that.", "no such tool"]


def test_recorded_ids_are_kept_as_what_each_call_appended() -> None:
    def ids(at: float, prompt: list[int], reply: list[int]) -> dict[str, Any]:
        return event("TokenEvent", at, prompt_token_ids=prompt, response_token_ids=reply)

    talk = [SYSTEM, TASK, acted(2, "r1", "a"), ids(3, [1, 2], [3]), saw(4, "a", "1"), DONE]
    made = run([*talk, ids(10, [1, 2, 3, 4], [5])])
    assert [turn.ids for turn in made.turns] == [RecordedIds((1, 2), (3,)), RecordedIds((4,), (5,))]
    assert "ids_not_append_only" in run([*talk, ids(10, [1, 2, 9, 4], [5])]).losses


def test_a_condensation_cuts_the_run() -> None:  # bug 11
    cut = event("Condensation", 6, forgotten_event_ids=["e2", "e3"], summary="Looked.", summary_offset=2)
    talk = [SYSTEM, TASK, acted(2, "r1", "a"), saw(3, "a", "1"), acted(4, "r2", "b"), saw(5, "b", "2")]
    first, second = (item.value for item in items(FORMAT, [*talk, cut, DONE]))
    assert isinstance(first, Trajectory)
    assert isinstance(second, Trajectory)
    assert (len(first.turns), first.already_compacted) == (2, False)
    assert [m.content for m in second.prefix] == ["You help.\nToday.", "Look.", "Looked.", "", "2"]
    assert [t.assistant.content for t in second.turns] == ["Empty."]
    assert second.already_compacted
    assert {"already_compacted", "missing_calls"} <= set(second.losses)
    assert second.meta == {"part": 1}
    assert len(items(FORMAT, [*talk, cut])) == 1, "nothing was said after the condensation"


def test_of_a_rewound_conversation_the_branch_of_its_leaf_is_read() -> None:
    talk = [SYSTEM, TASK, acted(2, "r1", "a"), saw(3, "a", "1"), acted(4, "r2", "b"), saw(5, "b", "2"), DONE]
    parents = [None, "e0", "e1", "e2", "e1", "e4", "e5"]
    linked = [e | ({"parent_id": p} if p else {}) for e, p in zip(talk, parents, strict=True)]
    files = {f"events/event-{n:05}-x.json": [e] for n, e in enumerate(linked)}
    made = run([STATE | {"leaf_event_id": "e9"}], Beside(files, "base_state.json"))
    assert [m.content for m in made.messages()][2:] == ["", "2", "Empty."]
    assert "branches_dropped:1" in made.losses
    made = run([STATE | {"leaf_event_id": "e3"}], Beside(files, "base_state.json"))
    assert [m.content for m in made.messages()][2:] == ["", "1"]


def test_tools_of_later_releases_are_kept_as_far_as_they_are_recorded() -> None:
    mcp = {"name": "read_file", "input_schema": {"type": "object", "properties": {}}}
    tools = [
        {"description": "Runs.", "action_type": "TerminalAction", "title": "terminal", "kind": "TerminalTool"},
        {"description": "Reads.", "mcp_tool": mcp, "title": "read_file", "kind": "MCPToolDefinition"},
    ]
    made = run([{**SYSTEM, "tools": tools}, TASK, DONE])
    functions = [tool["function"] for tool in made.tools]
    assert functions[0] == {"name": "terminal", "description": "Runs.", "parameters": {"type": "object"}}
    assert functions[1] == {"name": "read_file", "description": "Reads.", "parameters": mcp["input_schema"]}
    assert made.losses == ("parameters_untold",)


def test_a_log_of_a_call_takes_the_structured_messages_where_there_are_two_forms() -> None:
    asked = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    usage = {"prompt_tokens": 9, "completion_tokens": 2}
    log = {"messages": asked, "kwargs": {}, "latency_sec": 1.5, "tools": [SCHEMA]}
    log["response"] = {"choices": [{"message": {"role": "assistant", "content": "a"}}], "usage": usage}
    assert sniff(log)
    made = run([log])
    assert (made.turns[0].usage, made.turns[0].duration_s, made.losses) == (Usage(9, None, None, 2), 1.5, ())
    made = run([{**log, "raw_messages": [*asked, {"role": "assistant", "content": "b"}, asked[1]]}])
    assert [t.assistant.content for t in made.turns] == ["b", "a"]
    assert made.losses == ("tools_as_text",)


def test_real_logs_of_calls_keep_every_character(shared_data: Path) -> None:
    files = sorted((shared_data / "traces/openhands").glob("sdk__*llm-logs__*.json"))
    assert len(files) > 3
    for path in files:
        record = json.loads(path.read_text())
        assert formats.detect([record], "x").name == "openhands"
        made = run([record])
        said = [m["content"] for m in record.get("raw_messages", record["messages"])]
        texts = [c if isinstance(c, str) else "\n".join(part["text"] for part in c) for c in said]
        assert [m.content for m in made.messages()][:-1] == texts  # bug 4: every content is a list of parts
        answer = record["response"]["choices"][0]["message"]
        assert made.turns[-1].assistant.content == answer["content"]
        assert made.turns[-1].assistant.tool_calls[0].arguments == answer["tool_calls"][0]["function"]["arguments"]
        assert len(made.tools) == 3
        usage = made.turns[-1].usage
        assert usage is not None
        given = record["response"]["usage"]["prompt_tokens"]
        assert (usage.fresh_input_tokens or 0) + (usage.cache_read_tokens or 0) == given


def test_the_real_state_says_that_its_events_are_missing(shared_data: Path) -> None:
    (path,) = (shared_data / "traces/openhands").glob("*base_state.json")
    form, found, _ = read_file(path)
    assert form.name == "openhands"
    assert ["no events folder" in item.reason for item in found] == [True]
