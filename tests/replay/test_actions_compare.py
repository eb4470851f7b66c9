"""Agreement of two actions: by tool, by arguments as values, by single fields, by words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.replay.actions.action import Action
from kvmill.replay.actions.compare import MOST_CHARACTERS, Agreement, Spoken, agreement, fields, similarity
from kvmill.traces.values import parse_object


def act(name: str, arguments: str) -> Action:
    return Action(name, arguments, parse_object(arguments))


def said(*actions: Action, text: str = "same") -> Spoken:
    return Spoken(text, actions)


BOOK = act("book", '{"id": 7, "to": {"city": "Oslo", "days": [1, 2]}}')


def test_equal_actions_agree_in_everything_however_they_are_spelled() -> None:
    other = act("book", '{"to":{"days":[1,2],"city":"Oslo"},"id":7}')
    assert agreement(said(BOOK), said(other)) == Agreement(True, True, 1.0, 1.0)
    assert agreement(said(act("f", "{}")), said(act("f", "{}"))) == Agreement(True, True, 1.0, 1.0)
    assert agreement(said(act("f", "{broken ")), said(act("f", "{broken"))) == Agreement(True, True, 1.0, 1.0)


def test_fields_are_the_leaves_of_the_arguments() -> None:
    assert fields([BOOK]) == {
        ("0", "book", ".id"): "7",
        ("0", "book", ".to", ".city"): '"Oslo"',
        ("0", "book", ".to", ".days", "[0]"): "1",
        ("0", "book", ".to", ".days", "[1]"): "2",
    }


@pytest.mark.parametrize(
    ("arguments", "share"),
    [
        ('{"id": 8, "to": {"city": "Oslo", "days": [1, 2]}}', 3 / 4),
        ('{"id": 7}', 1 / 4),
        ('{"id": 7, "to": {"city": "Oslo", "days": [1, 2]}, "x": 1, "y": 2}', 4 / 6),
        ('{"id": "7", "to": {"city": "Oslo", "days": [1, 2]}}', 3 / 4),
        ('{"id": true}', 0.0),
        ("{}", 0.0),
        ("broken", 0.0),
    ],
)
def test_the_share_of_equal_fields_is_of_those_in_either(arguments: str, share: float) -> None:
    found = agreement(said(act("book", arguments)), said(BOOK))
    assert (found.name_match, found.arguments_match) == (True, False)
    assert found.field_share == pytest.approx(share)


def test_true_is_not_one_and_another_tool_shares_no_field() -> None:
    assert not agreement(said(act("f", '{"a": true}')), said(act("f", '{"a": 1}'))).arguments_match
    other = agreement(said(act("g", BOOK.arguments)), said(BOOK))
    assert other == Agreement(False, False, 0.0, 1.0)


def test_what_could_not_be_parsed_never_agrees() -> None:
    assert agreement(said(), said(BOOK)) == Agreement(False, False, 0.0, 1.0)
    # Nothing to agree with is not measured, whatever was said.
    assert agreement(said(), said()) == agreement(said(BOOK), said()) == Agreement(None, None, None, 1.0)


def test_one_call_of_two_is_half_an_action() -> None:
    second = act("book", '{"id": 9}')
    found = agreement(said(BOOK), said(BOOK, second))
    assert (found.name_match, found.arguments_match) == (False, False)
    assert found.field_share == pytest.approx(4 / 5)
    assert agreement(said(second, BOOK), said(BOOK, second)).arguments_match is False


@given(st.text("ab c", max_size=30), st.text("ab c", max_size=30))
def test_similarity_is_one_for_equal_texts_and_bounded(one: str, other: str) -> None:
    assert similarity(one, one) == 1.0
    assert 0.0 <= similarity(one, other) <= 1.0
    assert (similarity(one, other) == 1.0) == (one == other)


def test_similarity_looks_at_the_beginning_of_long_texts() -> None:
    long = "x" * MOST_CHARACTERS
    assert similarity(long + "abc", long + "defg") == 1.0
    assert similarity("", "abc") == 0.0
