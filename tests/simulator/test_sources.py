import json
from collections import Counter

import numpy as np
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
    with pytest.raises(UserError, match=r"lacks arrivals \(give --agents N or .* and 2 tool waits \(give --tool-wait"):
        find_workload(path, store=store)
    with pytest.raises(UserError, match=r"lacks arrivals \(give --agents N or --rate SESSIONS_PER_S\)$"):
        find_workload(path, Fill(tool_wait="lognormal:1,5"), store=store)
    with pytest.raises(UserError, match=r"lacks \d tool waits \(give --tool-wait lognormal:P50,P90, in seconds\)$"):
        find_workload(path, Fill(agents=3), store=store)
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
    assert find_workload("requests", Fill(scale_load=1.0), store=store).kind == "recorded"
    with pytest.raises(UserError, match=r"--scale-load 0\.5: not one of the 1 sessions of requests is left"):
        find_workload("requests", Fill(scale_load=0.5), store=store)


def real(shared_data, store, name, fill=None):
    path = shared_data / "traces" / name
    if not path.exists():
        pytest.skip(f"{name} is not in the shared data folder")
    return find_workload(str(path), fill, store=store)


def test_mooncakes_conversations_as_a_workload(shared_data, store):
    """Sessions from prefix hashes, the common block of 512 tokens, and forks of a conversation, which share more."""
    load = real(shared_data, store, "mooncake-fast25/conversation_trace.head.jsonl")
    sessions = load.sessions
    turns = np.array([len(s.waits) for s in sessions])
    waits = np.array([wait for s in sessions for wait in s.waits[:-1]])
    groups = Counter(s.group for s in sessions)
    assert (load.kind, len(sessions), turns.sum(), turns.max(), (turns > 1).sum()) == (
        "recorded",
        7750,
        11_523,
        41,
        1946,
    )
    assert np.percentile(waits, [50, 90]) == pytest.approx([111.4, 464.8], rel=0.001)
    assert load.sessions_per_s == pytest.approx(7750 / 3396)
    assert (len(groups), max(groups.values()), sum(count == 2 for count in groups.values())) == (472, 6763, 436)
    common = next(s for s in sessions if groups[s.group] == 6763)
    assert common.shared == 512
    assert sum(s.shared for s in sessions) / sum(s.segments[0].tokens for s in sessions) == pytest.approx(
        0.1102, abs=1e-4
    )
    assert all(s.shared < s.segments[0].tokens for s in sessions)
    assert (
        "7,750 sessions begin like others, in 472 groups by prefix hashes, with 11.0% of all first inputs"
        in load.assumed
    )


def test_azures_code_log_is_single_turns_that_share_nothing(shared_data, store):
    load = real(shared_data, store, "azure-llm-2023/AzureLLMInferenceTrace_code.csv", Fill(scale_load=3.0))
    assert (load.kind, len(load.sessions), load.scale_load) == ("recorded", 8819, 3.0)
    assert {(len(s.waits), len(s.segments), s.shared) for s in load.sessions} == {(1, 2, 0)}
    assert np.mean([s.segments[0].tokens for s in load.sessions]) == pytest.approx(2047.85, abs=0.01)
    assert np.mean([s.segments[1].tokens for s in load.sessions]) == pytest.approx(27.88, abs=0.01)
    assert max(s.start_s for s in load.sessions) == pytest.approx(3435.948, abs=0.001)
    assert load.sessions_per_s == pytest.approx(3 * 8819 / 3435.948)
    assert "8,819 requests make 8,819 sessions, 8,819 of a single turn, on which no policy saves" in load.assumed
    assert load.assumed[-1].startswith("3 times the recorded sessions per second: the recorded starts")


@pytest.mark.parametrize(
    "fill", [Fill(scale_load=2.0), Fill(rate=0.5, scale_load=2.0), Fill(agents=50, scale_load=2.0)]
)
def test_any_load_can_be_scaled(fill):
    load = find_workload("long-agents", fill)
    assert (load.agents, load.rate) in ((800, None), (None, 1.0), (100, None))
    assert load.scale_load == 1.0


def test_bursts_are_said():
    load = find_workload("long-agents", Fill(rate=0.2, burstiness=3.0))
    assert load.burstiness == 3.0
    assert "0.2 sessions per second, Gamma gaps with a coefficient of variation of 3" in load.assumed
    with pytest.raises(UserError, match="give --rate SESSIONS_PER_S"):
        find_workload("long-agents", Fill(burstiness=3.0))


def test_sample_trajectories_share_the_system_prompt_of_their_family(store):
    found = find_workload("samples", store=store)
    families = [t.family for t in load()]
    for family in set(families):
        own = [s for s, its in zip(found.sessions, families, strict=True) if its == family]
        assert len({(s.shared, s.group) for s in own}) == 1
        assert 0 <= own[0].shared < min(s.segments[0].tokens for s in own)


@pytest.mark.parametrize(
    "flags", [{"scale_load": 0.0}, {"scale_tokens": 0.0}, {"prefix_tokens": 0}, {"agents": 1, "rate": 1.0}]
)
def test_flags_that_cannot_be_are_refused(flags):
    with pytest.raises(UserError):
        Fill(**flags)
