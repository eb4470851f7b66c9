"""Where a session's tokens and a rendering from scratch part, and how far the text of calls moves, with the cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from merging import Merging

from kvmill.traces import samples
from kvmill.traces.drift import drift
from kvmill.traces.files import read_file
from kvmill.traces.record import tool_call
from kvmill.traces.trajectory import Message, RecordedIds, Trajectory, Turn

ALL = ("chatml", "items", "raw", "tojson", "braces", "drops-thinking", "strict")


def run(*turns: Turn, **values: Any) -> Trajectory:
    return Trajectory("t", "test", "test", (Message("system", "Be brief."), Message("user", "Where?")), turns, **values)


def calling(arguments: str) -> Turn:
    call = tool_call("call_1", "look_up", arguments)
    return Turn(Message("assistant", "", (call,)), (Message("tool", "found", tool_call_id="call_1"),))


@pytest.mark.parametrize("name", ALL)
def test_a_plain_run_is_the_same_held_and_anew_with_every_template(tokenizer_for: Any, name: str) -> None:
    turns = (Turn(Message("assistant", "One.")), Turn(Message("assistant", "Two."), user=(Message("user", "And?"),)))
    found = drift(run(*turns), tokenizer_for(name))
    assert [(t.turn, t.cause, t.shared_tokens == t.held_tokens == t.anew_tokens) for t in found.turns] == [
        (0, None, True),
        (1, None, True),
    ]


def test_samples_do_not_drift(tokenizer_for: Any) -> None:
    found = drift(samples.load()[3], tokenizer_for("chatml"))
    assert {turn.cause for turn in found.turns} == {None}
    assert (found.calls, found.losses, found.ids_recorded, found.ids_not_used) == (0, (), False, "")


def test_thinking_that_is_dropped_later_is_the_cause_and_the_place_is_where_it_stood(tokenizer_for: Any) -> None:
    tokenizer = tokenizer_for("drops-thinking")
    first = Turn(Message("assistant", "One.", reasoning="a thought"))
    second = Turn(Message("assistant", "Two."), user=(Message("user", "And?"),))
    whole, parted = drift(run(first, second), tokenizer).turns
    assert whole.cause is None
    assert parted.cause == "the template drops earlier thinking"
    assert parted.held.startswith("<think>\na thou")
    assert parted.anew.startswith("One.")
    assert parted.held_tokens - parted.anew_tokens == len("\na thought\n\n") + 2, "and two tags of one token each"


def test_another_end_for_the_last_message_is_told_from_other_rewriting(
    tokenizer_with: Any, templates: dict[str, str]
) -> None:
    chatml = templates["chatml"]
    ends = chatml.replace(
        "message.content + '<|im_end|>", "message.content + ('</think>' if loop.last else '<|im_end|>') + '"
    )
    found = drift(run(Turn(Message("assistant", "One.")), Turn(Message("assistant", "Two."))), tokenizer_with(ends))
    assert [turn.cause for turn in found.turns] == ["the template ends earlier messages otherwise"] * 2
    counts = "{{ messages | length | string + '\\n' }}" + chatml
    found = drift(run(Turn(Message("assistant", "One."))), tokenizer_with(counts))
    assert [turn.cause for turn in found.turns] == ["the template rewrites earlier messages"]
    assert (found.turns[0].shared_tokens, found.turns[0].held[0], found.turns[0].anew[0]) == (0, "2", "3")


def test_tokens_that_would_merge_across_messages_are_found_though_the_text_is_the_same(tokenizer_with: Any) -> None:
    """Pieces are encoded by themselves; a tokenizer that sees all at once writes two line breaks as one token."""
    plain = "{% for m in messages %}{{ m.role + ':\\n' + m.content + '\\n' }}{% endfor %}"
    plain += "{% if add_generation_prompt %}{{ 'assistant:\\n' }}{% endif %}"
    turn = Turn(Message("assistant", "One."), (Message("tool", "\nfound"),))
    found = drift(run(Turn(Message("assistant", "\nOne."))), Merging(tokenizer_with(plain)))
    assert [t.cause for t in found.turns] == ["tokens merge across messages"]
    assert found.turns[0].held_tokens == found.turns[0].anew_tokens + 1
    assert drift(run(turn), tokenizer_with(plain)).turns[0].cause is None


@pytest.mark.parametrize(
    ("name", "changed", "own"), [("raw", 0, 0), ("tojson", 2, 0), ("items", 3, 3), ("chatml", 0, 0)]
)
def test_call_text_that_a_template_prints_otherwise_is_counted(
    tokenizer_for: Any, name: str, changed: int, own: int
) -> None:
    turns = (calling('{"a":1,"b":"\\u00eb"}'), calling('{"a": 1}'), calling('{"a":  1}'))
    found = drift(run(*turns), tokenizer_for(name))
    assert (found.calls, found.calls_changed, found.calls_in_own_form) == (3, changed, own)
    # Six characters of an escape against one letter and three blanks, of which the more count; then one blank less.
    assert found.call_characters == (7 if name == "tojson" else 0)


def test_real_calls_change_in_nine_of_ten_when_they_are_parsed_and_written_again(
    shared_data: Path, tokenizer_for: Any
) -> None:
    """What reference measurements say of four such files: 1,037 of 1,164 calls, 4.5 characters each."""
    calls = changed = characters = 0
    for trial in (0, 1):
        _, items, _ = read_file(shared_data / f"traces/tau-bench/gpt-4o-airline.trial{trial}.json")
        for item in list(items)[::10]:
            assert isinstance(item.value, Trajectory)
            found = drift(item.value, tokenizer_for("tojson"))
            assert {turn.cause for turn in found.turns} == {None}
            calls, changed = calls + found.calls, changed + found.calls_changed
            characters += found.call_characters
            assert drift(item.value, tokenizer_for("raw")).calls_changed == 0
    assert calls > 40
    assert 0.8 < changed / calls < 1
    assert 2 < characters / calls < 12


def test_the_first_token_of_a_recorded_reply_that_is_not_the_rendered_one_is_told(tokenizer_for: Any) -> None:
    tokenizer = Merging(tokenizer_for("chatml"))
    said = Message("assistant", "See Pan")
    written = (*b"See P", 2002, 257)
    encoded = (*b"See ", 2001, ord("n"), 257)
    assert tokenizer.decode(written) == tokenizer.decode(encoded) == "See Pan<|im_end|>"
    turns = [Turn(said, ids=RecordedIds((1,), ids)) for ids in (encoded, written, encoded[:-1], encoded[:-2])]
    assert [drift(run(turn), tokenizer).turns[0].said_at for turn in turns] == [None, 4, None, 5]
    assert json.dumps(drift(run(turns[0]), tokenizer).ids_not_used) != '""'
