"""The same search again, and nearly the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.replay.closed.repeats import NEAR, Similarity, repeats

KNOWN = ["keeper of Willow station", "keeper of Maple station", "keeper of Birch station", "home of Sophie"]


def test_equal_queries_repeat_whatever_their_case_and_spaces() -> None:
    assert repeats(["home of Sophie", " HOME of  sophie"], [], Similarity()) == (1, 1)
    assert repeats(["home of Sophie"], ["Home of Sophie"], Similarity()) == (1, 1)


def test_recorded_queries_are_earlier_and_not_counted() -> None:
    assert repeats([], KNOWN, Similarity(KNOWN)) == (0, 0)
    assert repeats(["keeper of Willow station"], KNOWN, Similarity(KNOWN)) == (1, 1)


def test_words_spelled_again_are_near_and_another_name_is_not() -> None:
    similar = Similarity(KNOWN)
    asked = ["population of the city of Seoul in 2023", "population of the city of Seoul in 2024"]
    assert repeats(asked, [], similar) == (0, 1)
    assert repeats(["keeper of Birch station"], ["keeper of Willow station"], similar) == (0, 0)
    close = "population of Seoul in 2023", "population of the city of Seoul in 2023"
    assert 0.75 < Similarity()(*close) < NEAR
    assert repeats(close[:1], close[1:], Similarity()) == (0, 0), "above 0.9, not merely alike"
    # What stands in every query weighs less than what tells them apart.
    pair = KNOWN[0], KNOWN[2]
    assert similar(*pair) < Similarity()(*pair) < NEAR


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_cosine_is_symmetric_within_bounds_and_one_for_itself(one: str, other: str) -> None:
    similar = Similarity(KNOWN)
    assert similar(one, other) == pytest.approx(similar(other, one))
    assert -1e-9 <= similar(one, other) <= 1 + 1e-9
    assert similar(one, one) == pytest.approx(1)


def test_a_cosine_by_hand() -> None:
    # " ab " has the groups " ab" and "ab "; " abc " has " ab", "abc", "bc ": one of two and three is shared.
    assert Similarity()("ab", "abc") == pytest.approx(1 / (2 * 3) ** 0.5)
