"""Random trajectories as segment lengths, for the footprint tests."""

from __future__ import annotations

from hypothesis import strategies as st

from kvmill.replay.policies.base import SegmentSize

SMALL = st.integers(1, 40)
LONG = st.one_of(SMALL, st.integers(200, 800))


@st.composite
def segments(draw: st.DrawFn, tokens: st.SearchStrategy[int] = LONG, most_turns: int = 7) -> list[SegmentSize]:
    """Prefix, then turns of an optional user segment, an assistant and an optional tool segment."""

    def segment(kind: str) -> SegmentSize:
        n = draw(tokens)
        at = tuple(sorted(draw(st.sets(st.integers(0, n - 1), max_size=min(n, 6))))) if n else ()
        return SegmentSize(kind, n, len(at), at, closing=draw(st.integers(1, 3)))  # type: ignore[arg-type]

    out = [segment("prefix")]
    for turn in range(draw(st.integers(1, most_turns))):
        if turn and draw(st.booleans()):
            out.append(segment("user"))
        out.append(segment("assistant"))
        if draw(st.integers(0, 4)):
            out.append(segment("tool"))
    return out
