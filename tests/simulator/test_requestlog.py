from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import deployment, scenario

from kvmill.errors import UserError
from kvmill.replay.policies.base import split_turns
from kvmill.simulator.fleet import Fleet
from kvmill.simulator.requestlog import chains, common_prefixes, sessions
from kvmill.simulator.workload import Workload
from kvmill.traces.files import read_file
from kvmill.traces.request_checks import summarise
from kvmill.traces.trajectory import Request


def request(name, at, tokens, out, blocks=None, **fields):
    return Request(name, "test", at, tokens, out, prefix_blocks=blocks, block_tokens=512 if blocks else None, **fields)


def test_a_request_continues_the_one_whose_full_blocks_it_begins_with():
    log = [
        request("a", 0, 1100, 100, (0, 1, 2)),  # two full blocks
        request("b", 1, 1500, 50, (0, 7, 8)),
        request("c", 9, 2000, 60, (0, 1, 3, 4)),
        request("d", 20, 2600, 70, (0, 1, 3, 5, 6, 9)),
    ]
    assert [[r.id for r in chain] for chain in chains(log)] == [["a", "c", "d"], ["b"]]


def test_one_equal_block_is_the_common_system_prompt_not_a_session():
    log = [request("a", 0, 600, 10, (0, 1)), request("b", 1, 700, 10, (0, 2))]
    assert len(chains(log)) == 2


def test_session_ids_win_over_hashes():
    log = [
        request("a", 0, 100, 10, session="x"),
        request("b", 5, 200, 10, session="y"),
        request("c", 9, 300, 10, session="x"),
    ]
    assert [[r.id for r in chain] for chain in chains(log)] == [["a", "c"], ["b"]]


CHAIN = [request("a", 100.0, 1000, 100, session="s"), request("b", 120.0, 1500, 50, session="s", tool_wait_s=7.0)]


def test_growth_is_tool_output_is_assistant_and_the_first_input_is_the_prefix():
    (spec,), notes = sessions(CHAIN)
    assert [(s.kind, s.tokens) for s in spec.segments] == [
        ("prefix", 1000),
        ("assistant", 100),
        ("tool", 400),
        ("assistant", 50),
    ]
    assert spec.waits == (7.0, 0.0)
    assert spec.start_s == 0.0
    assert any("1 sessions, 0 of a single turn" in note for note in notes)


def test_prefix_tokens_makes_the_rest_of_the_first_input_history():
    (spec,), _ = sessions(CHAIN, prefix_tokens=300)
    kinds = [(s.kind, s.tokens) for s in spec.segments[:4]]
    assert kinds == [("prefix", 300), ("assistant", 1), ("tool", 699), ("assistant", 100)]
    assert spec.begin == 1
    assert len(spec.waits) == len(split_turns(spec.segments)) == 3


def test_waits_that_are_not_recorded_are_estimated_and_said():
    (spec,), notes = sessions([request("a", 0.0, 100, 100, session="s"), request("b", 10.0, 300, 5, session="s")])
    assert spec.waits[0] == pytest.approx(10 - 100 * 0.03)
    assert any("tool waits of 1 turns" in note for note in notes)


def test_rows_without_output_are_left_out_and_counted():
    _, notes = sessions([*CHAIN, request("z", 1.0, 10, 0)])
    assert "1 rows without input or output tokens left out" in notes
    with pytest.raises(UserError, match="no row with input and output"):
        sessions([request("z", 1.0, 10, 0)])


def firsts(*blocks, tokens=None, size=512):
    rows = [request(str(i), i, tokens or size * len(own), 5, tuple(own)) for i, own in enumerate(blocks)]
    return [replace(row, block_tokens=size) for row in rows]


def test_sessions_share_the_longest_run_that_others_begin_with_too():
    found = common_prefixes(firsts((0, 1, 2, 3, 9), (0, 1, 2, 3, 8), (0, 4, 5), (0, 6, 7), (1, 2, 3)))
    assert [shared for shared, _ in found] == [2048, 2048, 512, 512, 0]
    groups = [group for _, group in found]
    assert groups[0] == groups[1] != groups[2] == groups[3]
    assert groups[4] == 0


def test_one_alone_at_the_end_of_a_longer_run_shares_nothing_with_it():
    """The third has only block 0 in common, and its group would be itself alone."""
    assert common_prefixes(firsts((0, 1, 2), (0, 1, 3), (0, 9, 8)))[2] == (0, 0)


def test_a_token_of_the_input_is_left_to_compute_and_blocks_of_other_sizes_are_others():
    same = firsts((0, 1), (0, 1))
    assert [shared for shared, _ in common_prefixes(same)] == [512, 512], "1,024 tokens are the whole input"
    other = [same[0], replace(same[1], block_tokens=256)]
    assert common_prefixes(other) == [(0, 0), (0, 0)]
    assert [shared for shared, _ in common_prefixes(firsts((0, 1, 2), (0, 1, 3)), 700)] == [512, 512]
    assert common_prefixes(firsts((0, 1, 2), (0, 1, 3)), 300) == [(0, 0), (0, 0)]
    assert common_prefixes([request("a", 0, 100, 5), request("b", 0, 100, 5)]) == [(0, 0), (0, 0)]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=12))
def test_sharing_is_true_never_more_than_there_is_and_never_alone(contents):
    rows = firsts(*contents, size=16)
    found = common_prefixes(rows)
    for own, (shared, group) in zip(contents, found, strict=True):
        members = [other for other, its in zip(contents, found, strict=True) if its == (shared, group)]
        if group:
            assert shared < 16 * len(own)
            assert len(members) > 1
            assert all(other[: shared // 16] == own[: shared // 16] for other in members)
        else:
            assert shared == 0
    assert len({shared for shared, group in found if group == 1}) <= 1


def test_a_replica_prefills_what_sessions_share_once():
    log = [request(str(i), 10.0 * i, 2000, 5, (0, 1, 10 * i + 2, 10 * i + 3)) for i in range(20)]
    specs, notes = sessions(log)
    assert "20 sessions begin like others, in 1 groups by prefix hashes, with 51.2% of all first inputs" in notes
    world = scenario(Workload("log", tuple(specs)), place=deployment(30_000))
    fleet = Fleet(world.load, world.positions, world.plan_of, world.deployment, world.cost, 1, 0, check=True)
    fleet.env.run(until=300.0)
    assert fleet.replicas[0].meter.fed_tokens == 20 * 2000 - 19 * 1024


def log_of(folder, name):
    path = folder / "traces" / name
    if not path.exists():
        pytest.skip(f"{name} is not in the shared data folder")
    _, items, _ = read_file(path)
    return [item.value for item in items if item.value]


def test_a_third_of_real_conversation_requests_continue_an_earlier_one(shared_data):
    requests = log_of(shared_data, "mooncake-fast25/conversation_trace.head.jsonl")
    specs, _ = sessions(requests)
    continued = len(requests) - len(specs)
    assert len(requests) == 11_523
    assert 0.30 <= continued / len(requests) <= 0.36
    assert sum(len(spec.waits) for spec in specs) == len(requests)


def test_sessions_and_groups_can_reuse_nearly_what_an_endless_cache_finds_in_a_real_log_and_no_more(shared_data):
    """Of Mooncake's input tokens 37.1 % are in prefixes seen before; 32.1 % by their own session, 5.0 % by a group."""
    requests = log_of(shared_data, "mooncake-fast25/conversation_trace.head.jsonl")
    endless = summarise(requests)["prefix"]["hit_rate_tokens"]
    linked = chains(requests)
    shares = common_prefixes([chain[0] for chain in linked])
    total = sum(r.input_tokens for r in requests)
    own = sum(min(earlier.input_tokens, later.input_tokens) for c in linked for earlier, later in pairwise(c)) / total
    once = sum({group: shared for shared, group in shares}.values())
    others = (sum(shared for shared, _ in shares) - once) / total
    assert (endless, own, others) == pytest.approx((0.3714, 0.3213, 0.0499), abs=1e-4)
    assert own + others <= endless
