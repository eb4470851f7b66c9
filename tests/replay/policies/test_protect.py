from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lengths import segments

from kvmill.errors import UserError
from kvmill.replay.policies.base import SegmentSize
from kvmill.replay.policies.protect import forced_before, forced_count, forced_offsets, parse_protect
from kvmill.replay.policies.registry import parse_policy


@pytest.mark.parametrize(
    ("given_as", "printed"),
    [
        ("none", "none"),
        ("structure", "structure"),
        ("sinks:4", "sinks:4"),
        ("last:16+structure+sinks:04", "structure+sinks:4+last:16"),
    ],
)
def test_one_spelling_for_equal_protections(given_as: str, printed: str) -> None:
    assert parse_protect(given_as) == printed
    assert parse_policy(f"te(protect={given_as})") == parse_policy(f"te(protect={printed})")
    assert parse_policy(f"am(protect={given_as})") == parse_policy(f"am(protect={printed})")


@pytest.mark.parametrize(
    "text", ["", "all", "sinks", "sinks:", "sinks:0", "last:-1", "structure:2", "structure+structure", "none+sinks:1"]
)
def test_anything_else_is_an_error_that_says_what_is_known(text: str) -> None:
    with pytest.raises(ValueError, match=r"none \| structure|whole number"):
        parse_protect(text)
    if text:
        with pytest.raises(UserError, match="protect="):
            parse_policy(f"te(protect={text})")


@st.composite
def protections(draw: st.DrawFn) -> tuple[str, bool, int, int]:
    structure, sinks, last = draw(st.booleans()), draw(st.integers(0, 50)), draw(st.integers(0, 50))
    parts = ["structure"] * structure + [f"sinks:{sinks}"] * (sinks > 0) + [f"last:{last}"] * (last > 0)
    return "+".join(parts) or "none", structure, sinks, last


@given(segments(tokens=st.integers(0, 60)), protections(), st.data())
def test_offsets_and_counts_are_those_of_the_tokens(text: list[SegmentSize], protection, data: st.DataObject) -> None:
    protect, structure, sinks, last = protection
    for segment in text:
        n = segment.tokens
        want = [i for i in range(n) if (structure and i in (segment.protected_at or ())) or i < sinks or n - i <= last]
        assert list(forced_offsets(segment, protect)) == want
        assert forced_count(segment, protect) == len(want)
        offset = data.draw(st.integers(0, n))
        assert forced_before(segment, protect, offset) == sum(i < offset for i in want)


def test_without_text_structural_tokens_are_assumed_at_the_start() -> None:
    segment = SegmentSize("tool", 10, protected=3)
    assert forced_offsets(segment, "structure+last:2") == (0, 1, 2, 8, 9)
    assert forced_offsets(segment, "structure+sinks:2") == (0, 1, 2)
    assert (forced_count(segment, "structure"), forced_before(segment, "structure", 2)) == (3, 2)
    assert forced_count(SegmentSize("tool", 2, protected=3), "structure") == 2


@pytest.mark.parametrize(
    ("keep", "protect", "kept"), [("0", "sinks:3+last:4", 7), ("0.9", "sinks:3", 9), ("0", "none", 1)]
)
def test_protected_tokens_are_inside_m_and_all_stay_where_there_are_more(keep: str, protect: str, kept: int) -> None:
    segment = SegmentSize("tool", 10, 0, ())
    for name in ("te", "am"):
        policy = parse_policy(f"{name}(keep={keep},protect={protect})")
        assert policy.kept(segment) == kept  # type: ignore[attr-defined]
