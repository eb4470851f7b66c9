"""What was generated becomes columns: read by the grammar, compared with the record and with full."""

from __future__ import annotations

import pytest
from chatter import CHATML, Chatter

from kvmill.replay.behaviour import action_columns, cell_columns
from kvmill.replay.branch import TurnCounters
from kvmill.replay.decoding import Ending
from kvmill.replay.engine import BranchRun, TurnRecord
from kvmill.replay.metrics import TurnQuality
from kvmill.replay.policies.base import Work
from kvmill.replay.policies.registry import parse_policy
from kvmill.replay.stepwise import Asking
from kvmill.traces.tokens import tokenize
from kvmill.traces.trajectory import Message, ToolCall, Trajectory, Turn

CALL = '<tool_call>{"name":"book","arguments":{"id": 7, "to": "Oslo"}}</tool_call>'
OTHER = '<tool_call>{"name":"book","arguments":{"id": 7, "to": "Rome"}}</tool_call>'
ASKING = Asking(Ending(frozenset({96}), ""), Chatter().decode, most=200)


def booking(*contents: str, calls: bool = True) -> Trajectory:
    call = ToolCall("1", "book", '{"id": 7, "to": "Oslo"}', {"id": 7, "to": "Oslo"})
    turns = tuple(
        Turn(Message("assistant", text, (call,) if calls else ()), (Message("tool", "done"),)) for text in contents
    )
    return Trajectory("t", "s", "f", (Message("user", "Book it"),), turns)


def run(policy: str, *texts: str | None) -> BranchRun:
    records = [
        TurnRecord(t, 0, TurnQuality(), 0, 0, 0, TurnCounters(), Work(0, 0), None if s is None else ids(s))
        for t, s in enumerate(texts)
    ]
    return BranchRun(parse_policy(policy), records)


def ids(text: str) -> tuple[int, ...]:
    return tuple(Chatter().encode(text, False))


def columns(runs: list[BranchRun], recorded: Trajectory, asking: Asking = ASKING, template: str = CHATML):
    return action_columns(recorded, tokenize(recorded, Chatter(template)), runs, asking, "fallback")


def test_the_recorded_action_is_what_the_model_was_fed() -> None:
    recorded = booking("First.", "Then.", "Last.")
    full = run("full", None, f"Then.\n{CALL}", OTHER)
    te = run("te", None, OTHER, OTHER)
    mine, theirs = columns([full, te], recorded)
    assert mine[0] == theirs[0] == {}
    assert mine[1]["action_arguments_match"] is True
    assert mine[1]["action_text_similarity"] == 1.0
    assert theirs[1]["action_name_match"] is True
    assert theirs[1]["action_arguments_match"] is theirs[1]["action_arguments_match_full"] is False
    assert theirs[1]["action_field_share"] == theirs[1]["action_field_share_full"] == 0.5
    assert theirs[2]["action_arguments_match"] is False
    assert theirs[2]["action_arguments_match_full"] is True  # both are wrong in the same way
    assert theirs[2]["generated_tokens"] == len(OTHER)
    assert cell_columns(mine) == {
        "action_turns": 2, "action_parsed": 1.0, "action_match": 0.5, "action_match_full": 1.0,
    }  # fmt: skip
    assert cell_columns(theirs)["action_match_full"] == 0.5


def test_what_nothing_can_be_read_from_agrees_with_nothing() -> None:
    recorded = booking("First.", "Then.")
    ((_, full), (_, te)) = columns([run("full", None, "No."), run("te", None, "No.")], recorded)
    assert full["action_parsed"] is te["action_parsed"] is te["action_parsed_full"] is False
    assert te["action_arguments_match"] is False
    assert te["action_arguments_match_full"] is None  # full did nothing that could be repeated
    assert te["action_text_similarity_full"] == 1.0
    assert cell_columns([{}, te])["action_match_full"] is None
    assert cell_columns([{}, {}]) == {}


def test_turns_without_a_recorded_action_are_not_compared() -> None:
    recorded = booking("First.", "I am done.", calls=False)
    ((_, full),) = columns([run("full", None, CALL)], recorded)
    assert full["action_parsed"] is True
    assert full["action_arguments_match"] is full["action_name_match"] is full["action_field_share"] is None
    assert full["action_arguments_match_full"] is True


def test_calls_that_the_text_does_not_show_are_taken_from_the_record() -> None:
    recorded = booking("First.", "Then.")
    silent = booking("First.", "Then.", calls=False)
    tokens = tokenize(silent, Chatter())
    ((_, full),) = action_columns(recorded, tokens, [run("full", None, CALL)], ASKING, "fallback")
    assert full["action_arguments_match"] is True


def test_a_call_inside_a_thought_that_the_template_began_is_no_action() -> None:
    thinking = CHATML.replace("'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<think>\n'").replace(
        "m['content'] +", "('<think>\n' if m['role'] == 'assistant' else '') + m['content'] +"
    )
    recorded = booking("Hm.</think>", "Hm.</think>")
    runs = [run("full", None, f"Hm.</think>{CALL}"), run("te", None, CALL)]
    ((_, full), (_, te)) = columns(runs, recorded, template=thinking)
    assert full["action_arguments_match"] is True
    assert te["action_parsed"] is False


def test_of_the_recorded_words_as_many_are_compared_as_may_be_generated() -> None:
    recorded = booking("First.", "x" * 40, calls=False)
    short = Asking(ASKING.ending, ASKING.decode, most=10)
    ((_, full),) = columns([run("full", None, "x" * 10)], recorded, short)
    assert full["action_text_similarity"] == 1.0
    ((_, whole),) = columns([run("full", None, "x" * 10)], recorded)
    assert whole["action_text_similarity"] == pytest.approx(2 * 10 / 50)


def test_a_failed_run_has_no_columns_and_takes_none_from_others() -> None:
    failed = run("te", None, CALL)
    failed.error = "planted"
    full, te = columns([run("full", None, CALL), failed], booking("First.", "Then."))
    assert len(full) == 2
    assert te == []
