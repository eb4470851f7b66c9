"""The calls of a trace become runs by the longest beginning, never by joining; each call counts once."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from kvmill.traces.readers.messages import Said
from kvmill.traces.readers.spans import AGGREGATE, TEXT, WHOLE, Call, ToolRun, Trace, family_of, runs
from kvmill.traces.reading import Reject
from kvmill.traces.trajectory import Trajectory, Usage

ASKED = {"role": "user", "content": "Weather in Oslo?"}
CALLING = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "function": {"name": "weather", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "rain"}
SAID = {"role": "assistant", "content": "Rain."}


def call(id: str, messages: list[Any], answer: dict[str, Any], start: float | None = None, **more: Any) -> Call:
    end = None if start is None else start + 1
    return Call(id, Said(list(messages)), dict(answer), started_s=start, ended_s=end, **more)


def made(trace: Trace) -> list[Trajectory]:
    return [value for value in runs("x", trace) if isinstance(value, Trajectory)]


def shape(run: Trajectory) -> list[str]:
    return [f"{m.role}:{m.content or [c.name for c in m.tool_calls]}" for m in run.messages()]


WHOLE_RUN = ["user:Weather in Oslo?", "assistant:['weather']", "tool:rain", "assistant:Rain."]


@pytest.mark.parametrize("order", list(itertools.permutations([0, 1, 2])))
def test_calls_in_any_order_are_one_run_in_the_order_they_began(order: tuple[int, ...]) -> None:
    thanks = {"role": "user", "content": "Thanks."}
    bye = {"role": "assistant", "content": "Bye."}
    calls = [
        call("1", [ASKED], CALLING, 100.0, usage=Usage(1)),
        call("2", [ASKED, CALLING, RESULT], SAID, 103.0, usage=Usage(2)),
        call("3", [ASKED, CALLING, RESULT, SAID, thanks], bye, 110.0, usage=Usage(3)),
    ]
    (run,) = made(Trace("t", [calls[n] for n in order]))
    assert shape(run) == [*WHOLE_RUN, "user:Thanks.", "assistant:Bye."]
    assert [turn.usage for turn in run.turns] == [Usage(1), Usage(2), Usage(3)]
    assert [turn.started_s for turn in run.turns] == [0.0, 3.0, 10.0]
    assert [turn.tool_wait_s for turn in run.turns] == [2.0, 6.0, None]
    assert (run.meta["start_s"], run.meta["chain"]) == (100.0, "t")


def test_a_session_goes_before_the_trace_and_a_call_alone_in_its_trace_is_bound_to_neither() -> None:
    alone = call("1", [ASKED], SAID)
    assert made(Trace("t", [alone], session="s"))[0].meta["chain"] == "s"
    assert "chain" not in made(Trace("t", [alone]))[0].meta
    assert made(Trace("t", [alone], piece=True))[0].meta["chain"] == "t"


def test_calls_that_do_not_continue_each_other_stay_apart() -> None:
    other = {"role": "user", "content": "Weather in Rome?"}
    trace = Trace(
        "t", [call("1", [ASKED], SAID, 1.0), call("2", [other], SAID, 2.0), call("3", [ASKED, SAID, other], SAID, 3.0)]
    )
    assert sorted(len(run.turns) for run in made(trace)) == [1, 2]
    assert all("Weather in Rome?" not in str(run.prefix[0]) or len(run.turns) == 1 for run in made(trace))


def test_a_shortened_history_begins_another_run() -> None:
    summary = {"role": "user", "content": "So far: rain in Oslo."}
    trace = Trace("t", [call("1", [ASKED], CALLING, 1.0), call("2", [summary], SAID, 5.0)])
    assert len(made(trace)) == 2


@pytest.mark.parametrize(
    ("outer", "inner", "kept"), [(WHOLE, WHOLE, "inner"), (AGGREGATE, WHOLE, "inner"), (WHOLE, TEXT, "outer")]
)
def test_of_a_call_recorded_twice_the_better_record_stays(outer: int, inner: int, kept: str) -> None:
    trace = Trace(
        "t",
        [
            call("a", [ASKED], SAID, 1.0, rank=outer, model="outer"),
            call("b", [ASKED], SAID, 1.0, rank=inner, model="inner"),
        ],
    )
    trace.parents = {"a": None, "b": "between", "between": "a"}
    (run,) = made(trace)
    assert run.model == kept


def test_an_agents_span_around_its_calls_is_no_call() -> None:
    trace = Trace("t", [call("1", [ASKED], CALLING, 1.0), call("2", [ASKED, CALLING, RESULT], SAID, 3.0)])
    trace.calls.append(call("agent", [ASKED], SAID, 0.5, rank=AGGREGATE))
    trace.parents = {"1": "agent", "2": "agent", "agent": None}
    (run,) = made(trace)
    assert shape(run) == WHOLE_RUN


def test_parents_in_a_circle_do_not_hang() -> None:
    trace = Trace("t", [call("a", [ASKED], SAID)], parents={"a": "b", "b": "a"})
    assert len(made(trace)) == 1


def test_a_dropped_message_is_filled_from_the_call_that_said_it() -> None:
    trace = Trace("t", [call("1", [ASKED], CALLING, 1.0), call("2", [ASKED, None, RESULT], SAID, 3.0)])
    (run,) = made(trace)
    assert shape(run) == WHOLE_RUN
    (alone,) = made(Trace("t", [call("2", [ASKED, None, RESULT], SAID, 3.0)]))
    assert "truncated_source" in alone.losses


def test_the_last_calls_results_come_from_the_tools_that_ran() -> None:
    tools = [
        ToolRun("weather", "old", None, 0.2, 0.3),
        ToolRun("weather", "rain", "c1", 2.5, 4.0),
        ToolRun("other", "x", None, 3.0),
    ]
    (run,) = made(Trace("t", [call("1", [ASKED], CALLING, 1.0)], tools))
    assert [m.content for m in run.turns[0].tools] == ["rain"]
    assert run.turns[0].tool_wait_s == 2.0
    assert "ends_with_call" not in run.losses
    (by_name,) = made(Trace("t", [call("1", [ASKED], CALLING, 1.0)], [ToolRun("weather", "by name", None, 2.0)]))
    assert [m.content for m in by_name.turns[0].tools] == ["by name"]
    (none,) = made(Trace("t", [call("1", [ASKED], CALLING, 1.0)], tools[:1]))
    assert "ends_with_call" in none.losses, "a tool that ran before the call answers another one"


def test_a_result_that_the_next_call_did_not_repeat_never_reached_the_model() -> None:
    after = [ASKED, CALLING, {"role": "user", "content": "Well?"}]
    tools = [ToolRun("weather", "rain", "c1", 2.0)]
    (run,) = made(Trace("t", [call("1", [ASKED], CALLING, 1.0), call("2", after, SAID, 3.0)], tools))
    assert "rain" not in str(shape(run))
    assert "call_without_result" in run.losses


def test_what_cannot_be_read_is_said_unless_a_record_around_it_can() -> None:
    trace = Trace("t", [call("a", [ASKED], SAID)], parents={"b": "a", "c": None})
    trace.refuse("b", "no answer")
    trace.refuse("c", "no prompt")
    reasons = [str(value) for value in runs("x", trace) if isinstance(value, Reject)]
    assert reasons == ["no prompt"]


def test_families_are_words_to_group_by() -> None:
    assert family_of(None, "  Flight Agent ", default="x") == "flight agent"
    assert family_of("unknown_service:python", 7, "", default="x") == "x"
    assert len(family_of("a" * 500, default="x")) == 60


def test_thousands_of_nested_calls_and_tools_take_no_more_than_a_moment() -> None:
    count = 3_000
    calls = [call(str(n), [{"role": "user", "content": str(n)}], CALLING, float(n)) for n in range(count)]
    trace = Trace("t", calls, [ToolRun("weather", "rain", None, 0.0) for _ in range(count)])
    trace.parents = {str(n): str(n - 1) for n in range(1, count)}
    for n in range(count):
        trace.refuse(f"x{n}", "no answer")
    started = time.monotonic()
    assert sum(1 for _ in runs("x", trace)) == count + 1
    assert time.monotonic() - started < 20
