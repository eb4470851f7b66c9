"""Of records that repeat a growing history the longest stays, whole, with the usage of every call."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvmill.traces.chain import Chains
from kvmill.traces.ingest import ingest
from kvmill.traces.readers.openai_chat import read
from kvmill.traces.select import select
from kvmill.traces.store import Store
from kvmill.traces.trajectory import Trajectory


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


def test_another_tool_result_is_another_run() -> None:
    def record(result: str, more: list[dict[str, Any]]) -> dict[str, Any]:
        asked = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}
        said = [{"role": "user", "content": "go"}, asked, {"role": "tool", "tool_call_id": "c", "content": result}]
        answer = {"role": "assistant", "content": "done"}
        messages = [*said, answer, *more] if more else said
        return {"request": {"messages": messages}, "response": {"choices": [{"message": answer}]}}

    chains: Chains[str] = Chains()
    further = [{"role": "user", "content": "and?"}]
    for result, more, name in (("1", [], "short"), ("2", further, "other"), ("1", further, "long")):
        assert list(chains.add(read(record(result, more)), name)) == []
    assert [held.origin for held in chains.rest()] == ["other", "long"]
    assert chains.absorbed == ["short"]


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


def one_call(turns: int, start: float | None = None, chain: str | None = None, **last: Any) -> Trajectory:
    """A record of one call as the readers of spans make it: its own times and usage, a clock, a session."""
    run = read(call(turns))
    meta = {"one_call": True, **({} if chain is None else {"chain": chain})}
    if start is not None:
        meta["start_s"] = start
        last = {"started_s": 0.0, "duration_s": 1.0, **last}
    return replace(run, meta=meta, turns=(*run.turns[:-1], replace(run.turns[-1], **last)))


def reduced(*records: Trajectory) -> list[Trajectory]:
    chains: Chains[int] = Chains()
    gone = [held.trajectory for n, record in enumerate(records) for held in chains.add(record, n)]
    return gone + [held.trajectory for held in chains.rest()]


def test_the_same_words_in_another_session_are_another_run() -> None:
    assert len(reduced(one_call(1, chain="a"), one_call(2, chain="b"))) == 2
    assert len(reduced(one_call(1, chain="a"), one_call(2, chain="a"))) == 1
    assert len(reduced(one_call(1), one_call(2, chain="a"))) == 2


@pytest.mark.parametrize("order", list(itertools.permutations([0, 1, 2])))
def test_clocks_are_joined_and_the_tools_time_is_between_the_calls(order: tuple[int, ...]) -> None:
    records = [one_call(1, 100.0), one_call(2, 101.5), one_call(3, 110.0)]
    (run,) = reduced(*(records[n] for n in order))
    assert [turn.started_s for turn in run.turns] == [0.0, 1.5, 10.0]
    assert [turn.tool_wait_s for turn in run.turns] == [0.5, 7.5, None]
    assert run.meta["start_s"] == 100.0


@pytest.mark.parametrize("flip", [False, True])
def test_a_call_that_began_after_a_longer_one_is_no_part_of_it(flip: bool) -> None:
    records = [one_call(2, 100.0), one_call(1, 200.0)]
    assert len(reduced(*(records[::-1] if flip else records))) == 2


def test_calls_that_overlap_wait_for_nothing() -> None:
    (run,) = reduced(one_call(1, 100.0, duration_s=9.0), one_call(2, 101.0))
    assert run.turns[0].tool_wait_s == 0.0


def asking(arguments: str) -> Trajectory:
    """A call that asks for a tool; and the call after it, whose history has the arguments parsed."""
    said = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": arguments}}],
    }
    return read({"request": {"messages": [{"role": "user", "content": "go"}]}, "response": {"message": said}})


def test_histories_that_parsed_the_arguments_still_continue_the_call_and_its_spelling_stays() -> None:
    first = asking('{"b":1,  "a":2.0}')
    spelled = asking('{"a": 2.0, "b": 1}').turns[0].assistant
    later = one_call(1)
    answer = replace(first.turns[0], assistant=spelled)
    longer = replace(first, turns=(answer, later.turns[0]), tools=(), losses=("no_tool_schemas",))
    (run,) = reduced(replace(first, tools=({"type": "function"},)), longer)
    assert [c.arguments for c in run.turns[0].assistant.tool_calls] == ['{"b":1,  "a":2.0}']
    assert run.tools == ({"type": "function"},)
    assert run.losses == ()
    assert (
        len(reduced(first, replace(longer, turns=(replace(answer, assistant=asking("{}").turns[0].assistant),) * 2)))
        == 2
    )
