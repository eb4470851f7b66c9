from dataclasses import replace

import pytest
from worlds import SLOS, closed, scenario

from kvmill.replay.profile import PolicyProfile
from kvmill.simulator.report import averaged, described, promised, saturated, size_row
from kvmill.simulator.run import run_fleet

WORLD = scenario(closed(5), turns=100)
RUN = run_fleet(WORLD, 1, 0)


def runs(**columns):
    """Replications that differ in some columns only."""
    count = len(next(iter(columns.values())))
    return [replace(RUN, **{name: values[r] for name, values in columns.items()}) for r in range(count)]


def test_percentiles_that_are_short_of_turns_say_by_how_many():
    assert averaged(runs(requests=[600, 5000]))["turns_short"] == {"p99": 400}
    assert averaged(runs(requests=[15, 30]))["turns_short"] == {"p50": 5, "p90": 85, "p95": 185, "p99": 985}
    assert averaged(runs(requests=[1000]))["turns_short"] == {}


def test_a_promised_latency_has_an_interval_from_two_replications_on():
    twice = runs(values=[{"ttft_p95": 1.0, "tpot_p95": 0.02}, {"ttft_p95": 4.0, "tpot_p95": 0.02}])
    found = promised(twice, SLOS)
    assert found["ttft_p95"]["mean"] == pytest.approx(2.0), "a geometric mean"
    assert found["ttft_p95"]["low"] < 2.0 < found["ttft_p95"]["high"]
    assert found["tpot_p95"] == pytest.approx({"mean": 0.02, "low": 0.02, "high": 0.02})
    assert promised(twice[:1], SLOS)["ttft_p95"] == {"mean": pytest.approx(1.0), "low": None, "high": None}


def test_a_size_is_saturated_when_most_replications_are():
    assert saturated(runs(saturated=[True, True, False]))
    assert not saturated(runs(saturated=[True, False]))
    assert averaged(runs(saturated=[True]))["saturated"] is True


def test_latencies_are_averaged_geometrically_and_counts_plainly():
    found = averaged(
        runs(
            batch_mean=[1.0, 4.0], ttft_s=[{"p50": 1.0, "p95": 1.0, "p99": None}, {"p50": 4.0, "p95": 9.0, "p99": 2.0}]
        )
    )
    assert found["batch_mean"] == 2.5
    assert (found["ttft_s"]["p50"], found["ttft_s"]["p95"]) == pytest.approx((2.0, 3.0))
    assert found["ttft_s"]["p99"] is None, "one replication could not tell it"


def test_a_size_is_its_verdict_and_every_promised_latency_with_its_interval():
    row = size_row(runs(values=[{"ttft_p95": 9.0, "tpot_p95": 0.01}] * 3), SLOS)
    assert (row["gpus"], row["verdict"]) == (1, "fails")
    assert row["ttft_p95_s"] == pytest.approx([9.0, 9.0, 9.0])


def test_the_frame_says_how_replicas_were_run_and_how_sure_the_seconds_are():
    found = described([WORLD], {"full": PolicyProfile("full")}, 3, 0)
    for key in ("retention", "preemption", "compaction", "router", "token_budget", "max_sequences", "max_model_len"):
        assert found[key] is not None
    assert (found["model_error"], found["model_error_source"]) == (WORLD.cost.error, WORLD.cost.error_source)
    assert found["statistic"].endswith("2 degrees of freedom")
    assert found["few_replications"]
