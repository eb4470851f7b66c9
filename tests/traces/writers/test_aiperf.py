"""Written for AIPerf and read again, a run keeps all that was said but its last reply; the rest is named as lost."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from sources import items
from trajectories import trajectories

from kvmill.traces import formats, samples
from kvmill.traces.readers.aiperf import FORMAT
from kvmill.traces.record import tool_call
from kvmill.traces.trajectory import Message, Trajectory, Turn, Usage
from kvmill.traces.writers.aiperf import LOSES, rows
from kvmill.traces.writers.lost import lost

LAST = Turn(Message("assistant", "B", reasoning="R"))
CALLING = Message("assistant", "", (tool_call("c", "f", '{"a":1}'),), reasoning="R")
FIRST = Turn(CALLING, (Message("tool", "T", tool_call_id="c", name="f"),), (), 0.0, 1.0, 2.5, Usage(10, 5, 0, 7))
RUN = Trajectory(
    "t1",
    "s",
    "x",
    (Message("system", "S"), Message("user", "U")),
    (FIRST, LAST),
    ({"type": "function", "function": {"name": "f"}},),
)


def written(trajectory: Trajectory) -> list[dict[str, Any]]:
    return [json.loads(json.dumps(row, allow_nan=False)) for row in rows(trajectory)]


def again(trajectory: Trajectory) -> Trajectory:
    (item,) = items(FORMAT, written(trajectory))
    assert isinstance(item.value, Trajectory), item.reason
    return item.value


def test_a_row_is_the_request_of_one_call() -> None:
    first, second = written(RUN)
    assert first == {
        "session_id": "t1",
        "message_mode": "history",
        "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "output_length": 7,
    }
    assert second["delay"] == 2500
    assert second["messages"][2]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert second["messages"][3] == {"role": "tool", "content": "T", "tool_call_id": "c", "name": "f"}
    assert "output_length" not in second
    assert formats.detect([first, second], "x").name == "aiperf"


def test_all_but_the_last_reply_comes_back() -> None:
    back = again(RUN)
    assert back.prefix == RUN.prefix
    assert [turn.assistant for turn in back.turns] == [CALLING]
    assert back.turns[0].tools == FIRST.tools
    assert (back.turns[0].usage, back.turns[0].tool_wait_s) == (Usage(output_tokens=7), 2.5)
    assert set(lost(RUN, back)) == {"source", "family", "turns", "usage", "times"}


def test_the_samples_keep_their_words() -> None:
    for run in samples.load()[:20]:
        back = again(run)
        assert back.messages() == run.messages()[: len(back.messages())]
        assert len(back.turns) == len(run.turns) - 1


@given(trajectories())
def test_nothing_is_lost_but_what_the_format_has_no_place_for(trajectory: Trajectory) -> None:
    (item,) = items(FORMAT, written(trajectory))
    if not isinstance(item.value, Trajectory):
        # The last reply is not there, and one that comes before any question is no turn.
        said = trajectory.messages()
        question = next((i for i, m in enumerate(said) if m.role == "user"), len(said))
        acted = next((i for i, m in enumerate(said) if m.role == "tool" or m.tool_calls), len(said))
        if "nothing it could answer" in item.reason:
            assert said[0].role == "assistant"
            assert acted < question or question == len(said)
        else:
            assert "no assistant message" in item.reason
            assert len(trajectory.turns) == 1 or question >= len(trajectory.prefix)
        return
    # Where a prompt ends cannot be told if it holds more than the first question, and a text that begins with thinking
    # is taken apart.
    assert set(lost(trajectory, item.value)) <= set(LOSES)
    said = [(m.role, [c.arguments for c in m.tool_calls]) for m in trajectory.messages()]
    kept = [(m.role, [c.arguments for c in m.tool_calls]) for m in item.value.messages()]
    assert kept == said[: len(kept)]
