"""A trajectory's line of JSON gives back the same trajectory, whatever is in it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmill.traces.record import dump, load, sealed, tool_call
from kvmill.traces.trajectory import Label, Message, Probe, RecordedIds, Trajectory, Turn, Usage

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


def plainly(value: Any) -> Any:
    """A noun as the JSON it stands for, by its fields: defaults and parsed arguments are left out."""
    if is_dataclass(value):
        out = {}
        for f in fields(value):
            default = f.default_factory() if f.default_factory is not MISSING else f.default
            item = getattr(value, f.name)
            if f.name != "parsed" and item != default:
                out[f.name] = plainly(item)
        return out
    return [plainly(item) for item in value] if isinstance(value, tuple) else value


def full(**values: Any) -> Trajectory:
    """A trajectory in which no field has its default."""
    call = tool_call("c", "f", '{"a": "ü"}')
    said = Message("assistant", "said", (call,), "x", "name", "thought")
    turn = Turn(said, (said,), (said,), 1.5, 2.5, 0.5, Usage(1, 2, 3, 4), RecordedIds((1, 2), (3,)))
    label = Label("reward", 1.0, (call,))
    made = Trajectory(
        "id", "source", "family", (said,), (turn,), ({"name": "f"},), (Probe("p", "k", "q", "a", ("b",), 0, 0),)
    )
    return replace(made, label=label, model="m", losses=("no_reward",), already_compacted=True, meta={"k": 1}, **values)


def test_no_field_of_any_noun_is_left_out() -> None:
    run = full()
    assert all(getattr(run, f.name) != f.default for f in fields(run))
    assert dump(run) == json.dumps(plainly(run), ensure_ascii=False, separators=(",", ":"))
    assert load(dump(run)) == run


@pytest.mark.parametrize(
    "odd", [1e-05, 1e16, -1e-300, 0.0001, 1e15, -0.0, 2**70, {"deep": [1e22]}, "\x7f\x1f\u2028", {1: "number as key"}]
)
def test_numbers_are_spelled_as_ever_so_that_ids_stay(odd: Any) -> None:
    runs = [full(), replace(full(), label=Label("flag", odd)), replace(full(), tools=({"a": odd},), meta={"a": odd})]
    if isinstance(odd, float):
        runs.append(replace(full(), turns=(replace(full().turns[0], started_s=odd),)))
    for run in runs:
        hashed = plainly(replace(run, id="", model=None, losses=(), meta={}))
        written = json.dumps(hashed, ensure_ascii=False, separators=(",", ":"))
        id, line = sealed(run)
        assert id == f"source-{hashlib.sha256(written.encode()).hexdigest()[:12]}"
        assert line.decode() == dump(replace(run, id=id))
        assert line.decode() == json.dumps(plainly(replace(run, id=id)), ensure_ascii=False, separators=(",", ":"))


def test_what_json_has_no_form_for_is_an_error() -> None:
    for run in (
        replace(full(), label=Label("flag", float("nan"))),
        replace(full(), turns=(replace(full().turns[0], duration_s=float("inf")),)),
        replace(full(), prefix=(Message("user", "half \ud83d"),)),
    ):
        with pytest.raises(ValueError, match=r"not JSON compliant|surrogates not allowed"):
            sealed(run)
