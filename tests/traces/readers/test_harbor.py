"""Harbor rows repeat the conversation; the longest of each chain stays, and a summarised start is marked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sources import items

from kvmill.traces import formats
from kvmill.traces.chain import Chains
from kvmill.traces.readers.harbor import FORMAT
from kvmill.traces.trajectory import Trajectory

SAID = [
    {"role": "user", "content": "Task"},
    {"role": "assistant", "content": 'Ls.\n<tool_call>\n{"name": "bash"}\n</tool_call>'},
    {"role": "user", "content": "a.txt"},
    {"role": "assistant", "content": "Done"},
]
ROW: dict[str, Any] = {
    "conversations": SAID[:2],
    "agent": "Terminus-2",
    "model": "gpt-4o",
    "task": "hello",
    "episode": "episode-0",
    "trial_name": "t1",
    "tool_definitions": [{"type": "function", "function": {"name": "bash"}}],
    "result": None,
}
SUMMARISED = [{"role": "user", "content": "Task"}, {"role": "user", "content": "You pick up"}, SAID[3]]


def read(rows: list[Any]) -> list[Trajectory]:
    made = items(FORMAT, rows)
    assert all(item.value is not None for item in made), [item.reason for item in made]
    return [item.value for item in made if isinstance(item.value, Trajectory)]


def longest(runs: list[Trajectory]) -> list[Trajectory]:
    chains: Chains[int] = Chains()
    for n, run in enumerate(runs):
        assert not list(chains.add(run, n))
    return [held.trajectory for held in chains.rest()]


def test_an_episode_is_a_run_so_far() -> None:
    (run,) = read([ROW])
    assert (run.family, run.model) == ("terminus-2", "gpt-4o")
    assert [m.content for m in run.messages()] == [m["content"] for m in SAID[:2]]
    assert set(run.losses) == {"roles_as_user", "calls_as_text", "no_reward"}
    assert run.tools
    assert run.meta == {"one_call": True, "task": "hello", "trial_name": "t1"}


def test_a_number_as_result_is_the_reward() -> None:
    (run,) = read([{**ROW, "result": 1}])
    assert run.label is not None
    assert (run.label.scorer, run.label.value) == ("reward", 1.0)
    (run,) = read([{**ROW, "result": "AgentTimeoutError"}])
    assert run.label is None


def test_episodes_of_one_trial_become_one_run_until_the_context_is_summarised() -> None:
    rows = [ROW, {**ROW, "conversations": SAID}, {**ROW, "conversations": SUMMARISED}, {**ROW, "trial_name": "t2"}]
    runs = read(rows)
    assert [run.already_compacted for run in runs] == [False, False, True, False]
    assert ["already_compacted" in run.losses for run in runs] == [False, False, True, False]
    assert [len(run.turns) for run in longest(runs[:3])] == [2, 1]


@pytest.mark.parametrize("name", ["openhands__hello-world", "terminus_2__hello-world-context-summarization"])
def test_the_real_rows_reduce_to_their_runs(shared_data: Path, name: str) -> None:
    rows = json.loads((shared_data / f"traces/harbor-traces-export/{name}.traces.json").read_text())
    assert formats.detect(rows, "x").name == "harbor"
    runs = read(rows)
    for run, row in zip(runs, rows, strict=True):
        assert [m.content for m in run.messages()] == [m["content"] for m in row["conversations"]]
        assert len(run.tools) == len(row.get("tool_definitions", []))
    kept = longest(runs)
    if name.startswith("openhands"):
        assert [len(run.turns) for run in kept] == [2]
        assert not kept[0].already_compacted
    else:
        assert [len(run.turns) for run in kept] == [3, 5]
        assert [run.already_compacted for run in kept] == [False, True]
