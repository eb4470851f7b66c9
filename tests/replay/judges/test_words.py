"""Judges of words: what is the same answer, and what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.replay.judges.verdict import Context
from kvmill.replay.judges.words import contains, exact, flag, normalised
from kvmill.traces.trajectory import Label

NOTHING = Context()


@given(st.text(max_size=20))
def test_an_answer_equals_itself_in_other_case_space_and_form_of_unicode(text: str) -> None:
    label = Label("exact", text)
    verdict = exact(label, f"  {text.casefold()}\n", NOTHING)
    assert verdict.correct is (True if text.strip() else None)
    assert normalised(normalised(text)) == normalised(text)


def test_exact_takes_composed_and_decomposed_letters_and_wide_digits_as_the_same() -> None:
    assert exact(Label("exact", "Zoë 12"), "ZOE\u0308  １２", NOTHING).correct
    assert exact(Label("exact", "12"), "12 flights", NOTHING).correct is False


def test_any_of_several_accepted_answers_will_do_and_numbers_are_answers() -> None:
    assert exact(Label("exact", ["ten", 10]), "10", NOTHING).score == 1.0
    assert contains(Label("contains", ["ten", 10]), "there are TEN of them", NOTHING).correct


@pytest.mark.parametrize(
    ("said", "right"), [("42", True), ("(42)", True), ("42.", True), ("142", False), ("42a", False)]
)
def test_contains_is_bounded_by_words(said: str, right: bool) -> None:
    assert contains(Label("contains", "42"), f"It is {said}", NOTHING).correct is right


def test_contains_looks_for_the_text_and_not_for_a_pattern() -> None:
    assert contains(Label("contains", "a.b"), "acb", NOTHING).correct is False
    assert contains(Label("contains", "a.b (c)"), "it is A.B (c)", NOTHING).correct


def test_a_label_without_an_answer_decides_nothing() -> None:
    for judge in (exact, contains, flag):
        for value in (None, "", " ", []):
            verdict = judge(Label("exact", value), "anything", NOTHING)
            assert (verdict.correct, verdict.score) == (None, None)


@pytest.mark.parametrize(
    ("gold", "answer", "right", "wrapped"),
    [
        ("flag{a_B}", "submit flag{a_B}", True, 1.0),
        ("flag{a_B}", "submit 'a_B'", True, 0.0),
        ("a_B", "submit flag{a_B}", True, 0.0),
        ("a_B", "it is a_B.", True, 1.0),
        ("flag{a_B}", "csawctf{a_B}", True, 0.0),
        ("flag{a_B}", "flag{a_b}", False, None),
        ("flag{a_B}", "xa_By", False, None),
        ("flag{a_B}", "", False, None),
    ],
)
def test_a_flag_is_judged_letter_by_letter_and_its_wrapper_is_said_apart(
    gold: str, answer: str, right: bool, wrapped: float | None
) -> None:
    verdict = flag(Label("flag", gold), answer, NOTHING)
    assert verdict.correct is right
    assert verdict.parts.get("wrapped") == wrapped


def test_who_lists_flags_is_judged_by_the_last() -> None:
    assert flag(Label("flag", "flag{a}"), "flag{a} or flag{b}", NOTHING).correct is False
    assert flag(Label("flag", "flag{b}"), "flag{a} or flag{b}", NOTHING).correct
