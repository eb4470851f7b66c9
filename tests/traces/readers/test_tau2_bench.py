"""tau2-bench runs: the user's own calls stay out of the agent's prompt, both layouts read alike, voice is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sources import Beside, items

from kvmill.traces import checks, formats
from kvmill.traces.readers.tau2_bench import FORMAT
from kvmill.traces.reading import Bad
from kvmill.traces.trajectory import Trajectory, Usage

RAW_CALL = {"id": "c1", "type": "function", "function": {"name": "find_line", "arguments": '{"number":"555"}'}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "assistant", "content": "Hi! How can I help you today?", "turn_idx": 0},
    {"role": "user", "content": "My phone has no data.", "turn_idx": 1},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "name": "find_line", "arguments": {"number": "555"}, "requestor": "assistant"}],
        "raw_data": {"finish_reason": "tool_calls", "message": {"tool_calls": [RAW_CALL], "reasoning_content": "look"}},
        "usage": {"prompt_tokens": 900, "completion_tokens": 20},
        "timestamp": "2026-01-05T10:00:04",
        "generation_time_seconds": 3.0,
    },
    {"role": "tool", "id": "c1", "content": '{"line":"L1"}', "requestor": "assistant", "error": False},
    {
        "role": "assistant",
        "content": "Please toggle airplane mode.",
        "timestamp": "2026-01-05T10:00:10",
        "generation_time_seconds": 2.0,
    },
    {
        "role": "user",
        "content": None,
        "tool_calls": [{"id": "u1", "name": "toggle", "arguments": {}, "requestor": "user"}],
    },
    {"role": "tool", "id": "u1", "content": "Airplane mode is ON", "requestor": "user"},
    {"role": "user", "content": "Done, it works."},
    {"role": "assistant", "content": "Great."},
]
RUN: dict[str, Any] = {
    "id": "s1",
    "task_id": "t1",
    "trial": 2,
    "termination_reason": "user_stop",
    "reward_info": {"reward": 1.0, "reward_basis": ["DB"]},
    "messages": MESSAGES,
}
TASK = {
    "id": "t1",
    "evaluation_criteria": {
        "actions": [
            {"action_id": "0", "requestor": "user", "name": "toggle", "arguments": {}},
            {"action_id": "1", "requestor": "assistant", "name": "refuel", "arguments": {"gb": 2}},
        ]
    },
}
RESULTS: dict[str, Any] = {
    "timestamp": "2026-01-05T10:00:00",
    "info": {
        "environment_info": {
            "domain_name": "Telecom",
            "policy": "Be kind.",
            "tool_defs": {"find_line": {"name": "find_line", "doc": "Find.", "params": {"type": "object"}}},
        },
        "agent_info": {"implementation": "llm_agent", "llm": "m-1"},
    },
    "tasks": [TASK],
    "simulations": [RUN],
}


def read(results: Any, files: dict[str, Any] | None = None) -> list[Trajectory]:
    made = items(FORMAT, [results], Beside(files or {}, "results.json"))
    assert all(isinstance(item.value, Trajectory) for item in made), [item.reason for item in made]
    return [item.value for item in made if isinstance(item.value, Trajectory)]


def refused(results: Any, files: dict[str, Any] | None = None) -> str:
    (item,) = items(FORMAT, [results], Beside(files or {}, "results.json"))
    assert item.value is None
    return item.reason


def test_the_users_own_calls_never_enter_the_agents_prompt() -> None:
    (run,) = read(RESULTS)
    assert [(m.role, m.content) for m in run.messages()] == [
        ("system", "Be kind."),
        ("assistant", "Hi! How can I help you today?"),
        ("user", "My phone has no data."),
        ("assistant", ""),
        ("tool", '{"line":"L1"}'),
        ("assistant", "Please toggle airplane mode."),
        ("user", "Done, it works."),
        ("assistant", "Great."),
    ]
    assert "user_side_calls" in run.losses
    assert "Airplane mode is ON" not in str(run)
    (finding,) = checks.trajectory_findings(run)
    assert (finding.code, finding.text) == ("reward_without_gold_action", "a reward although refuel was never called")


def test_arguments_are_the_recorded_string_where_the_raw_answer_is_kept() -> None:
    (run,) = read(RESULTS)
    assert run.turns[0].assistant.tool_calls[0].arguments == '{"number":"555"}'
    assert run.turns[0].assistant.reasoning == "look"
    assert "arguments_were_objects" not in run.losses
    bare = [{k: v for k, v in message.items() if k != "raw_data"} for message in MESSAGES]
    (run,) = read({**RESULTS, "simulations": [{**RUN, "messages": bare}]})
    assert run.turns[0].assistant.tool_calls[0].arguments == '{"number": "555"}'
    assert "arguments_were_objects" in run.losses


def test_reward_gold_actions_family_model_tools_and_meta() -> None:  # bug 15: the basis of the reward is kept
    (run,) = read(RESULTS)
    assert run.label is not None
    assert (run.label.scorer, run.label.value) == ("reward", 1.0)
    assert [(call.name, call.arguments) for call in run.label.gold_actions] == [("refuel", '{"gb": 2}')]
    assert (run.family, run.model) == ("telecom", "m-1")
    assert [tool["function"]["name"] for tool in run.tools] == ["find_line"]
    assert run.meta == {"task_id": "t1", "trial": 2, "termination_reason": "user_stop", "reward_basis": ["DB"]}
    assert "partial_system_prompt" in run.losses


def test_usage_and_times_belong_to_the_agents_calls() -> None:
    first, second, last = read(RESULTS)[0].turns
    assert first.usage == Usage(fresh_input_tokens=900, output_tokens=20)
    assert (first.started_s, first.duration_s, first.tool_wait_s) == (0.0, 3.0, 4.0)
    assert (second.started_s, second.duration_s) == (7.0, 2.0)
    assert (last.started_s, last.usage) == (None, None)


def test_a_folder_of_simulations_reads_like_one_file() -> None:
    index = {key: value for key, value in RESULTS.items() if key != "simulations"} | {"simulation_index": []}
    files = {"simulations/s1.json": [RUN], "simulations/s2.json": [Bad(1, "no valid JSON", "{")], "other.json": [RUN]}
    made = items(FORMAT, [index], Beside(files, "results.json"))
    assert [item.value for item in made if item.value] == read(RESULTS)
    assert [item.reason for item in made if item.value is None] == ["simulations/s2.json: no valid JSON"]
    assert "none beside it" in refused(index)


def test_one_simulation_alone_says_what_it_lacks() -> None:
    assert formats.detect([RUN], "x").name == FORMAT.name
    (run,) = read(RUN)
    assert {"no_system_prompt", "no_tool_schemas"} <= set(run.losses)
    assert run.family == "tau2-bench"


@pytest.mark.parametrize(
    ("change", "loss"),
    [
        ({"termination_reason": "infrastructure_error"}, "interrupted"),
        ({"termination_reason": "infrastructure_error"}, "no_reward"),
        ({"reward_info": None}, "no_reward"),
        (
            {"messages": [{**MESSAGES[4], "context_truncation": {"messages_dropped": 3}, **m} for m in MESSAGES]},
            "already_compacted",
        ),
    ],
)
def test_what_a_run_lacks_is_a_loss(change: dict[str, Any], loss: str) -> None:
    (run,) = read({**RESULTS, "simulations": [{**RUN, **change}]})
    assert loss in run.losses
    assert run.already_compacted == (loss == "already_compacted")
    assert (run.label is None) == (loss != "already_compacted")


def test_voice_runs_are_refused_with_the_reason() -> None:
    voice = {**RUN, "messages": None, "ticks": [{"tick": 1}]}
    assert formats.detect([voice], "x").name == FORMAT.name
    assert "ticks of speech" in refused({**RESULTS, "simulations": [voice]})
    assert "without messages" in refused({**RESULTS, "simulations": [{**RUN, "messages": []}]})


def test_a_multi_tool_message_is_its_results() -> None:
    both = {"role": "tool", "tool_messages": [{"role": "tool", "id": "c1", "content": "x"}]}
    (run,) = read({**RESULTS, "simulations": [{**RUN, "messages": [*MESSAGES[:3], both, *MESSAGES[4:]]}]})
    assert [m.content for m in run.turns[0].tools] == ["x"]


def test_the_real_results_hold_voice_runs_only(shared_data: Path) -> None:
    folder = shared_data / "traces/tau2-bench"
    if not folder.is_dir():
        pytest.skip("no tau2-bench files in the shared data")
    results = json.loads(next(folder.glob("**/*results.json")).read_text())
    assert formats.detect([results], "x").name == FORMAT.name
