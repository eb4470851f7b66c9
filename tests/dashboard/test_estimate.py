"""What a replay will take: closed forms of the parts, and what is not known is said instead of guessed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kvmill.dashboard import estimate as e
from kvmill.dashboard.estimate import Length, Past, estimate, past_of
from kvmill.replay.policies.base import Policy
from kvmill.replay.policies.registry import parse_policies
from kvmill.simulator.workload import assemble

MODEL = "smollm2-135m"
LENGTHS = [Length("a", "one", 3, 8_000, 800), Length("b", "one", 3, 4_000, 400), Length("c", "two", 1, 2_000, 200)]
FULL, TWO = parse_policies(["full"]), parse_policies(["full", "truncate(keep=0.2)"])
SEGMENTS = [assemble(100, [50, 50], [400, 400])]
PAST = Past([("teacher", e.LOAD_S + 50.0, 25_000.0)], decode_s=0.05, characters_per_token=4.0, device="cpu")


def seconds(
    mode: str = "teacher", measure: str = "quality", past: Past = PAST, policies: Sequence[Policy] = tuple(TWO)
) -> float:
    found = estimate(LENGTHS, policies, SEGMENTS, MODEL, mode, measure, past).seconds
    assert found is not None
    return found


def test_time_is_loading_and_every_token_once_per_policy_at_the_speed_of_earlier_runs():
    assert seconds() == pytest.approx(e.LOAD_S + 2 * 3_500 * 0.002)
    assert seconds(policies=FULL) == pytest.approx(e.LOAD_S + 3_500 * 0.002)


def test_the_speed_is_the_median_of_the_runs_of_the_same_mode():
    runs = [("teacher", e.LOAD_S + rate * 1e4, 1e4) for rate in (0.001, 0.003, 0.5)]
    past = replace(PAST, runs=[*runs, ("closed", e.LOAD_S + 90.0, 1e4)])
    assert past.seconds_per_token("teacher") == pytest.approx(0.003), "one run that was paused does not decide"
    assert past.seconds_per_token("closed") == pytest.approx(0.009)
    assert past.seconds_per_token("stepwise") is None


def test_generated_actions_cost_a_step_per_token_and_policy_and_are_bounded():
    spoken = min(3 * e.MOST_ACTION_TOKENS, 200) + 100 + 50
    assert seconds("stepwise") == pytest.approx(seconds() + 2 * spoken * 0.05)
    measured = replace(PAST, runs=[*PAST.runs, ("stepwise", e.LOAD_S + 400.0, 1e5)])
    assert seconds("stepwise", past=measured) == pytest.approx(e.LOAD_S + 2 * 3_500 * 0.004), (
        "measured runs hold it all"
    )


def test_latency_is_timed_on_one_trajectory_a_family_or_on_all():
    each = {"a": 2_000 * 0.002 + 200 * 0.05, "b": 1_000 * 0.002 + 100 * 0.05, "c": 500 * 0.002 + 50 * 0.05}
    assert seconds(measure="latency") == pytest.approx(e.LOAD_S + e.REPEATS * 2 * sum(each.values()))
    assert seconds(measure="both") == pytest.approx(seconds() + e.REPEATS * 2 * (each["a"] + each["c"]))


def test_without_earlier_runs_the_speed_is_assumed_and_grows_with_the_parameters():
    found = estimate(LENGTHS, TWO, SEGMENTS, MODEL, "teacher", "quality", Past())
    assert any("assumed: no such run yet" in line for line in found.rests_on)
    tokens = 14_000 / 4 + e.MARKUP_TOKENS * (4 + 4 + 2)
    assert found.tokens == tokens
    assert found.seconds == pytest.approx(e.LOAD_S + 2 * tokens * e.FEED_S, rel=1e-3)
    larger = estimate(LENGTHS, TWO, SEGMENTS, "qwen3.5-27b", "teacher", "quality", Past())
    assert (larger.seconds or 0) > 100 * (found.seconds or 0)


def held(policies: list[Policy], dtype: str | None = None) -> int:
    found = estimate(LENGTHS, policies, SEGMENTS, MODEL, "teacher", "quality", Past(dtype=dtype)).bytes
    assert found is not None
    return found


def test_memory_is_weights_runtime_and_the_rows_of_all_policies_at_once():
    row = 30 * 3 * 64 * 2 * 4  # layers, KV heads, head size, K and V, float32
    assert held(FULL) == pytest.approx(e.RUNTIME_BYTES + 4 * 134.5e6 + 1_000 * row, rel=1e-3)
    peak = max(turn.kv_rows_peak for turn in TWO[1].footprint(SEGMENTS[0]))
    assert held(TWO) - held(FULL) == peak * row, "the second policy holds its own rows beside the first"
    assert held(FULL, "bfloat16") - e.RUNTIME_BYTES == pytest.approx((held(FULL) - e.RUNTIME_BYTES) / 2, rel=1e-6)


def test_a_model_that_is_not_known_gets_no_figure_until_it_was_run():
    found = estimate(LENGTHS, TWO, SEGMENTS, "nobody/unknown", "teacher", "quality", Past())
    assert (found.seconds, found.bytes) == (None, None)
    assert "its size is not known" in " ".join(found.rests_on)
    run = estimate(LENGTHS, TWO, SEGMENTS, "nobody/unknown", "teacher", "quality", PAST)
    assert run.seconds == pytest.approx(e.LOAD_S + 2 * 3_500 * 0.002)


def test_short_runs_tell_no_speed_and_timed_cells_are_taken_out():
    rows = [
        {"mode": "teacher", "seconds": 30.0, "timed_s": 5.0, "fed": 2_000.0, "dtype": "bfloat16", "device": "cpu"},
        {"mode": "teacher", "seconds": 9.0, "timed_s": 0.0, "fed": 2_000.0, "dtype": "float32", "device": "cpu"},
    ]
    past = past_of(rows, None, None)
    assert past.runs == [("teacher", 25.0, 2_000.0)]
    assert (past.dtype, past.device) == ("bfloat16", "cpu")
