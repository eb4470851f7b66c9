"""Charts of a capacity question: what is drawn, that its origin is said, and that nothing unknown is drawn as zero."""

from __future__ import annotations

import fabricate
from drawing import layers, mark, marked, titles

from kvmill.dashboard import charts_capacity
from kvmill.dashboard.capacity_bounds import Bound, by_load

ROWS = fabricate.planned()["plans"]
BOUNDS = [
    Bound("full", 1, 10.2, 33.0, None),
    Bound(fabricate.DELAYED, 1, 4.3, 10.0, None),
    Bound("te(proxy=boundary,keep=0.2)", 1, 0.0, 0.0, "never"),
]


def test_simulated_answers_and_closed_forms_are_told_apart_at_each_keep_ratio():
    chart = charts_capacity.gpus_over_keep(ROWS, BOUNDS[:2], 0.2)
    (points,) = marked(chart, "point")
    drawn = {(row["figure"], row["keep"], row["gpus"]) for row in points["values"] if row["policy"] != "full"}
    assert ("simulated", 0.2, 14) in drawn
    assert ("at least (estimated bound)", 0.2, 5) in drawn
    assert ("holds every cache (estimated)", 0.2, 10) in drawn
    assert points["encoding"]["shape"]["field"] == points["encoding"]["color"]["field"] == "figure"


def test_bounds_grow_with_the_load_and_hopeless_policies_have_none():
    rows = by_load(BOUNDS, (1.0, 2.0))
    assert [(row["policy"], row["least"], row["holding"]) for row in rows] == [
        ("full", 11, 33),
        ("full", 21, 66),
        (fabricate.DELAYED, 5, 10),
        (fabricate.DELAYED, 9, 20),
    ]
    assert "load, times the workload's own" in titles(charts_capacity.gpus_over_load(rows, ROWS[:1]))


def test_full_is_seen_where_a_policy_needs_as_many_gpus_at_a_load():
    told = [{"policy": policy, "load": 1.0, "gpus": 2} for policy in (fabricate.DELAYED, "full")]
    (points,) = marked(charts_capacity.gpus_over_load(by_load(BOUNDS), told), "point")
    assert [row["policy"] for row in points["values"]] == ["full", fabricate.DELAYED], "drawn first, and larger"
    assert points["encoding"]["size"]["condition"]["value"] > 2 * points["encoding"]["size"]["value"]


def test_goodput_has_its_range_and_leaves_out_what_was_not_measured():
    rows = [
        {"policy": "full", "gpus": 3, "goodput": 2.0, "goodput_low": 1.5, "goodput_high": 2.5},
        {"policy": "full", "gpus": 4, "goodput": None, "goodput_low": None, "goodput_high": None},
    ]
    chart = charts_capacity.goodput(rows, [{"policy": "full", "gpus": 3}])
    (points,) = marked(chart, "point")
    assert [row["gpus"] for row in points["values"]] == [3]
    assert any("goodput_low" in str(layer["encoding"]) for layer in marked(chart, "rule"))


def test_occupancy_shows_what_is_used_and_what_running_requests_hold():
    rows = [{"policy": "full", "gpus": 1, "start_s": 0.0, "kv_used_share": 0.9, "kv_held_share": 0.4}]
    chart = charts_capacity.kv_over_time(rows, [{"policy": "full"}])
    assert [mark(layer) for layer in layers(chart)] == ["line", "line"]
    assert "simulated time (s)" in titles(chart)


def test_tolerance_is_told_by_dash_as_well_as_by_colour():
    rows = [{"tolerance": 0.0, "reading": "estimate", "gpus": 4, "policy": "full"}]
    encoding = charts_capacity.gpus_by_tolerance(rows).to_dict()["encoding"]
    assert encoding["strokeDash"]["field"] == encoding["color"]["field"] == "reading"
