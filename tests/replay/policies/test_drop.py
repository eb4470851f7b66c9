"""`drop_tool_outputs` against a brute force that edits a list of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmill.errors import UserError
from kvmill.replay.policies.base import SegmentSize, split_turns
from kvmill.replay.policies.drop import DropToolOutputs
from kvmill.replay.policies.registry import parse_policy


@st.composite
def texts(draw: st.DrawFn) -> list[SegmentSize]:
    """Segments whose tool outputs have a frame, before and after their content; some have no content."""
    length = st.integers(0, 30)
    out = [SegmentSize("prefix", draw(length))]
    for turn in range(draw(st.integers(1, 7))):
        if turn and draw(st.booleans()):
            out.append(SegmentSize("user", draw(length)))
        out.append(SegmentSize("assistant", draw(length)))
        if draw(st.integers(0, 3)):
            lead, tail = draw(st.integers(0, 4)), draw(st.integers(0, 3))
            content = draw(length)
            out.append(SegmentSize("tool", lead + content + tail, frame=lead + tail, frame_lead=lead))
    return out


def brute_force(policy: DropToolOutputs, text: Sequence[SegmentSize]) -> list[tuple[int, int, int, int]]:
    """(rows, peak, tokens fed again, cuts) per turn: the whole text is rebuilt and compared token by token."""
    turns = split_turns(text)
    cached: list[tuple[int, int]] = []  # (segment number, offset) of every row
    out = []
    for t in range(len(turns)):
        wanted: list[tuple[int, int]] = []
        number = 0
        for u in range(t + 1):
            for segment in turns[u].segments():
                number += 1
                old = segment.kind == "tool" and u <= t - policy.older_than and segment.tokens >= policy.min_tokens
                lead, tail = segment.frame_lead or 0, (segment.frame or 0) - (segment.frame_lead or 0)
                for offset in range(segment.tokens):
                    if not old or offset < lead or offset >= segment.tokens - tail:
                        wanted.append((number, offset))
        has_tool = turns[t].tool is not None
        said = cached + [row for row in wanted if row not in set(cached) and not (has_tool and row[0] == number)]
        same = 0
        while same < min(len(wanted), len(said)) and wanted[same] == said[same]:
            same += 1
        cut = same < len(said)
        out.append((len(wanted), max(len(said), len(wanted)), len(wanted) - same if cut else 0, int(cut)))
        cached = wanted
    return out


@settings(max_examples=150, deadline=None)
@given(texts(), st.integers(1, 4), st.sampled_from([0, 10, 25]))
def test_footprint_equals_a_rebuilt_text(text: list[SegmentSize], older_than: int, min_tokens: int) -> None:
    policy = parse_policy(f"drop_tool_outputs(older_than={older_than},min_tokens={min_tokens})")
    assert isinstance(policy, DropToolOutputs)
    found = [(f.kv_rows, f.kv_rows_peak, f.reprefill_tokens, f.compactions) for f in policy.footprint(text)]
    assert found == brute_force(policy, text)


def test_one_output_in_numbers() -> None:
    text = [SegmentSize("prefix", 50)]
    text += [SegmentSize("assistant", 10), SegmentSize("tool", 100, frame=5, frame_lead=3)] * 3
    steps = parse_policy("drop_tool_outputs(older_than=2)").footprint(text)
    assert [s.kv_rows for s in steps] == [160, 270, 380 - 95]
    assert [s.kv_rows_peak for s in steps] == [160, 270, 285]
    assert [s.reprefill_tokens for s in steps] == [0, 0, 2 + 110 + 110]
    assert [s.compactions for s in steps] == [0, 0, 1]


def test_without_a_known_frame_the_protected_tokens_are_it() -> None:
    text = [
        SegmentSize("prefix", 5),
        SegmentSize("assistant", 5),
        SegmentSize("tool", 40, protected=4),
        SegmentSize("assistant", 5),
    ]
    steps = parse_policy("drop_tool_outputs(older_than=1)").footprint(text)
    assert steps[1].kv_rows == 5 + 5 + 4 + 5


@pytest.mark.parametrize("option", ["keep=0.2", "budget=50", "older_than=0", "prefix=drop"])
def test_there_is_no_size_to_hold_it_to(option: str) -> None:
    with pytest.raises(UserError):
        parse_policy(f"drop_tool_outputs({option})")
