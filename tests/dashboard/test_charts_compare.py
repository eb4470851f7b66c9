"""Charts of one replay: the front, the intervals and the recommended point are where the figures say."""

from __future__ import annotations

from typing import Any

import drawing
from hypothesis import given
from hypothesis import strategies as st

from kvmill.dashboard import charts_compare as charts
from kvmill.dashboard import theme

ROWS: list[dict[str, Any]] = [
    {"policy": "full", "n": 12, "kv_tokens_peak": 1500.0, "answer_accuracy": 0.75, "answer_ll": -1.0},
    {"policy": "te(keep=0.2)", "n": 12, "kv_tokens_peak": 500.0, "answer_accuracy": 0.5, "answer_ll": None},
    {"policy": "random(keep=0.2)", "n": 12, "kv_tokens_peak": None, "answer_accuracy": 0.25, "answer_ll": -2.0},
    {"policy": "truncate(keep=0.4)", "n": 12, "kv_tokens_peak": 800.0, "answer_accuracy": 0.4, "answer_ll": -3.0},
]
ROWS[0] |= {"answer_accuracy_low": 0.7, "answer_accuracy_high": 0.8}
ROWS[1] |= {"answer_accuracy_low": None, "answer_accuracy_high": None}


def names(layer: dict[str, Any]) -> list[str]:
    return [row["policy"] for row in layer["values"]]


def test_points_leave_out_what_was_not_measured():
    points = drawing.marked(charts.against_kv(ROWS, "answer_accuracy", "accuracy", percent=True), "point")
    assert names(points[0]) == ["full", "te(keep=0.2)", "truncate(keep=0.4)"]
    points = drawing.marked(charts.against_kv(ROWS, "answer_ll", "log p"), "point")
    assert names(points[0]) == ["full", "truncate(keep=0.4)"]


def test_intervals_are_drawn_where_there_are_any_and_full_is_a_line():
    full, intervals = drawing.marked(charts.against_kv(ROWS, "answer_accuracy", "accuracy"), "rule")
    assert names(full) == ["full"]
    assert names(intervals) == ["full"]
    assert intervals["encoding"]["y"]["field"] == "answer_accuracy_low"
    assert intervals["encoding"]["y2"]["field"] == "answer_accuracy_high"


def test_the_front_holds_the_policies_that_no_other_one_beats():
    assert [row["policy"] for row in charts.frontier(ROWS, "answer_accuracy")] == ["te(keep=0.2)", "full"]
    (front,) = drawing.marked(charts.against_kv(ROWS, "answer_accuracy", "accuracy"), "line")
    assert names(front) == ["te(keep=0.2)", "full"]
    lossy = [row | {"delta_nll": loss} for row, loss in zip(ROWS, (0.0, 0.4, 0.1, 0.2), strict=True)]
    kept = [row["policy"] for row in charts.frontier(lossy, "delta_nll", less=True)]
    assert kept == ["te(keep=0.2)", "truncate(keep=0.4)", "full"]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12), st.booleans())
def test_a_policy_is_on_the_front_or_beaten_by_one_that_is(found: list[tuple[int, int]], less: bool):
    rows = [{"policy": "full", "kv_tokens_peak": float(peak), "value": float(value)} for peak, value in found]
    front = charts.frontier(rows, "value", less=less)
    sign = -1 if less else 1
    for row in rows:
        assert any(
            best["kv_tokens_peak"] <= row["kv_tokens_peak"] and sign * best["value"] >= sign * row["value"]
            for best in front
        )
    for one in front:
        assert not any(
            other["kv_tokens_peak"] <= one["kv_tokens_peak"] and sign * other["value"] > sign * one["value"]
            for other in rows
        )


def test_the_recommended_policy_has_a_ring_and_its_guarantee():
    ring = {"recommended": "te(keep=0.2)", "guarantee": "paired-interval"}
    chart = charts.against_kv(ROWS, "answer_accuracy", "accuracy", **ring)
    _, marked = drawing.marked(chart, "point")
    assert names(marked) == ["te(keep=0.2)"]
    assert marked["mark"]["color"] == theme.VERMILION
    assert marked["values"][0]["mark"] == "recommended (paired-interval)"
    nothing = charts.against_kv(ROWS, "answer_accuracy", "accuracy", recommended=None, guarantee="none")
    assert len(drawing.marked(nothing, "point")) == 1


def test_axes_carry_units():
    turns = [{"policy": "full", "turn": 1, "kv_tokens": 140.0, "kv_tokens_peak": 140.0, "trajectories": 12}]
    parts = [{"policy": "full", "turn_s": 1.0, "low": 0.9, "high": 1.1}]
    parts[0] |= {"compaction_s": 0.1, "prefill_s": 0.4, "decode_s": 0.5}
    calls = [{"policy": "full", "turn": 1, "ttft_s": 0.5, "ttft_p10_s": 0.4, "ttft_p90_s": 0.6, "trajectories": 3}]
    for chart, unit in [
        (charts.against_kv(ROWS, "answer_accuracy", "accuracy"), "tokens"),
        (charts.kv_over_turns(turns), "tokens"),
        (charts.seconds_per_turn(parts), "(s)"),
        (charts.ttft_over_turns(calls), "(s,"),
    ]:
        assert any(unit in title for title in drawing.titles(chart))


def test_a_turn_is_the_sum_of_its_parts_with_the_interval_of_the_whole():
    row = {"policy": "full", "turn_s": 1.0, "low": 0.9, "high": 1.1}
    row |= {"compaction_s": 0.1, "prefill_s": 0.4, "decode_s": 0.5}
    bars, interval = drawing.layers(charts.seconds_per_turn([row]))
    assert sum(part["seconds"] for part in bars["values"]) == row["turn_s"]
    assert [part["part"] for part in bars["values"]] == list(charts.PARTS)
    assert interval["encoding"]["x"]["field"] == "low"
    assert interval["encoding"]["x2"]["field"] == "high"


def test_groups_are_panels_with_intervals_in_the_order_of_the_run():
    rows = [
        {"policy": policy, "grp": grp, "value": 0.5, "low": 0.4, "high": 0.6, "n": 3}
        for grp in ("1 turn", "2 turns")
        for policy in ("te(keep=0.2)", "full")
    ]
    chart = charts.by_group(rows, "accuracy", across="age", order=["full", "te(keep=0.2)"], percent=True)
    rule, point = drawing.layers(chart)
    assert rule["encoding"]["x2"]["field"] == "high"
    assert point["encoding"]["y"]["sort"] == ["full", "te(keep=0.2)"]
    assert chart.to_dict()["facet"]["sort"] == ["1 turn", "2 turns"]


def test_shares_show_what_was_measured_and_an_interval_where_there_is_one():
    rows = [
        {"policy": "full", "extra_turns": None, "extra_turns_low": None, "extra_turns_high": None},
        {"policy": "te(keep=0.2)", "extra_turns": 0.3, "extra_turns_low": 0.1, "extra_turns_high": 0.6},
    ]
    _, rule, point = drawing.layers(charts.shares(rows, {"extra_turns": "extra turns"}, "turns beyond full's (share)"))
    assert names(point) == ["te(keep=0.2)"]
    assert [(row["low"], row["high"]) for row in rule["values"]] == [(0.1, 0.6)]
