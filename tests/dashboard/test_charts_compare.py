"""Charts of one replay: the front, the intervals and the recommended point are where the figures say."""

from __future__ import annotations

from typing import Any

import drawing
from hypothesis import given
from hypothesis import strategies as st

from kvmill.dashboard import charts_compare as charts

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


def test_the_recommended_policy_has_a_ring():
    chart = charts.against_kv(ROWS, "answer_accuracy", "accuracy", recommended="te(keep=0.2)")
    points, ring = drawing.marked(chart, "point")
    assert names(ring) == ["te(keep=0.2)"]
    assert ring["mark"]["size"] > points["mark"]["size"]
    assert ring["mark"]["filled"] is False
    nothing = charts.against_kv(ROWS, "answer_accuracy", "accuracy", recommended=None)
    assert len(drawing.marked(nothing, "point")) == 1


def test_points_are_told_by_colour_and_shape_and_lines_by_colour_and_dash():
    (points,) = drawing.marked(charts.against_kv(ROWS, "answer_accuracy", "accuracy"), "point")
    assert points["encoding"]["color"]["field"] == points["encoding"]["shape"]["field"] == "name"
    rows = [{"policy": row["policy"], "turn": 1, "kv_tokens": 140.0} for row in ROWS]
    (line,) = drawing.marked(charts.kv_over_turns(rows), "line")
    dashes, hues = (line["encoding"][channel]["scale"] for channel in ("strokeDash", "color"))
    assert dashes["domain"] == hues["domain"]
    assert len({tuple(dash) for dash in dashes["range"]}) >= 3


def test_a_policy_looks_the_same_in_every_chart_of_a_page():
    among = [row["policy"] for row in ROWS]
    for rows in (ROWS, ROWS[2:]):
        (points,) = drawing.marked(charts.against_kv(rows, "answer_accuracy", "accuracy", among=among), "point")
        scale = points["encoding"]["color"]["scale"]
        assert scale["domain"] == ["full", "te 0.2", "random 0.2", "truncate 0.4"]


def test_bands_of_many_policies_wait_until_one_is_chosen():
    def empty(count: int) -> bool:
        rows = [{"policy": f"te(keep=0.{n})", "turn": 1, "kv_tokens": 1.0} for n in range(1, count + 1)]
        (band,) = drawing.marked(charts.kv_over_turns(rows), "area")
        return band["encoding"]["opacity"]["condition"]["empty"]

    assert empty(2)
    assert not empty(9)


def test_shares_stand_on_axes_in_percent_without_idle_decimals():
    for chart in (
        charts.against_kv(ROWS, "answer_accuracy", "accuracy", percent=True),
        charts.by_group(
            [{"policy": "te", "grp": "a", "value": 0.5, "low": None, "high": None, "n": 1}], "a", percent=True
        ),
        charts.shares([{"policy": "te", "extra_turns": 0.3}], {"extra_turns": "extra turns"}, "share"),
    ):
        forms = [
            found["encoding"][axis]["axis"]["format"]
            for found in drawing.layers(chart)
            for axis in ("x", "y")
            if "%" in str(found["encoding"].get(axis, {}).get("axis", {}).get("format"))
        ]
        assert set(forms) == {".2~%"}


def test_axes_carry_units():
    turns = [{"policy": "full", "turn": 1, "kv_tokens": 140.0, "kv_tokens_peak": 140.0, "trajectories": 12}]
    parts = [{"policy": "full", "turn_s": 1.0, "low": 0.9, "high": 1.1, "n": 3}]
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
    row = {"policy": "full", "turn_s": 1.0, "low": 0.9, "high": 1.1, "n": 3}
    row |= {"compaction_s": 0.1, "prefill_s": 0.4, "decode_s": 0.5}
    bars, interval = drawing.layers(charts.seconds_per_turn([row]))
    assert sum(part["seconds"] for part in bars["values"]) == row["turn_s"]
    assert [part["part"] for part in bars["values"]] == list(charts.PARTS)
    assert interval["encoding"]["x"]["field"] == "low"
    assert interval["encoding"]["x2"]["field"] == "high"


def test_groups_stand_under_their_own_line_with_intervals_in_the_order_of_the_run():
    rows = [
        {"policy": policy, "grp": grp, "value": 0.5, "low": 0.4, "high": 0.6, "n": n}
        for grp, n in (("1 turn", 3), ("2 turns", 2))
        for policy in ("te(keep=0.2)", "full")
    ]
    rows.append({"policy": "full", "grp": "3\nturns", "value": 0.5, "low": None, "high": None, "n": 1})
    among = ["full", "te(keep=0.2)"]
    rule, point = drawing.layers(charts.by_group(rows, "accuracy", among=among, percent=True))
    assert rule["encoding"]["x2"]["field"] == "high"
    lines = [line.split("\n") for line in point["encoding"]["y"]["scale"]["domain"]]
    assert [line[1] or line[2] for line in lines] == [
        "1 turn (n = 3)",
        "full",
        "te 0.2",
        "2 turns (n = 2)",
        "full",
        "te 0.2",
        "3 turns (n = 1)",
        "full",
    ]
    assert {row["line"] for row in point["values"]} <= {"\n".join(line) for line in lines}
    assert len(rule["values"]) == 4, "one trajectory has no interval"


def test_zero_is_a_line_where_differences_are_drawn():
    rows = [{"policy": "te", "grp": "a", "value": 0.5, "low": 0.4, "high": 0.6, "n": 3}]
    zero, _, _ = drawing.layers(charts.by_group(rows, "difference", difference=True))
    assert zero["values"] == [{"at": 0}]


def test_shares_show_what_was_measured_and_an_interval_where_there_is_one():
    rows = [
        {"policy": "full", "extra_turns": None, "extra_turns_low": None, "extra_turns_high": None},
        {"policy": "te(keep=0.2)", "extra_turns": 0.3, "extra_turns_low": 0.1, "extra_turns_high": 0.6},
    ]
    _, rule, point = drawing.layers(charts.shares(rows, {"extra_turns": "extra turns"}, "turns beyond full's (share)"))
    assert names(point) == ["te(keep=0.2)"]
    assert [(row["low"], row["high"]) for row in rule["values"]] == [(0.1, 0.6)]
