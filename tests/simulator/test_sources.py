import json

import pytest

from kvmill.errors import UserError
from kvmill.simulator.lengths import segments_of
from kvmill.simulator.sources import Fill, find_workload
from kvmill.traces.samples import load
from kvmill.traces.store import Store


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def chat(path, waits=False):
    calls = [{"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    messages = [
        {"role": "system", "content": "s" * 400},
        {"role": "user", "content": "u" * 40},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "t" * 4000},
        {"role": "assistant", "content": "d" * 80},
    ]
    path.write_text(json.dumps({"messages": messages}) + "\n")
    return str(path)


def test_samples_are_400_agents_with_declared_waits(store):
    found = find_workload("samples", store=store)
    assert (len(found.sessions), found.agents, found.kind) == (80, 400, "closed")
    assert "tool waits log-normal, p50 3.8 s, p90 28.9 s" in found.assumed
    assert found.lengths_from.startswith("estimated at 4 characters per token")


def test_lengths_measured_by_a_replay_replace_the_estimate(store):
    first = load()[0]
    run = store.begin("replay", {"model": "smollm2-135m"})
    totals = [150 * (j + 1) for j in range(len(first.turns))]
    rows = [
        {"cell_id": "c", "trajectory_id": first.id, "family": first.family, "policy": "full", "measure": "quality",
         "turn": j, "logical_tokens": total}
        for j, total in enumerate(totals)
    ]  # fmt: skip
    run.add({"turn_metrics": rows}, key="c")
    run.finish()
    found = find_workload("samples", store=store)
    assert "measured with smollm2-135m on 1 of 80 trajectories" in found.lengths_from
    assert sum(s.tokens for s in found.sessions[0].segments) == pytest.approx(totals[-1], abs=len(totals) * 2)
    guess = sum(s.tokens for s in segments_of(load()[1]))
    scaled = sum(s.tokens for s in found.sessions[1].segments)
    ratio = totals[-1] / sum(s.tokens for s in segments_of(first))
    assert scaled / guess == pytest.approx(ratio, rel=0.03), "others of the family at the same ratio"


def test_a_file_is_read_and_says_what_it_lacks(store, tmp_path):
    path = chat(tmp_path / "chat.jsonl")
    with pytest.raises(UserError, match="tool waits are not recorded; give --tool-wait"):
        find_workload(path, store=store)
    with pytest.raises(UserError, match="records no arrivals: give --agents N or --rate"):
        find_workload(path, Fill(tool_wait="lognormal:1,5"), store=store)
    found = find_workload(path, Fill(agents=3, tool_wait="lognormal:1,5"), store=store)
    assert (found.name, found.agents, len(found.sessions)) == ("chat.jsonl", 3, 1)
    assert found.sessions[0].segments[0].tokens == 118, "440 characters and two messages' markup"


def test_scaling_leaves_the_prefix_alone():
    plain, scaled = find_workload("long-agents"), find_workload("long-agents", Fill(scale_tokens=0.5))
    before, after = plain.sessions[0].segments, scaled.sessions[0].segments
    assert before[0] == after[0]
    assert [s.tokens for s in after[1:]] == [max(1, round(s.tokens * 0.5)) for s in before[1:]]
    assert "all segments but the prefix scaled by 0.5" in scaled.assumed


def test_flags_turn_a_closed_workload_into_an_open_one_and_back():
    assert find_workload("long-agents", Fill(rate=0.2)).kind == "open"
    assert find_workload("long-agents", Fill(agents=7)).agents == 7


def test_a_request_log_keeps_its_arrivals_and_takes_prefix_tokens(store, tmp_path):
    path = tmp_path / "log.jsonl"
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 100, "hash_ids": [0, 1, 2]},
        {"timestamp": 9000, "input_length": 2000, "output_length": 60, "hash_ids": [0, 1, 3, 4]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = find_workload(str(path), Fill(prefix_tokens=500), store=store)
    assert (found.kind, len(found.sessions), found.sessions[0].begin) == ("recorded", 1, 1)
    assert found.sessions[0].segments[0].tokens == 500
    assert any("P is the first 500 tokens" in note for note in found.assumed)
    again = find_workload("requests", Fill(rate=1.0), store=store)
    assert again.kind == "open"


@pytest.mark.parametrize("flags", [{"scale_tokens": 0.0}, {"prefix_tokens": 0}, {"agents": 1, "rate": 1.0}])
def test_flags_that_cannot_be_are_refused(flags):
    with pytest.raises(UserError):
        Fill(**flags)
