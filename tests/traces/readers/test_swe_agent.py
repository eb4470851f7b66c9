"""SWE-agent files: the history is the run, observations are results, what the model did not see is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sources import Beside, items

from kvmill.traces import formats
from kvmill.traces.beside import LocalSource
from kvmill.traces.files import read_file
from kvmill.traces.readers.swe_agent import FORMAT, sniff
from kvmill.traces.trajectory import Label, Trajectory

SYSTEM = {"role": "system", "content": "You fix code.", "agent": "main"}
TASK = {"role": "user", "content": 'The challenge is named "Rock". Crack it.', "agent": "main"}
LOOK = {"role": "assistant", "content": "Look.\n```\nls\n```", "thought": "Look.", "action": "ls", "agent": "main"}
SEEN = {"role": "user", "content": "rock.bin", "agent": "main"}
DONE = {"role": "assistant", "content": "submit flag{x}", "agent": "main"}
HISTORY = [SYSTEM, TASK, LOOK, SEEN, DONE]
STEP = {"action": "ls", "observation": "rock.bin", "execution_time": 0.5}


def run(record: dict[str, Any], source: Beside | None = None) -> Trajectory:
    (item,) = items(FORMAT, [record], source)
    assert isinstance(item.value, Trajectory), item.reason
    return item.value


def test_an_observation_is_the_result_of_the_action_before_it() -> None:
    made = run({"history": HISTORY, "trajectory": [STEP, STEP]})
    assert [m.role for m in made.prefix] == ["system", "user"]
    assert [(t.assistant.content, [m.content for m in t.tools], t.tool_wait_s) for t in made.turns] == [
        (LOOK["content"], ["rock.bin"], 0.5),
        ("submit flag{x}", [], 0.5),
    ]
    assert made.losses == ("results_as_user",)
    assert [m.content for m in made.messages()] == [m["content"] for m in HISTORY]


def test_tool_calls_keep_their_arguments_and_find_their_results() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "open", "arguments": '{"path":"a.py"}'}}
    said = {**LOOK, "tool_calls": [call], "thinking_blocks": [{"type": "thinking", "thinking": "Hm."}]}
    result = {"role": "tool", "content": "1: x", "tool_call_ids": ["c"], "message_type": "observation"}
    made = run({"history": [SYSTEM, TASK, said, result]})
    assert made.turns[0].assistant.tool_calls[0].arguments == '{"path":"a.py"}'
    assert made.turns[0].assistant.reasoning == "Hm."
    assert made.turns[0].tools[0].tool_call_id == "c"
    assert made.losses == ("no_tool_schemas",)


def test_a_demonstration_stands_in_the_prefix_and_is_said() -> None:
    told = {"role": "user", "content": "Another run: …", "is_demo": True}
    made = run({"history": [SYSTEM, told, *HISTORY[1:]], "trajectory": [STEP, STEP]})
    assert [m.content for m in made.prefix] == [SYSTEM["content"], told["content"], TASK["content"]]
    shown = [{**m, "is_demo": True} for m in (TASK, LOOK, SEEN, DONE)]
    made = run({"history": [SYSTEM, *shown, *HISTORY[1:]], "trajectory": [STEP, STEP]})
    assert [m.role for m in made.prefix] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert len(made.turns) == 2
    assert made.turns[0].tool_wait_s == 0.5
    assert "demonstration" in made.losses


@pytest.mark.parametrize("field", ["query", "messages"])
def test_a_run_whose_model_saw_less_than_the_history_was_compacted(field: str) -> None:
    whole = [{"role": m["role"], "content": [{"type": "text", "text": m["content"]}]} for m in HISTORY[:-1]]
    assert not run({"history": HISTORY, "trajectory": [STEP, {**STEP, field: whole}]}).already_compacted
    elided = [*whole[:3], {"role": "user", "content": "(1 li"}]
    made = run({"history": HISTORY, "trajectory": [STEP, {**STEP, field: elided}]})
    assert made.already_compacted
    assert "already_compacted" in made.losses


def test_an_input_is_compared_with_what_was_before_its_own_answer() -> None:
    first = [{"role": m["role"], "content": m["content"]} for m in HISTORY[:2]]
    assert not run({"history": HISTORY, "trajectory": [{**STEP, "query": first}, STEP]}).already_compacted
    assert run({"history": HISTORY, "trajectory": [STEP, {**STEP, "query": first}]}).already_compacted


def test_the_flag_of_the_challenge_that_the_prompt_names_is_the_label() -> None:
    rock = {"name": "Rock", "flag": "flag{x}", "category": "rev", "description": "Crack it."}
    other = {"name": "Stone", "flag": "flag{y}"}
    made = run({"history": HISTORY}, Beside({"a.challenge.json": [other], "challenge.json": [rock]}))
    assert made.label == Label("flag", "flag{x}")
    assert (made.family, made.meta["category"]) == ("ctf", "rev")
    assert run({"history": HISTORY}, Beside({"challenge.json": [other]})).label is None


def test_counts_that_are_all_zero_are_no_usage() -> None:
    zero = {"instance_cost": 0, "tokens_sent": 0, "api_calls": 0}
    made = run({"history": HISTORY, "info": {"exit_status": "exit_cost", "model_stats": zero}})
    assert made.meta == {"exit_status": "exit_cost"}
    made = run({"history": HISTORY, "info": {"model_stats": zero | {"tokens_sent": 9}}})
    assert made.meta["usage"]["tokens_sent"] == 9


def test_a_run_without_history_is_refused() -> None:
    assert not sniff({"history": [{"role": "user", "content": "x"}]})
    (item,) = items(FORMAT, [{"trajectory": [STEP]}])
    assert item.reason == "no history list"


def test_real_runs_keep_every_character_of_the_history(shared_data: Path) -> None:
    files = sorted((shared_data / "traces/swe-agent").glob("*.traj"))
    assert files
    for path in files:
        record = json.loads(path.read_text())
        assert formats.detect([record], "x").name == "swe-agent"
        _, found, source = read_file(path)
        (item,) = found
        assert isinstance(source, LocalSource)
        assert isinstance(item.value, Trajectory), item.reason
        assert [m.content for m in item.value.messages()] == [m["content"] for m in record["history"]][
            : len(item.value.messages())
        ]
        dropped = "trailing_user_dropped" in item.value.losses
        assert len(item.value.messages()) == len(record["history"]) - dropped
        calls = [c["function"]["arguments"] for m in record["history"] for c in m.get("tool_calls") or []]
        assert [c.arguments for t in item.value.turns for c in t.assistant.tool_calls] == calls


def test_real_challenges_give_their_flags(shared_data: Path) -> None:
    folder = shared_data / "traces/swe-agent"
    flags = {}
    for name in ("ctf__forensics__flash.traj", "ctf__misc__networking_1.traj"):
        _, found, _ = read_file(folder / name)
        (item,) = found
        assert isinstance(item.value, Trajectory)
        assert item.value.label is not None
        flags[name] = (item.value.label.value, item.value.meta["exit_status"], len(item.value.turns))
    assert flags == {
        "ctf__forensics__flash.traj": ("flag{b3l0w_th3_r4dar}", "submitted", 4),
        "ctf__misc__networking_1.traj": ("d316759c281bf925d600be698a4973d5", "submitted", 4),
    }
