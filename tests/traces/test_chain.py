"""Of records that repeat a growing history the longest stays, whole, with the usage of every call."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from kvmill.traces.chain import Chains
from kvmill.traces.ingest import ingest
from kvmill.traces.readers.openai_chat import read
from kvmill.traces.select import select
from kvmill.traces.store import Store


def call(turns: int, name: str = "a") -> dict[str, Any]:
    """The log record of call number `turns` of a session."""
    said: list[dict[str, str]] = []
    for n in range(turns):
        said += [{"role": "user", "content": f"{name}{n}"}, {"role": "assistant", "content": f"{name} answer {n}"}]
    response = {"choices": [{"message": said[-1]}], "usage": {"prompt_tokens": turns, "completion_tokens": 1}}
    return {"request": {"messages": said[:-1]}, "response": response}


@pytest.mark.parametrize("order", list(itertools.permutations([1, 2, 3])))
def test_one_session_is_one_run_with_all_usage_in_any_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    store = Store.open(tmp_path / "store")
    rows = [call(n) for n in order] + [call(1, "b")]
    (tmp_path / "log").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = ingest(store, [tmp_path / "log"])
    assert (report.accepted, report.chained, report.rejected) == (2, 2, 0)
    longest = max(select(store), key=lambda run: len(run.turns))
    assert [turn.assistant.content for turn in longest.turns] == ["a answer 0", "a answer 1", "a answer 2"]
    assert [turn.usage and turn.usage.fresh_input_tokens for turn in longest.turns] == [1, 2, 3]
    again = ingest(store, [tmp_path / "log"])
    assert (again.accepted, again.duplicates) == (0, 2)


def test_a_branch_is_no_prefix() -> None:
    chains: Chains[str] = Chains()
    branch = call(2)
    branch["response"]["choices"][0]["message"]["content"] = "another answer"
    for record, name in ((call(2), "one"), (branch, "other"), (call(1), "start")):
        assert list(chains.add(read(record), name)) == []
    assert [held.origin for held in chains.rest()] == ["one", "other"]
    assert chains.absorbed == ["start"]


def test_memory_is_bounded_by_letting_the_oldest_go() -> None:
    chains: Chains[int] = Chains(held_characters=40)
    gone = [held.origin for n in range(6) for held in chains.add(read(call(1, f"session {n} ")), n)]
    kept = [held.origin for held in chains.rest()]
    assert gone + kept == list(range(6))
    assert gone


def test_conversations_that_are_no_call_logs_are_never_absorbed(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    said = call(2)["request"]["messages"]
    rows = [{"messages": said[:2]}, {"messages": [*said, {"role": "assistant", "content": "x"}]}]
    (tmp_path / "log").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert ingest(store, [tmp_path / "log"]).accepted == 2


def test_three_real_files_of_one_session_become_one_run(tmp_path: Path, shared_data: Path) -> None:
    store = Store.open(tmp_path / "store")
    report = ingest(store, [shared_data / "traces/openhands/sdk__llm-logs__*.json"])
    assert (len(report.files), report.rejected) == (3, 0)
    assert report.accepted + report.chained == 3
    longest = max(select(store), key=lambda run: len(run.turns))
    assert len(longest.turns) == 6
    assert sum(turn.usage is not None for turn in longest.turns) == 1 + report.chained
