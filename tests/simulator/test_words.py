from kvmill.console import plain
from kvmill.simulator.words import (
    fewer_text,
    guessed_text,
    level_words,
    promised_text,
    room_text,
    series_text,
    short_text,
    sizes_text,
)

SLO = {"ttft_p95": 2.0, "tpot_p99": 0.05}
LEVELS = {"ttft_p95_s": [2.4, 2.1, 2.8], "tpot_p99_s": [0.04, 0.03, 0.05]}


def test_a_level_is_a_mean_with_its_interval():
    assert level_words([2.345, 2.1, 2.6]) == "2.35 (2.1–2.6)"
    endless = [float("inf"), 2.1, float("inf")]
    assert level_words(endless) == level_words(plain(endless)) == "∞ (2.1–∞)", "as it is, and as it is stored"


def test_promises_have_an_interval_where_there_are_replications():
    level = {"mean": 2.4, "low": 2.1, "high": 2.8}
    found = {"slo": {"ttft_p95": 2.0}, "statistic": "so and so", "promises": {"ttft_p95": level}}
    assert promised_text(found) == "Promises (so and so):\n  ttft_p95 2.4 (2.1–2.8) s of 2"
    assert promised_text(found | {"promises": {"ttft_p95": level | {"low": None, "high": None}}}) == ""


def test_why_not_fewer_is_the_row_of_one_replica_fewer():
    rows = [
        {"policy": "full", "one_fewer": {"gpus": 20, "verdict": "fails", "saturated": True, **LEVELS}},
        {"policy": "te", "one_fewer": None},
    ]
    assert fewer_text(rows, SLO) == (
        "Why not one replica fewer:\n"
        "  full: 20 GPUs fail: ttft_p95 2.4 (2.1–2.8) s of 2, tpot_p99 0.04 (0.03–0.05) s of 0.05, its queue grows"
    )
    assert fewer_text(rows[1:], SLO) == ""
    for verdict, said in (("fails", "1 GPU fails:"), ("undecided", "1 GPU is undecided:")):
        assert said in fewer_text([{"policy": "te", "one_fewer": {"gpus": 1, "verdict": verdict, **LEVELS}}], SLO)


def test_headroom_that_is_only_a_bound_is_called_one():
    rows = [
        {"policy": "full", "headroom": 0.03, "headroom_note": None},
        {"policy": "te", "headroom": 9.0, "headroom_note": "more was not tried"},
        {"policy": "am", "headroom": None, "headroom_note": None},
    ]
    assert room_text(rows) == "Headroom, more load before a promise breaks: full +3%, te at least +900%."
    assert room_text(rows[2:]) == ""


def test_percentiles_from_too_few_turns_say_how_many_more_they_need():
    assert short_text({"turns_short": {"p99": 400}}).endswith("p99 400 turns more in every replication.")
    assert short_text({"turns_short": {}}) == ""
    rows = [{"policy": "full", "turns_short": {"p99": 400}}, {"policy": "te", "turns_short": {}}]
    assert guessed_text(rows, SLO).splitlines()[1:] == [
        "  full, tpot_p99: 400 turns more are needed in every replication"
    ]
    assert guessed_text(rows[1:], SLO) == ""


def test_a_saturated_size_is_said_to_be():
    rows = [{"policy": "full", "sizes": [{"gpus": 20, "verdict": "fails", "saturated": True, **LEVELS}]}]
    assert "fails, saturated" in sizes_text(rows, SLO)


def test_a_run_over_time_is_ten_lines_at_most():
    rows = [
        {
            "start_s": float(i), "batch": 3.0, "waiting": 0.0, "kv_used_share": 0.5, "hit_share": None, "requests": 7,
            "preemptions": 0, "ttft_p50_s": 0.1, "tpot_p50_s": 0.02,
        }
        for i in range(60)
    ]  # fmt: skip
    lines = series_text(rows).splitlines()
    assert lines[0] == "Over time (60 intervals, some of them):"
    assert len(lines) == 3 + 10
    assert [line.split()[0] for line in lines[3:]] == [str(i) for i in range(0, 60, 6)]
    assert series_text([]) == ""
