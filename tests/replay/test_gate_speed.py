"""Latency blocks after three slow nights in a row, beyond what the machine's own nights differ by."""

from __future__ import annotations

import pytest

from kvmill.replay.gate_nouns import Finding
from kvmill.replay.gate_speed import Past, noise, speed_findings

PAIR = ("full", "a")
GOOD = [Past(seconds, False) for seconds in (1.00, 1.02, 0.98, 1.01, 0.99, 1.00)]


def tonight(seconds: float, past: list[Past], before: float | None = 1.0) -> Finding:
    (found,) = speed_findings({PAIR: {"ttft_s": seconds}}, {PAIR: {"ttft_s": before}}, {(*PAIR, "ttft_s"): past})
    return found


def test_two_slow_nights_drift_and_the_third_blocks() -> None:
    first = tonight(1.3, GOOD)
    second = tonight(1.3, [Past(1.3, True), *GOOD])
    third = tonight(1.3, [Past(1.3, True), Past(1.3, True), *GOOD])
    assert [(f.category, f.blocks) for f in (first, second, third)] == [
        ("DRIFT", False),
        ("DRIFT", False),
        ("REGRESSION", True),
    ]
    assert "slow night 3 in a row" in third.detail


def test_a_good_night_in_between_begins_the_count_anew() -> None:
    found = tonight(1.3, [Past(1.3, True), Past(1.0, False), Past(1.3, True), *GOOD])
    assert (found.category, found.blocks) == ("DRIFT", False)


def test_what_lies_within_the_noise_is_ok_and_slow_nights_are_no_measure_of_it() -> None:
    assert tonight(1.04, GOOD).category == "OK"
    shaky = [Past(seconds, False) for seconds in (0.8, 1.2, 1.0, 0.9, 1.1)]
    assert tonight(1.3, shaky).category == "OK"
    assert tonight(1.3, GOOD + [Past(2.0, True)] * 20).category == "DRIFT"


def test_without_five_good_nights_it_is_reported_only() -> None:
    found = tonight(9.0, GOOD[:4])
    assert (found.category, found.now, found.before) == ("OK", 9.0, 1.0)
    assert "not judged" in found.detail
    assert noise([1.0] * 4) is None


def test_the_noise_is_three_robust_deviations_and_five_percent_at_least() -> None:
    assert noise([1.0, 1.0, 1.0, 1.0, 1.0]) == (1.0, 0.05)
    found = noise([0.8, 0.9, 1.0, 1.1, 1.2])
    assert found is not None
    assert found[1] == pytest.approx(3 * 1.4826 * 0.1)


def test_throughput_is_said_with_the_time_per_token_and_what_was_not_timed_is_not_said() -> None:
    (found,) = speed_findings({PAIR: {"ttft_s": None, "tpot_s": 0.05}}, {}, {})
    assert "20.0 tokens/s" in found.detail
    assert found.before is None
