"""A trajectory's line of JSON gives back the same trajectory, whatever is in it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvmill.traces.record import dump, load, tool_call
from kvmill.traces.trajectory import Label, Message, Probe, Trajectory, Turn, Usage

texts = st.text(st.characters(codec="utf-8"), max_size=8)
times = st.none() | st.floats(0, 1e6)


@settings(deadline=None, derandomize=True)
@given(texts, texts, times, st.booleans(), st.none() | st.integers(0, 2**40))
def test_there_and_back(a: str, b: str, when: float | None, flag: bool, tokens: int | None) -> None:
    call = tool_call("c", a, b)
    said = Message("assistant", b, (call,), reasoning=a or None)
    result, usage = Message("tool", a, tool_call_id="c"), Usage(tokens, None, tokens, 0)
    run = Trajectory(
        "id",
        "source",
        a,
        (Message("system", a, name=b or None), Message("user", b)),
        (Turn(said, (result,), (Message("user", a),), when, when, when, usage),),
        ({"name": a, "empty": {}, "none": None, "list": []},),
        (Probe("p", "k", a, b, (a, b), 1, 0),),
        Label("flag", {"x": [a, None, 1.5]}, (call,)),
        b or None,
        (a,),
        flag,
        {"deep": {"er": [b, {}, None]}},
    )
    line = dump(run)
    assert "\n" not in line
    assert load(line) == run
    assert dump(load(line)) == line
