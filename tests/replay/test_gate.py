"""Verdicts on cells made by hand: each category for its own reason, and for no other."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.replay.gate import gate
from kvmill.replay.gate_nouns import Cell, Finding, Rules, Side
from kvmill.replay.gate_tests import worse_by_chance

TE, FULL = "te(keep=0.2)", "full"
NOISE = np.random.default_rng(0).normal(0, 0.01, 12)


def cells(n: int = 12, status: str = "ok", peak: float = 100.0, **values: float) -> dict[str, Cell]:
    """`n` trajectories whose values vary a little."""
    return {f"t-{i:02d}": Cell(status, {k: v + NOISE[i] for k, v in values.items()}, peak) for i in range(n)}


def side(policies: dict[str, dict[str, Cell]], promised: set[str] | None = None) -> Side:
    ids = {t for rows in policies.values() for t in rows} if promised is None else promised
    return Side({(policy, "a"): rows for policy, rows in policies.items()}, frozenset(ids))


def only(old: dict[str, Cell], new: dict[str, Cell], **more: object) -> list[Finding]:
    return gate(side({TE: old}), side({TE: new}), **more)  # type: ignore[arg-type]


def shifted(rows: dict[str, Cell], metric: str, by: float, spread: float = 0.01) -> dict[str, Cell]:
    """Every trajectory's figure moved by about `by`."""
    moves = np.random.default_rng(1).normal(by, spread, len(rows))
    return {
        t: Cell(cell.status, {**cell.values, metric: cell.values[metric] + move}, cell.peak)
        for (t, cell), move in zip(rows.items(), moves, strict=True)
    }


def test_equal_sides_are_ok_and_have_one_row_per_pair() -> None:
    rows = cells(answer_accuracy=0.7, delta_nll=0.1, kl=0.1)
    (found,) = only(rows, rows)
    assert (found.category, found.blocks, found.n) == ("OK", False, 12)
    assert "answer accuracy" in found.detail
    assert "ΔNLL" in found.detail


@pytest.mark.parametrize(
    ("metric", "loss"), [("answer_accuracy", -0.1), ("delta_nll", 0.1), ("kl", 0.1), ("action_match", -0.1)]
)
def test_a_loss_above_the_margin_blocks_and_the_same_gain_does_not(metric: str, loss: float) -> None:
    rows = cells(**{metric: 0.5})
    (found,) = only(rows, shifted(rows, metric, loss))
    assert (found.category, found.blocks, found.metric) == ("REGRESSION", True, metric)
    assert found.low is not None
    assert found.low > 0
    assert found.loss == pytest.approx(0.1, abs=0.01)
    (gain,) = only(rows, shifted(rows, metric, -loss))
    assert (gain.category, gain.blocks) == ("GAIN", False)


def test_a_loss_within_the_margin_drifts() -> None:
    rows = cells(delta_nll=0.5)
    (found,) = only(rows, shifted(rows, "delta_nll", 0.01, 0.001))
    assert (found.category, found.blocks) == ("DRIFT", False)


def test_a_loss_whose_interval_holds_zero_is_ok_however_large() -> None:
    rows = cells(delta_nll=0.5)
    assert [found.category for found in only(rows, shifted(rows, "delta_nll", 0.05, 1.0))] == ["OK"]


def test_many_tests_turn_a_borderline_loss_into_drift() -> None:
    rows = cells(delta_nll=0.5)
    # +0.09 and −0.01 in turn: t = 2.65 with 11 degrees of freedom, p = 0.011.
    worse = {
        t: Cell("ok", {"delta_nll": cell.values["delta_nll"] + (0.09, -0.01)[i % 2]}, 100.0)
        for i, (t, cell) in enumerate(rows.items())
    }
    assert only(rows, worse)[0].category == "REGRESSION"
    others = {f"te(keep=0.{i})": rows for i in range(3, 10)}
    found = gate(side({TE: rows, **others}), side({TE: worse, **others}))
    (first,) = [finding for finding in found if finding.policy == TE]
    assert (first.category, first.blocks) == ("DRIFT", False)
    assert "by chance" in first.detail


def test_margins_are_the_configurations_and_false_tests_nothing() -> None:
    rows = cells(delta_nll=0.5, kl=0.5)
    worse = shifted(rows, "delta_nll", 0.1)
    assert only(rows, worse, rules=Rules({"delta_nll": 0.5, "kl": 0.02}))[0].category == "DRIFT"
    assert [f.category for f in only(rows, worse, rules=Rules({"delta_nll": None, "kl": 0.02}))] == ["OK"]


def test_full_is_judged_by_its_own_likelihood() -> None:
    rows = cells(nll=1.0, delta_nll=0.0, kl=0.0)
    worse = shifted(rows, "nll", 0.2)
    found = gate(side({FULL: rows, TE: rows}), side({FULL: worse, TE: rows}))
    assert [(f.policy, f.metric) for f in found if f.blocks] == [(FULL, "nll")]


def test_a_cell_that_worked_and_fails_now_blocks_and_says_why() -> None:
    rows = cells(kl=0.1)
    broken = rows | {"t-03": Cell("failed", error="MemoryError: 12 GiB")}
    found = only(rows, broken)
    assert (found[0].category, found[0].blocks, found[0].n) == ("STATUS_CHANGE", True, 1)
    assert "t-03" in found[0].detail
    assert "12 GiB" in found[0].detail
    mended = only(broken, rows)
    assert [(f.category, f.blocks) for f in mended] == [("STATUS_CHANGE", False)]
    skipped = only(rows, rows | {"t-03": Cell("skipped", error="too long")})
    assert (skipped[0].category, skipped[0].blocks) == ("STATUS_CHANGE", True)


def test_changed_row_sets_block_both_ways_but_only_where_rows_are_promised() -> None:
    rows = cells(kl=0.1)
    fewer = {t: cell for t, cell in rows.items() if t != "t-00"}
    assert (only(rows, fewer)[0].category, only(rows, fewer)[0].blocks) == ("ROWS_REMOVED", True)
    assert (only(fewer, rows)[0].category, only(fewer, rows)[0].blocks) == ("ROWS_ADDED", True)
    rest = set(fewer)
    assert [f.category for f in gate(side({TE: rows}, rest), side({TE: fewer}, rest))] == ["OK"]
    assert [f.category for f in gate(side({TE: fewer}, rest), side({TE: rows}, rest))] == ["OK"]


def test_a_policy_that_is_gone_or_new_is_a_changed_row_set() -> None:
    rows = cells(kl=0.1)
    gone = gate(side({FULL: rows, TE: rows}), side({FULL: rows}))
    assert [(f.policy, f.category) for f in gone if f.blocks] == [(TE, "ROWS_REMOVED")]
    fresh = gate(side({FULL: rows}), side({FULL: rows, TE: rows}))
    assert [(f.policy, f.category) for f in fresh if f.policy == TE] == [(TE, "ROWS_ADDED"), (TE, "INSUFFICIENT")]


def test_a_figure_that_is_no_longer_measured_blocks() -> None:
    rows = cells(kl=0.1, answer_accuracy=0.5)
    found = only(rows, cells(kl=0.1))
    assert (found[0].category, found[0].metric, found[0].blocks) == ("ROWS_REMOVED", "answer_accuracy", True)


def test_fewer_than_ten_trajectories_decide_nothing_but_failures_still_block() -> None:
    rows = cells(9, kl=0.1)
    found = only(rows, shifted(rows, "kl", 5.0))
    assert [(f.category, f.blocks, f.n) for f in found] == [("INSUFFICIENT", False, 9)]
    broken = only(rows, rows | {"t-00": Cell("failed")})
    assert [f.category for f in broken] == ["STATUS_CHANGE", "INSUFFICIENT"]
    partly = rows | {"t-11": Cell("ok", {})} | {"t-10": Cell("ok", {})}
    assert [f.category for f in only(partly, partly)] == ["INSUFFICIENT"], (
        "enough trajectories, too few with the figure"
    )


def test_nothing_measured_is_not_green() -> None:
    assert [f.category for f in only(cells(), cells())] == ["INSUFFICIENT"]


def test_a_peak_above_the_promise_blocks_without_a_test() -> None:
    rows = cells(kl=0.1)
    assert only(rows, cells(kl=0.1, peak=100.9))[0].category == "OK"
    (found,) = [f for f in only(rows, cells(kl=0.1, peak=101.5)) if f.blocks]
    assert (found.category, found.metric) == ("REGRESSION", "kv_tokens_peak")
    assert found.loss == pytest.approx(0.015)
    sides = side({FULL: cells(nll=1.0, peak=200.0), TE: rows})
    assert not any(f.blocks for f in gate(sides, sides, Rules(peak_share={TE: 0.5})))
    (promised,) = [f for f in gate(sides, sides, Rules(peak_share={TE: 0.4})) if f.blocks]
    assert (promised.policy, promised.metric) == (TE, "peak_share")


def test_other_kept_tokens_block_without_a_test() -> None:
    rows = cells(kl=0.1)
    assert only(rows, rows, moved={(TE, t): 0.01 for t in rows})[0].category == "OK"
    found = only(rows, rows, moved={(TE, t): 0.05 for t in rows})
    assert (found[0].category, found[0].metric, found[0].blocks) == ("REGRESSION", "kept", True)
    assert only(rows, rows, rules=Rules(kept=None), moved={(TE, t): 0.9 for t in rows})[0].category == "OK"


@given(st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=2, max_size=30))
def test_p_is_a_probability_and_falls_as_losses_grow(losses: list[float]) -> None:
    p, larger = worse_by_chance(losses), worse_by_chance([loss + 0.5 for loss in losses])
    assert 0 <= p <= 1
    assert larger <= p + 1e-12


def test_p_of_students_test() -> None:
    """Mean 0.5, standard deviation 1, n = 4: t = 1, one-sided p with three degrees of freedom 0.19550."""
    spread = math.sqrt(3) / 2
    assert worse_by_chance([0.5 - spread, 0.5 - spread, 0.5 + spread, 0.5 + spread]) == pytest.approx(0.19550, abs=1e-5)
    assert worse_by_chance([0.0] * 10) == 1.0
    assert worse_by_chance([0.1] * 10) == 4.0**-10
    assert worse_by_chance([-0.1] * 10) == 1.0
    assert worse_by_chance([0.3]) == 1.0


def test_a_peak_that_is_no_longer_measured_blocks_and_a_promise_without_peaks_is_not_green() -> None:
    rows = cells(kl=0.1)
    unmeasured = {name: replace(cell, peak=None) for name, cell in rows.items()}
    found = [f for f in only(rows, unmeasured) if f.blocks]
    assert [(f.category, f.metric, f.n) for f in found] == [("ROWS_REMOVED", "kv_tokens_peak", 12)]
    sides = side({FULL: cells(nll=1.0), TE: unmeasured})
    (open_,) = [f for f in gate(sides, sides, Rules(peak_share={TE: 0.5})) if f.category == "INSUFFICIENT"]
    assert (open_.policy, open_.metric) == (TE, "peak_share")


def test_a_policy_that_only_one_run_has_blocks_also_where_no_trajectory_is_promised() -> None:
    rows = cells(kl=0.1)
    both, alone = side({FULL: cells(nll=1.0), TE: rows}, set()), side({FULL: cells(nll=1.0)}, set())
    assert not any(f.blocks for f in gate(both, both))
    removed, added = ([f for f in gate(*sides) if f.blocks] for sides in ((both, alone), (alone, both)))
    assert [(f.policy, f.category, f.n) for f in removed] == [(TE, "ROWS_REMOVED", 12)]
    assert [(f.policy, f.category, f.n) for f in added] == [(TE, "ROWS_ADDED", 12)]
