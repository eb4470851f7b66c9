"""What charts share: rows with names, number formats, room for the legend; and the charts of fleets."""

from __future__ import annotations

from typing import Any

import drawing

from kvmill.dashboard import charts


def test_rows_carry_the_short_name_and_only_what_was_measured_is_drawn():
    rows = [{"policy": "truncate(keep=0.2)", "gpus": 3}, {"policy": "full", "gpus": None}]
    found = charts.data(rows, ("gpus",), charts.looks_of(rows))["values"]
    assert found == [{"policy": "truncate(keep=0.2)", "gpus": 3, "name": "truncate 0.2"}]


def test_a_chart_is_as_tall_as_its_legend():
    few, many = charts.looks_of([], ["full"]), charts.looks_of([], [f"te(keep=0.{n})" for n in range(10, 50)])
    assert charts.height_px(few) < charts.height_px(many)
    assert charts.height_px(many) >= 40 * 20


def test_percentages_have_no_more_decimals_than_they_need():
    assert charts.PERCENT == ".2~%", "d3's own form of % writes 25.000000%"


def test_the_interval_of_a_fleet_is_seen_on_its_bar():
    bars, interval = drawing.layers(charts.gpus_needed([{"policy": "te", "gpus": 9, "gpus_low": 8, "gpus_high": 10}]))
    assert bars["encoding"]["color"] == interval["encoding"]["color"]
    assert bars["mark"]["opacity"] < 0.6
    assert "opacity" not in interval["mark"]


def test_fleets_have_units_and_the_promise_is_a_line_only_where_there_is_one():
    plans: list[dict[str, Any]] = [{"policy": "full", "gpus": 9, "gpus_low": 8, "gpus_high": 10}]
    fleets = [{"gpus": 8, "replications": 10, "tpot_p95_s": 0.04, "tpot_low_s": 0.03, "tpot_high_s": 0.05}]
    assert any("GPUs" in title for title in drawing.titles(charts.gpus_needed(plans)))
    assert any("(s" in title for title in drawing.titles(charts.p95_by_fleet(fleets, "tpot", 0.05)))
    assert len(drawing.layers(charts.p95_by_fleet(fleets, "tpot", 0.05))) == 3
    assert len(drawing.layers(charts.p95_by_fleet(fleets, "tpot", None))) == 2
