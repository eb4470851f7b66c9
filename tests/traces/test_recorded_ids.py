"""Recorded token ids stand in for encoded text where they are this tokenizer's, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from merging import Merging

from kvmill.traces.recorded_ids import recorded
from kvmill.traces.tokens import TokenTrajectory, tokenize
from kvmill.traces.trajectory import Message, RecordedIds, Trajectory, Turn

END, START = 257, 256


def words(*turns: Turn, **meta: Any) -> Trajectory:
    prefix = (Message("system", "Be brief."), Message("user", "Who?"))
    return Trajectory("t", "test", "test", prefix, turns, meta=meta)


@pytest.fixture
def tokenizer(tokenizer_for: Any) -> Merging:
    return Merging(tokenizer_for("chatml"))


def as_recorded(run: Trajectory, tokenizer: Any, said: dict[int, tuple[int, ...]] | None = None) -> Trajectory:
    """The run with the ids that a server would report: what was added to the prompt, and the reply with its end."""
    tokens = tokenize(run, tokenizer)
    turns, waiting = [], list(tokens.segments[0].ids)
    for number, segments in enumerate(tokens.turns()):
        for segment in segments:
            if segment.kind != "assistant":
                waiting += segment.ids
                continue
            begin, end = segment.scored
            reply = (said or {}).get(number, segment.ids[begin:end])
            turns.append(replace(run.turns[number], ids=RecordedIds((*waiting, *segment.ids[:begin]), reply)))
            waiting = list(segment.ids[end:])
    return replace(run, turns=tuple(turns))


@pytest.fixture
def run() -> Trajectory:
    return words(
        Turn(Message("assistant", "See Pan"), (Message("tool", "Pan, Peter"),)),
        Turn(Message("assistant", "Peter Pan"), user=(Message("user", "Sure?"),)),
        Turn(Message("assistant", "Yes.")),
    )


def ids_of(tokens: TokenTrajectory) -> list[int]:
    return [token for segment in tokens.segments for token in segment.ids]


def test_ids_that_say_what_the_text_says_are_taken_even_without_a_fingerprint(
    run: Trajectory, tokenizer: Merging
) -> None:
    other_tokens = (*b"See P", 2002, END)
    told = as_recorded(run, tokenizer, {0: other_tokens})
    plain, taken = tokenize(run, tokenizer), tokenize(told, tokenizer)
    assert tokenizer.decode(ids_of(plain)) == tokenizer.decode(ids_of(taken))
    assert ids_of(plain) != ids_of(taken)
    reply = taken.segments[1]
    assert reply.ids[slice(*reply.scored)] == other_tokens
    assert [(s.kind, s.turn, s.closing, s.structural) for s in taken.segments] == [
        (s.kind, s.turn, s.closing, s.structural) for s in plain.segments
    ]
    assert [s.ids for n, s in enumerate(taken.segments) if n != 1] == [
        s.ids for n, s in enumerate(plain.segments) if n != 1
    ]


def test_with_this_fingerprint_they_are_taken_even_where_the_text_was_rewritten(
    run: Trajectory, tokenizer: Merging
) -> None:
    """A client parsed the reply and wrote it again: the ids are what the model said."""
    written = (*b"See  Pan", END)
    told = as_recorded(run, tokenizer, {0: written})
    assert recorded(told, tokenize(run, tokenizer).segments, tokenizer).reason == (
        "the recorded ids name no tokenizer, and in turn 0 they decode to another text than the template prints"
    )
    assert ids_of(tokenize(told, tokenizer)) == ids_of(tokenize(run, tokenizer))
    named = replace(told, meta={"tokenizer": tokenizer.fingerprint, "template": tokenizer.fingerprint})
    reply = tokenize(named, tokenizer).segments[1]
    assert reply.ids[slice(*reply.scored)] == written


def test_ids_of_another_tokenizer_are_refused_whatever_they_decode_to(run: Trajectory, tokenizer: Merging) -> None:
    told = as_recorded(run, tokenizer)
    for key in ("tokenizer", "template"):
        other = replace(told, meta={"tokenizer": tokenizer.fingerprint, key: "another"})
        found = recorded(other, tokenize(run, tokenizer).segments, tokenizer)
        assert (found.segments, found.reason) == (None, "the recorded ids belong to another tokenizer or chat template")


@pytest.mark.parametrize("token", [-1, 2**31, 2**64])
def test_ids_that_no_vocabulary_has_are_refused_even_under_its_name(
    run: Trajectory, tokenizer: Merging, token: int
) -> None:
    told = replace(as_recorded(run, tokenizer, {0: (*b"See", token, END)}), meta={"tokenizer": tokenizer.fingerprint})
    found = recorded(told, tokenize(run, tokenizer).segments, tokenizer)
    assert (found.segments, found.reason) == (None, "some of the recorded ids are no tokens of this model")


def test_a_reply_without_its_end_gets_the_template_s(run: Trajectory, tokenizer: Merging) -> None:
    plain = tokenize(run, tokenizer)
    told = as_recorded(run, tokenizer)
    turns = list(told.turns)
    for n in (0, 1):
        first, second = turns[n].ids, turns[n + 1].ids
        assert first is not None
        assert second is not None
        turns[n] = replace(turns[n], ids=replace(first, output=first.output[:-1]))
        turns[n + 1] = replace(turns[n + 1], ids=replace(second, prompt=(END, *second.prompt)))
    found = recorded(replace(told, turns=tuple(turns)), plain.segments, tokenizer)
    assert found.reason == ""
    assert found.segments == plain.segments


def test_ids_of_some_turns_only_are_not_mixed_with_encoded_ones(run: Trajectory, tokenizer: Merging) -> None:
    told = as_recorded(run, tokenizer)
    some = replace(told, turns=(replace(told.turns[0], ids=None), *told.turns[1:]))
    assert recorded(some, tokenize(run, tokenizer).segments, tokenizer).reason == "some turns have no recorded ids"


def test_a_prompt_that_does_not_fit_the_template_says_where(run: Trajectory, tokenizer: Merging) -> None:
    told = as_recorded(run, tokenizer)
    segments = tokenize(run, tokenizer).segments

    def reason(turn: int, prompt: tuple[int, ...]) -> str:
        ids = told.turns[turn].ids
        assert ids is not None
        turns = list(told.turns)
        turns[turn] = replace(turns[turn], ids=replace(ids, prompt=prompt))
        named = replace(told, turns=tuple(turns), meta={"tokenizer": tokenizer.fingerprint})
        return recorded(named, segments, tokenizer).reason

    ids = told.turns[1].ids
    assert ids is not None
    assert reason(0, (1, 2, 3)) == "before turn 0 they do not end with the template's opening of a reply"
    assert reason(1, (1, *ids.prompt)) == "before turn 1 they do not go on with the template's end of a reply"
    middle = len(ids.prompt) // 2
    assert "cannot be told apart" in reason(1, (*ids.prompt[:middle], 7, *ids.prompt[middle:]))


def test_runs_without_ids_are_no_refusal(run: Trajectory, tokenizer: Merging) -> None:
    found = recorded(run, tokenize(run, tokenizer).segments, tokenizer)
    assert (found.segments, found.reason) == (None, "")
