"""How runs of a scripted agent go, how they end, and what is counted."""

from __future__ import annotations

import pytest
from acting import PAGES, call, played, recorded, sample

from kvmill.replay.closed.episode import Said, seed_turns, turn_limit
from kvmill.replay.closed.reply import read_reply
from kvmill.traces.record import tool_call
from kvmill.traces.trajectory import Message, Turn


def test_the_recorded_path_ends_with_the_answer() -> None:
    lines = [call("search", query=query) for query in PAGES] + ["She lives in Seoul."]
    episode, script = played(lines)
    assert (episode.end, episode.answer, episode.turns) == ("answered", "She lives in Seoul.", 4)
    assert script.heard == list(PAGES.values())
    assert [answer.how for step in episode.steps for answer in step.answers] == ["exact"] * 3


def test_seed_turns_count_as_turns_and_their_calls_as_made() -> None:
    episode, _ = played([call("search", query="home of Sophie"), "Seoul"], seeds=2)
    assert (episode.turns, episode.seeds) == (4, 2)
    assert [call.parsed for call in episode.environment.seeded] == [{"query": query} for query in list(PAGES)[:2]]
    assert episode.steps[0].answers[0].repeated


@pytest.mark.parametrize(
    ("asked", "recorded", "fed"), [(2, 10, 2), (2, 2, 1), (2, 1, 0), (0, 5, 0), (9, 4, 3), (2, 0, 0)]
)
def test_the_last_recorded_turn_is_never_fed(asked: int, recorded: int, fed: int) -> None:
    assert seed_turns(asked, recorded) == fed


def test_a_run_ends_at_the_turn_limit_after_its_calls_were_answered() -> None:
    episode, script = played([call("search", query=f"nothing {n}") for n in range(99)], seeds=1, most=6)
    assert (episode.end, episode.turns, episode.answer) == ("turn_limit", 6, None)
    assert len(script.heard) == 5
    assert turn_limit(11) == 26


def test_an_answer_in_the_last_turn_is_an_answer() -> None:
    assert played(["Seoul"], most=1)[0].end == "answered"


def test_a_run_ends_where_the_window_does() -> None:
    assert played([call("add", a=1, b=2)])[0].end == "window"
    episode, script = played([call("add", a=1, b=2)] * 9, room=2)
    assert (episode.end, episode.turns, len(script.heard)) == ("window", 3, 2)


def test_three_unreadable_replies_in_a_row_end_a_run() -> None:
    broken = '<tool_call>{"name": "add"'
    episode, script = played([broken] * 9)
    assert (episode.end, episode.turns) == ("no_action", 3)
    assert script.heard[0] == "Error: this is neither a call that can be read nor an answer. Tools: search, add."
    between = [broken, broken, call("add", a=1, b=2), broken, broken, "Seoul"]
    assert played(between)[0].end == "answered"


def test_several_calls_of_a_reply_are_answered_in_order() -> None:
    episode, script = played([call("add", a=1, b=2) + call("nope") + call("search", query="home of Sophie"), "Seoul"])
    assert [answer.how for answer in episode.steps[0].answers] == ["exact", "error", "exact"]
    assert script.heard == ["3", "Error: there is no tool 'nope'. Tools: search, add.", PAGES["home of Sophie"]]


@pytest.mark.parametrize(
    ("text", "ended", "grammar", "kind"),
    [
        ("Sophie lives in Seoul.", True, "hermes", "answer"),
        ("Sophie lives in", False, "hermes", "neither"),
        ("", True, "hermes", "neither"),
        ("<think>Seoul?</think>\n", True, "hermes", "neither"),
        ("<think>Seoul?</think>Seoul.", True, "hermes", "answer"),
        (call("add", a=1), True, "hermes", "calls"),
        (call("add", a=1), False, "hermes", "calls"),
        ('<tool_call>{"name": "add"}</tool_call>', True, "hermes", "neither"),
        ("<tool_call>add", True, "fallback", "neither"),
        ("<function=add>", True, "qwen-xml", "neither"),
        ("<|tool_call>call:add{", True, "gemma", "neither"),
        ("I found it.\nSearch: home of Sophie", True, "samples", "calls"),
        ("I found it. Sophie lives in Seoul.", True, "samples", "answer"),
        ("Search:", True, "samples", "neither"),
        ("Done.\ngrep -rn", True, "samples", "neither"),
        ("The category is Search.", True, "samples", "answer"),
    ],
)
def test_what_a_reply_is(text: str, ended: bool, grammar: str, kind: str) -> None:
    assert read_reply(text, ended, grammar).kind == kind


def test_thinking_is_no_part_of_an_answer_and_a_tool_can_hand_it_in() -> None:
    assert read_reply("<think>Hm</think> Seoul ", True, "hermes").answer == "Seoul"
    assert read_reply(call("submit", flag="flag{x}"), True, "hermes").answer == "flag{x}"
    assert read_reply(call("finish"), True, "hermes") == read_reply(call("Finish"), True, "hermes")
    run = recorded(turns=[Turn(Message("assistant", "", (tool_call("c", "submit", "{}"),)))])
    assert played([call("add", a=1) + call("submit", text="Seoul", sure=True)], run)[0].answer == "Seoul\nTrue"


def test_the_samples_answer_in_words() -> None:
    episode, script = played(["Search: home of Sophie", "I found it. Sophie lives in Seoul."], sample())
    assert (episode.end, episode.turns) == ("answered", 2)
    assert script.heard == [PAGES["home of Sophie"]]
    cut = [Said("I found it. Sophie", 4, False)] * 3
    assert played(cut, sample())[0].end == "no_action"
