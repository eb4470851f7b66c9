"""Each way in which a trajectory can come back changed has its own name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvmill.traces.export import WRITERS
from kvmill.traces.record import tool_call
from kvmill.traces.trajectory import Label, Message, Probe, RecordedIds, Trajectory, Turn, Usage
from kvmill.traces.writers.lost import LOST, lost

SAID = Message("assistant", "A", (tool_call("c", "f", '{"a":1}'),), reasoning="R")
TURN = Turn(
    SAID, (Message("tool", "T", tool_call_id="c", name="f"),), (), 0.0, 1.0, 2.0, Usage(1), RecordedIds((1,), (2,))
)
RUN = Trajectory(
    "t",
    "s",
    "x",
    (Message("user", "U"),),
    (TURN, replace(TURN, user=(Message("user", "V"),))),
    ({"function": {"name": "f"}},),
    (Probe("p", "k", "q", "a", ("b", "c"), 0, 0),),
    Label("reward", 1.0),
    "m",
    ("no_reward",),
    False,
    {"k": 1},
)
CALL = SAID.tool_calls[0]


def first(**changes: object) -> Trajectory:
    return replace(RUN, turns=(replace(TURN, **changes), *RUN.turns[1:]))


CHANGED = {
    "source": replace(RUN, source="other"),
    "family": replace(RUN, family="other"),
    "prefix": replace(RUN, prefix=(*RUN.prefix, SAID, *TURN.tools), turns=RUN.turns[1:]),
    "turns": replace(RUN, turns=RUN.turns[:1]),
    "words": first(assistant=replace(SAID, content="a")),
    "reasoning": first(assistant=replace(SAID, reasoning=None)),
    "arguments": first(assistant=replace(SAID, tool_calls=(replace(CALL, arguments='{"a": 1}'),))),
    "call_ids": first(tools=(replace(TURN.tools[0], tool_call_id=None),)),
    "names": first(tools=(replace(TURN.tools[0], name=None),)),
    "tools": replace(RUN, tools=()),
    "usage": first(usage=None),
    "times": first(tool_wait_s=None),
    "prompt_ids": first(ids=RecordedIds((), (2,))),
    "output_ids": first(ids=RecordedIds((1,), ())),
    "model": replace(RUN, model=None),
    "label": replace(RUN, label=None),
    "probes": replace(RUN, probes=()),
    "meta": replace(RUN, meta={}),
    "losses": replace(RUN, losses=()),
    "already_compacted": replace(RUN, already_compacted=True),
}


@pytest.mark.parametrize("code", LOST)
def test_every_change_is_told_by_its_name(code: str) -> None:
    assert code in lost(RUN, CHANGED[code])
    if code not in ("prefix", "turns"):
        assert lost(RUN, CHANGED[code]) == (code,)


def test_every_writer_names_its_losses_as_they_are_counted() -> None:
    for writer in WRITERS.values():
        assert writer.loses == tuple(code for code in LOST if code in writer.loses)


def test_nothing_is_lost_where_nothing_changed() -> None:
    assert lost(RUN, RUN) == ()
    assert lost(RUN, replace(RUN, id="other")) == ()
    assert lost(RUN, replace(RUN, losses=("interrupted", *RUN.losses), meta={**RUN.meta, "more": 1})) == ()


def test_the_same_messages_in_other_turns_are_a_change() -> None:
    moved = replace(RUN, turns=(replace(TURN, tools=()), replace(RUN.turns[1], user=(*TURN.tools, *RUN.turns[1].user))))
    assert lost(RUN, moved) == ("turns",)
