"""How cells compare."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.replay.judges.cells import METRICS, PREPROCESS, same_text


@given(st.text(max_size=30), st.text(max_size=30))
def test_every_metric_takes_any_text_and_each_cell_equals_itself(one: str, other: str) -> None:
    for metric in METRICS.values():
        assert metric(one, one, 0.1)
        assert metric(one, other, 0.1) in (True, False)
    for step in PREPROCESS.values():
        assert isinstance(step(one), str)


def test_numbers_in_two_spellings_are_the_same() -> None:
    assert same_text("3", "3.0")
    assert not same_text("3", "3.5")
    assert not same_text("v3", "3")


@pytest.mark.parametrize(
    ("metric", "one", "gold", "criterion", "right"),
    [
        ("number_near", "105", "100", 0.05, True),
        ("number_near", "106", "100", 0.05, False),
        ("number_near", "-95", "-100", 0.05, True),
        ("number_near", "12%", "0.12", 0.0, True),
        ("number_near", "many", "100", 0.05, False),
        ("number_near", "none", "None", 0.05, True),
        ("date_near", "May 2024", "2024-05-20", None, True),
        ("date_near", "2024-01-01", "2024-05-20", None, False),
        ("date_near", "soon", "2024-05-20", None, False),
        ("in_match", "Peru", "Peru and Chile", None, True),
        ("in_match", "Peru and Chile", "Peru", None, False),
        ("url_match", "see https://a.org/x", "https://a.org/y", None, True),
        ("url_match", "https://b.org", "https://a.org", None, False),
        ("url_match", "none", "https://a.org", None, False),
    ],
)
def test_metrics_as_widesearch_has_them(metric: str, one: str, gold: str, criterion: float | None, right: bool) -> None:
    assert METRICS[metric](one, gold, criterion) is right


def test_preprocessing_finds_numbers_and_dates() -> None:
    assert PREPROCESS["extract_number"]("about 1,200 km") == "1200"
    assert PREPROCESS["extract_number"]("none") == "NULL"
    assert PREPROCESS["norm_date"]("May 20, 2024") == PREPROCESS["norm_date"]("20 May 2024") == "2024-05-20"
    assert PREPROCESS["norm_str"](" **New York** ") == "newyork"
