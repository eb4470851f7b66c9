"""What charts share: policies keep their colour, shape and label, and only what was measured is drawn."""

from __future__ import annotations

from typing import Any

import drawing

from kvmill.dashboard import charts, theme
from kvmill.replay.policies.registry import DEMO_POLICIES


def test_every_policy_of_the_demo_has_its_group_and_groups_look_different():
    groups = {charts.family(policy) for policy in DEMO_POLICIES}
    assert groups == set(charts.MARKS) - {"other"}
    assert len({colour for colour, _ in charts.MARKS.values()}) == len(charts.MARKS)
    assert len({shape for _, shape in charts.MARKS.values()}) == len(charts.MARKS)
    assert {colour for colour, _ in charts.MARKS.values()} == set(theme.COLOURS)
    assert charts.family("te(proxy=boundary+assistant,delay=1)") == "te boundary"
    assert charts.family("something(new=1)") == "other"


def test_labels_tell_keep_ratios_apart():
    assert charts.keep_of("te(keep=0.20)") == "0.20"
    assert charts.keep_of("te") == "0.2"
    assert charts.keep_of("full") == charts.keep_of("something") == ""
    assert charts.keep_of("attention(budget=40)") == charts.keep_of("adaptive(loss=0.1)") == ""
    policies = ("full", "te(keep=0.2)", "drop_tool_outputs", "hybrid(window=20,pool=10)")
    assert [charts.label(policy) for policy in policies] == ["full", "0.2", "–", "–"]


def test_the_legend_names_the_groups_that_occur_and_no_others():
    rows = [{"policy": "truncate(keep=0.2)"}, {"policy": "full"}]
    assert charts.colour(rows).to_dict()["scale"]["domain"] == ["full", "truncate"]
    assert charts.shape(rows).to_dict()["scale"]["range"] == ["circle", "triangle-right"]


def test_fleets_have_units_and_the_promise_is_a_line_only_where_there_is_one():
    plans: list[dict[str, Any]] = [{"policy": "full", "gpus": 9, "gpus_low": 8, "gpus_high": 10}]
    fleets = [{"gpus": 8, "replications": 10, "tpot_p95_s": 0.04, "tpot_low_s": 0.03, "tpot_high_s": 0.05}]
    assert any("GPUs" in title for title in drawing.titles(charts.gpus_needed(plans)))
    assert any("(s" in title for title in drawing.titles(charts.p95_by_fleet(fleets, "tpot", 0.05)))
    assert len(drawing.layers(charts.p95_by_fleet(fleets, "tpot", 0.05))) == 3
    assert len(drawing.layers(charts.p95_by_fleet(fleets, "tpot", None))) == 2
