"""Charts draw what was measured and nothing else, with units and intervals, in colours everyone can tell apart."""

from __future__ import annotations

from typing import Any

from kvmill.dashboard import charts
from kvmill.replay.policies.registry import DEMO_POLICIES

ROWS = [
    {"policy": "full", "n": 12, "kv_tokens_peak": 1500.0, "answer_accuracy": 0.75, "answer_ll": -1.0},
    {"policy": "te(keep=0.2)", "n": 12, "kv_tokens_peak": 500.0, "answer_accuracy": 0.5, "answer_ll": None},
    {"policy": "random(keep=0.2)", "n": 12, "kv_tokens_peak": None, "answer_accuracy": 0.25, "answer_ll": -2.0},
]
ROWS[0] |= {"answer_accuracy_low": 0.7, "answer_accuracy_high": 0.8}
ROWS[1] |= {"answer_accuracy_low": None, "answer_accuracy_high": None}


def layers(chart: Any) -> list[dict[str, Any]]:
    spec = chart.to_dict()
    data = spec.get("datasets", {})

    def values(layer: dict[str, Any]) -> list[dict[str, Any]]:
        own = layer.get("data", spec.get("data", {}))
        return own.get("values") or data.get(own.get("name"), [])

    return [{"values": values(layer), **layer} for layer in spec.get("layer", [spec])]


def mark(layer: dict[str, Any]) -> str:
    return layer["mark"] if isinstance(layer["mark"], str) else layer["mark"]["type"]


def test_points_leave_out_what_was_not_measured():
    points = [
        x for x in layers(charts.against_kv(ROWS, "answer_accuracy", "accuracy", percent=True)) if mark(x) == "point"
    ]
    assert [row["policy"] for row in points[0]["values"]] == ["full", "te(keep=0.2)"]
    points = [x for x in layers(charts.against_kv(ROWS, "answer_ll", "log p")) if mark(x) == "point"]
    assert [row["policy"] for row in points[0]["values"]] == ["full"]


def test_intervals_are_drawn_where_there_are_any_and_full_is_a_line():
    rules = [x for x in layers(charts.against_kv(ROWS, "answer_accuracy", "accuracy")) if mark(x) == "rule"]
    full, intervals = rules
    assert [row["policy"] for row in full["values"]] == ["full"]
    assert [row["policy"] for row in intervals["values"]] == ["full"]
    assert intervals["encoding"]["y"]["field"] == "answer_accuracy_low"
    assert intervals["encoding"]["y2"]["field"] == "answer_accuracy_high"


def test_axes_carry_units():
    plans = [{"policy": "full", "gpus": 9, "gpus_low": 8, "gpus_high": 10}]
    fleets = [{"gpus": 8, "replications": 10, "ttft_p95_s": 1.0, "ttft_low_s": 0.9, "ttft_high_s": 1.2}]
    turns = [{"policy": "full", "turn": 1, "kv_tokens": 140.0, "kv_tokens_peak": 140.0, "trajectories": 12}]
    for chart, units in [
        (charts.against_kv(ROWS, "answer_accuracy", "accuracy"), "tokens"),
        (charts.kv_over_turns(turns), "tokens"),
        (charts.gpus_needed(plans), "GPUs"),
        (charts.p95_by_fleet(fleets, "ttft", 2.0), "(s"),
    ]:
        titles = [
            str(layer["encoding"][axis].get("title"))
            for layer in layers(chart)
            for axis in ("x", "y")
            if axis in layer["encoding"]
        ]
        assert any(units in title for title in titles)


def test_the_promise_is_a_line_only_where_there_is_one():
    fleets = [{"gpus": 8, "replications": 10, "tpot_p95_s": 0.04, "tpot_low_s": 0.03, "tpot_high_s": 0.05}]
    assert len(layers(charts.p95_by_fleet(fleets, "tpot", 0.05))) == 3
    assert len(layers(charts.p95_by_fleet(fleets, "tpot", None))) == 2


def test_every_policy_of_the_demo_has_its_group_and_groups_look_different():
    groups = {charts.family(policy) for policy in DEMO_POLICIES}
    assert groups == set(charts.MARKS) - {"other"}
    assert len(set(charts.MARKS.values())) == len(charts.MARKS)
    assert charts.family("te(proxy=boundary+assistant,delay=1)") == "te boundary"
    assert charts.family("something(new=1)") == "other"


P = ("full", "te(keep=0.2)", "drop_tool_outputs", "hybrid(window=20,pool=10)")


def test_labels_tell_keep_ratios_apart():
    assert charts.keep_of("te(keep=0.20)") == "0.20"
    assert charts.keep_of("te") == "0.2"
    assert charts.keep_of("full") == charts.keep_of("something") == ""
    assert charts.keep_of("attention(budget=40)") == charts.keep_of("adaptive(loss=0.1)") == ""
    labels = [charts.kv_over_turns([{"policy": p, "turn": 0, "kv_tokens": 1.0}]).data.values[0]["label"] for p in P]
    assert labels == ["full", "0.2", "–", "–"]
