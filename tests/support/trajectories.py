"""Hypothesis strategies for trajectories as readers make them: whatever a source may have said, in canonical form."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kvmill.traces.record import tool_call
from kvmill.traces.trajectory import Label, Message, Probe, RecordedIds, Trajectory, Turn, Usage

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
word = st.text("abcé_-1", min_size=1, max_size=6)
think = st.sampled_from(["<think>x</think>y", "  <think>", "\n"])
spoken = st.one_of(text, think)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(word, inner, max_size=3),
    max_leaves=6,
)
arguments = st.sampled_from(
    ["{}", '{"a":1}', '{"a": 1}', '{"a":  1.0, "b": "é"}', '{"a": "\\u00e9"}', "[1]", "{broken", ""]
)
calls = st.lists(st.builds(tool_call, word, word, arguments), max_size=3).map(tuple)
asked = st.builds(Message, st.sampled_from(["system", "developer", "user"]), spoken, name=st.none() | word)
result = st.builds(Message, st.just("tool"), spoken, tool_call_id=st.none() | word, name=st.none() | word)
counted = st.none() | st.integers(0, 2**30)
seconds = st.none() | st.floats(0, 1e6)
usage = st.none() | st.builds(Usage, counted, counted, counted, counted)
token = st.integers(0, 2**20)
ids = st.builds(
    RecordedIds,
    st.lists(token, min_size=1, max_size=4).map(tuple),
    st.lists(token, min_size=1, max_size=4).map(tuple),
)
label = st.none() | st.builds(Label, word, json_values, calls)
probe = st.builds(Probe, word, word, text, text, st.just(("a", "b")), st.just(1), st.just(0))


@st.composite
def _turn(draw: st.DrawFn, first: bool, recorded: st.SearchStrategy[RecordedIds | None]) -> Turn:
    made = draw(calls)
    said = Message("assistant", draw(spoken), made, reasoning=draw(st.none() | text.filter(bool)))
    answers = st.builds(
        Message, st.just("tool"), spoken, tool_call_id=st.sampled_from([call.id for call in made] or [None])
    )
    return Turn(
        said,
        tuple(draw(st.lists(answers | result, max_size=3))),
        () if first else tuple(draw(st.lists(asked, max_size=2))),
        *(draw(seconds) for _ in range(3)),
        draw(usage),
        draw(recorded),
    )


@st.composite
def trajectories(draw: st.DrawFn, recorded: st.SearchStrategy[RecordedIds | None] | None = None) -> Trajectory:
    """A trajectory; `recorded` makes each turn's ids (all or none unless given)."""
    greeting = st.builds(Message, st.just("assistant"), spoken)
    prefix = draw(st.lists(asked | greeting | result, min_size=1, max_size=3))
    recorded = recorded if recorded is not None else draw(st.sampled_from([st.none(), ids]))
    count = draw(st.integers(1, 3))
    started = st.none() | st.just("2026-01-05T10:00:00+00:00")
    meta = {"started_at": value} if (value := draw(started)) else draw(st.dictionaries(word, json_values, max_size=2))
    return Trajectory(
        draw(word),
        draw(word),
        draw(word),
        tuple(prefix),
        tuple(draw(_turn(n == 0, recorded)) for n in range(count)),
        tuple(
            draw(st.lists(st.builds(lambda name: {"type": "function", "function": {"name": name}}, word), max_size=2))
        ),
        tuple(draw(st.lists(probe, max_size=1))),
        draw(label),
        draw(st.none() | word),
        tuple(sorted(set(draw(st.lists(word, max_size=2))))),
        draw(st.booleans()),
        meta,
    )
