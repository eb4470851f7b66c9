"""F1 of tables: closed forms, and what tables look like in answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.errors import UserError
from kvmill.replay.judges.table import Shares, item_f1, read_table
from kvmill.replay.judges.verdict import Context, Verdict
from kvmill.traces.trajectory import Label

GOLD = "| City | Country | People |\n|---|:--:|---|\n| Oslo | Norway | 700000 |\n| Lima | Peru | 10000000 |\n"
PIPELINE = {"People": {"preprocess": ["extract_number"], "metric": ["number_near"], "criterion": 0.1}}


def judge(answer: str, **more: Any) -> Verdict:
    value = {"table": GOLD, "unique_columns": ["City"], **more}
    return item_f1(Label("item_f1", value), answer, Context())


def table(*rows: str, head: str = "| city | country | people |") -> str:
    return "\n".join([head, "|---|---|---|", *rows])


def test_the_gold_table_is_right_in_any_order_of_rows_and_columns() -> None:
    answer = (
        "Here:\n```markdown\n|People|City|Country|\n|-|-|-|\n|10000000|Lima|Peru|\n|700000|Oslo|Norway|\n```\nDone."
    )
    found = judge(answer)
    assert (found.correct, found.score) == (True, 1.0)
    assert all(found.parts[f"{what}_f1"] == 1.0 for what in ("row", "item"))


def test_precision_recall_and_f1_are_the_shares_of_rows_and_of_items() -> None:
    # One right row, one with a wrong item of three, one that is not there: 2 gold rows, 3 given, 5 of 9 and 5 of 6.
    found = judge(table("|Oslo|Norway|700000|", "|Lima|Chile|10000000|", "|Rome|Italy|3|"))
    p, r = 5 / 9, 5 / 6
    assert found.parts["item_precision"] == pytest.approx(p)
    assert found.parts["item_recall"] == pytest.approx(r)
    assert found.score == found.parts["item_f1"] == pytest.approx(2 * p * r / (p + r))
    assert (found.parts["row_precision"], found.parts["row_recall"]) == (pytest.approx(1 / 3), pytest.approx(1 / 2))
    assert found.correct is False


def test_a_row_given_twice_counts_once() -> None:
    once, twice = "|Oslo|Norway|700000|", "|Oslo|Sweden|1|"
    assert judge(table(once, twice)).parts == judge(table(once)).parts


def test_columns_that_are_missing_or_too_many_make_the_score_zero() -> None:
    assert judge("| city | country |\n|---|---|\n|Oslo|Norway|").score == 0.0
    assert "wanted city, country, people" in judge("| city | country |\n|---|---|\n|Oslo|Norway|").reason


def test_no_table_is_a_score_of_zero_and_no_error() -> None:
    for answer in ("", "I do not know.", "a | b", "```markdown\n```"):
        found = judge(answer)
        assert (found.correct, found.score) == (False, 0.0)


def test_metrics_of_columns_decide_what_is_near_enough() -> None:
    answer = table("|Oslo|Norway|about 720,000|", "|Lima|Peru|20000000|")
    assert judge(answer).parts["item_recall"] == pytest.approx(4 / 6)
    assert judge(answer, eval_pipeline=PIPELINE).parts["item_recall"] == pytest.approx(5 / 6)


def test_columns_for_a_model_are_compared_as_text_and_counted() -> None:
    found = judge(table("|Oslo|norway|700000|"), eval_pipeline={"Country": {"metric": ["llm_judge"]}})
    assert found.parts["as_text"] == 1
    assert "1 columns compared as text" in found.reason
    assert found.parts["row_recall"] == 0.5


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"keys": []}, "unknown key 'keys'"),
        ({"unique_columns": ["Town"]}, "unknown column 'town'"),
        ({"unique_columns": []}, "needs unique_columns"),
        ({"unique_columns": "City"}, r"unique_columns \(a list\)"),
        ({"table": 5}, "text or a list"),
        ({"eval_pipeline": {"City": "exact"}}, "an object per column"),
        ({"eval_pipeline": {"City": {"metric": ["nearly"]}}}, "unknown metric 'nearly'"),
        ({"eval_pipeline": {"City": {"preprocess": ["trim"]}}}, "unknown preprocess 'trim'"),
        ({"eval_pipeline": {"People": {"metric": ["number_near"]}}}, "needs a criterion"),
    ],
)
def test_a_label_that_asks_for_what_there_is_not_is_an_error(more: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        judge(table("|Oslo|Norway|1|"), **more)


def test_gold_tables_may_be_csv_or_objects() -> None:
    answer = table("|Oslo|Norway|700000|", "|Lima|Peru|10000000|")
    objects = [
        {"City": "Oslo", "Country": "Norway", "People": 700000},
        {"City": "Lima", "Country": "Peru", "People": 1e7},
    ]
    assert judge(answer, table="City,Country,People\nOslo,Norway,700000\nLima,Peru,10000000\n").correct
    assert judge(answer, table=objects).correct
    assert judge(answer, table=[]).score is None


def test_tables_in_prose_without_a_fence_and_with_short_rows_are_read() -> None:
    text = "I asked a|b.\n\n| A | B c |\n| --- | --- |\n| 1 |\n| 2 | x\\|y | z |\n\nThat | is all."
    assert read_table(text) == [{"a": "1", "bc": ""}, {"a": "2", "bc": "x\\|y"}]


cells = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from("xy"), st.sampled_from("12")), min_size=1, max_size=4
)


@given(cells, cells)
def test_shares_lie_between_zero_and_one_and_swap_with_the_tables(one: list[Any], other: list[Any]) -> None:
    def spelled(rows: list[Any]) -> str:
        return table(*("|" + "|".join(row) + "|" for row in rows))

    ab = judge(spelled(one), table=spelled(other)).parts
    ba = judge(spelled(other), table=spelled(one)).parts
    assert all(0 <= value <= 1 for value in ab.values())
    for what in ("row", "item"):
        assert ab[f"{what}_precision"] == pytest.approx(ba[f"{what}_recall"])
        assert ab[f"{what}_f1"] == pytest.approx(ba[f"{what}_f1"])
    assert ab["row_f1"] <= ab["item_f1"] + 1e-12


def test_f1_of_nothing_is_zero() -> None:
    assert Shares.of(0, 0, 5) == Shares(0.0, 0.0, 0.0)
