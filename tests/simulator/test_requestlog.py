import os
from pathlib import Path

import pytest

from kvmill.errors import UserError
from kvmill.replay.policies.base import split_turns
from kvmill.simulator.requestlog import chains, sessions
from kvmill.traces.trajectory import Request

SHARED = Path(os.environ.get("KVMILL_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))


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


@pytest.mark.skipif(not SHARED.exists(), reason="the shared data folder is not here")
def test_a_third_of_real_conversation_requests_continue_an_earlier_one():
    from kvmill.traces.files import read_file

    path = SHARED / "traces/mooncake-fast25/conversation_trace.head.jsonl"
    if not path.exists():
        pytest.skip("the Mooncake log is not in the shared data folder")
    _, items, _ = read_file(path)
    requests = [item.value for item in items if item.value]
    specs, _ = sessions(requests)
    continued = len(requests) - len(specs)
    assert len(requests) == 11_523
    assert 0.30 <= continued / len(requests) <= 0.36
    assert sum(len(spec.waits) for spec in specs) == len(requests)
