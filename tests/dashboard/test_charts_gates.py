"""Charts of nights, of two runs and of one trajectory: a sign beside every colour, intervals, units."""

from __future__ import annotations

from typing import Any

import drawing

from kvmill.dashboard import charts_gates, charts_inspect
from kvmill.replay.gate_nouns import CATEGORIES

ROW: dict[str, Any] = {"run": "n1", "night": "2026-11-30 03:00", "policy": "te", "family": "a", "detail": "d", "n": 12}


def test_every_category_of_the_gate_has_a_sign_of_its_own():
    signs = [sign for _, sign in charts_gates.VERDICTS.values()]
    assert len(set(signs)) == len(signs)
    assert set(CATEGORIES) - set(charts_gates.VERDICTS) == {"OK"}
    worst_first = [category for category in CATEGORIES if category in charts_gates.VERDICTS]
    assert list(charts_gates.VERDICTS) == worst_first


def test_a_field_shows_the_worst_finding_of_its_night():
    rows = [ROW | {"category": "REGRESSION"}, ROW | {"category": "DRIFT"}, ROW | {"family": "b", "category": "OK"}]
    fields, signs = drawing.layers(charts_gates.verdicts(rows))
    assert [(value["line"], value["category"]) for value in fields["values"]] == [
        ("te 0.2 · a", "REGRESSION"),
        ("te 0.2 · b", "OK"),
    ]
    assert [value["sign"] for value in signs["values"]] == ["✖", "·"]


def test_losses_over_nights_have_intervals_and_the_margin_and_leave_out_what_has_no_figure():
    known = {"metric": "kl", "loss": 0.1, "low": 0.05, "high": 0.15, "margin": 0.02, "category": "REGRESSION"}
    rows = [ROW | known, ROW | known | {"metric": None, "loss": None}]
    margin, rules, points = drawing.layers(charts_gates.loss_over_nights(rows))
    assert len(points["values"]) == 1
    assert rules["encoding"]["y2"]["field"] == "high"
    assert margin["encoding"]["y"]["field"] == "margin"


def test_turns_of_two_runs_are_told_apart_by_dashes_too_and_changed_ones_are_marked():
    rows = [
        {"turn": 0, "nll before": 1.0, "nll after": 1.0, "changed": []},
        {"turn": 1, "nll before": 1.0, "nll after": 1.5, "changed": ["nll"]},
        {"turn": 2, "nll before": None, "nll after": 1.5, "changed": ["nll"]},
    ]
    chart = charts_gates.before_and_after(rows, "nll", "NLL (nats per token)")
    lines, points = drawing.layers(chart)
    assert "strokeDash" in lines["encoding"]
    assert [value["turn"] for value in lines["values"] if value["run"] == "before"] == [0, 1]
    assert "NLL (nats per token)" in drawing.titles(chart)
    assert points["transform"] == [{"filter": "datum.changed && datum.run == 'after'"}]


def test_turns_stand_in_order_and_segments_in_the_order_of_a_turn():
    rows = [
        {"policy": policy, "turn": turn, "kind": kind, "tokens": 8, "kept": 0.5}
        for policy in ("full", "te")
        for turn in (10, 2)
        for kind in ("tool", "assistant")
    ]
    fields, numbers = drawing.layers(charts_inspect.kept_by_turn(rows, ["full", "te"]))
    order = charts_inspect.kept_by_turn(rows, ["full", "te"]).to_dict()["layer"][0]["encoding"]["x"]["sort"]
    assert order == ["2 assistant", "2 tool", "10 assistant", "10 tool"]
    assert len(fields["values"]) == 8
    assert drawing.mark(numbers) == "text"


def test_shares_are_not_written_where_they_would_not_be_read():
    rows = [{"policy": "te", "turn": turn, "kind": "tool", "tokens": 8, "kept": 0.5} for turn in range(60)]
    assert len(drawing.layers(charts_inspect.kept_by_turn(rows, ["te"]))) == 1
