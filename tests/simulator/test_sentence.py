import pytest

from kvmill.simulator.answer_table import table_rows, table_text
from kvmill.simulator.sentence import sentence

TE = "te(proxy=assistant,delay=1,keep=0.2)"
NOTHING = {
    "quality_model": None, "quality_n": None, "quality_is_planned_model": None, "answer_accuracy": None,
    "full_accuracy": None, "difference": None, "difference_low": None, "difference_high": None, "extra_turns": None,
    "turns_break_even": None, "gpus_if_slower": None, "gpus_if_faster": None, "ttft_s": {"p95": 1.0},
    "tpot_s": {"p95": 0.04}, "batch_mean": 9.0, "cost_per_month": 1e5, "gpus_searched": 512,
}  # fmt: skip


def row(policy, gpus, saved, low, high, binding, **more):
    sizes = {"gpus": gpus, "gpus_low": gpus, "gpus_high": gpus, "feasible": gpus is not None}
    savings = {"gpus_saved": saved, "gpus_saved_low": low, "gpus_saved_high": high}
    return NOTHING | {"policy": policy, "binding_constraint": binding} | sizes | savings | more


def found(*rows, replications=10):
    return {
        "slo": {"ttft_p95": 2.0, "tpot_p95": 0.05}, "workload": "long-agents", "gpu": "h200", "model": "qwen3.5-27b",
        "replications": replications, "few_replications": replications < 10, "plans": list(rows),
    }  # fmt: skip


FULL = row("full", 27, 0, 0.0, 0.0, "KV blocks: 3.0% of turns find their cache gone")
MEASURED = {
    "quality_model": "smollm2-135m", "quality_n": 40, "quality_is_planned_model": False, "answer_accuracy": 0.64,
    "full_accuracy": 0.75, "difference": -0.11, "difference_low": -0.15, "difference_high": -0.06,
}  # fmt: skip


def test_the_answer_comes_first_with_terms_interval_turns_quality_and_constraint():
    te = row(TE, 11, 16, 14.0, 18.0, "decode bandwidth: p95 TPOT at 97% of its limit", turns_break_even=0.9, **MEASURED)
    assert sentence(found(FULL, te), TE) == (
        f"With `{TE}` long-agents needs 11 × H200 instead of 27 (16 saved, 95 % interval 14–18) at p95 TTFT ≤ 2 s "
        "and p95 TPOT ≤ 50 ms without offloading to host memory, as long as agents need less than 1.9 × the turns. "
        "Quality measured with smollm2-135m, not with the planned qwen3.5-27b: answer accuracy 75% → 64% "
        "(paired difference −11 points, −15…−6, 40 trajectories). Binding constraint: KV blocks → decode bandwidth."
    )


def test_a_sample_that_was_drawn_until_it_decided_is_told_from_a_fixed_one():
    te = row(TE, 11, 16, 14.0, 18.0, "x", **MEASURED, quality_until_decided=True)
    assert (
        "40 trajectories drawn until the recommendation was decided, which the interval does not allow for). "
        in sentence(found(FULL, te), TE)
    )
    assert "drawn until" not in sentence(found(FULL, row(TE, 11, 16, 14.0, 18.0, "x", **MEASURED)), TE)


def test_quality_that_was_not_measured_is_said_and_few_replications_are_flagged():
    te = row(TE, 11, 16, 14.0, 18.0, "decode bandwidth: x")
    text = sentence(found(FULL, te, replications=3), TE)
    assert "Quality was not measured" in text
    assert text.endswith("Only 3 replications: a first look.")
    assert "as long as" not in text


def test_a_break_even_that_is_only_a_bound_is_called_one():
    note = "sessions then reach the model's window"
    te = row(TE, 11, 16, 14.0, 18.0, "x", turns_break_even=0.78, turns_break_even_note=note)
    assert f", up to at least 1.8 × the turns ({note}). " in sentence(found(FULL, te), TE)
    assert [r["turns"] for r in table_rows([FULL, te])] == [None, "≥ 1.78"]
    at_once = row(TE, 11, 16, 14.0, 18.0, "x", turns_break_even=0.0)
    assert ", as long as agents need no more turns. " in sentence(found(FULL, at_once), TE)


def test_measured_extra_turns_replace_the_break_even():
    te = row(TE, 14, 13, 11.0, 15.0, "KV blocks: x", extra_turns=0.56, turns_break_even=0.9)
    assert "1.6 × the turns counted" in sentence(found(FULL, te), TE)


def test_nothing_saved_is_said_as_it_is():
    te = row(TE, 27, 0, -1.0, 1.0, "host time: x", turns_break_even=0.0)
    text = sentence(found(FULL, te), TE)
    assert text.startswith(f"With `{TE}`, as without it (none saved, 95 % interval -1–1), long-agents needs 27 × H200")


def test_what_only_compaction_makes_possible_is_said():
    none = row("full", None, None, None, None, "KV blocks: a session is larger than one replica's pool")
    te = row(TE, 11, None, None, None, "decode bandwidth: x")
    assert "without compaction no fleet of up to 512 does" in sentence(found(none, te), TE)


def test_no_fleet_names_what_binds():
    te = row(TE, None, None, None, None, "weight streaming: one decode step takes 60 ms even alone")
    assert sentence(found(FULL, te), TE) == (
        f"No fleet of up to 512 × H200 serves long-agents with {TE} at p95 TTFT ≤ 2 s and p95 TPOT ≤ 50 ms; "
        "without compaction 27 do. Binding constraint: weight streaming: one decode step takes 60 ms even alone."
    )


def test_the_table_shows_unknown_as_unknown():
    te = row(TE, None, None, None, None, "x")
    shown = table_rows([FULL, te])
    assert [r["gpus"] for r in shown] == [27, "none"]
    assert shown[1]["gpus_saved"] is None
    assert shown[0]["interval"] == "27–27"


def test_why_no_fleet_can_do_it_is_said_where_closed_forms_know():
    why = "no number of replicas helps: 100% of turns take longer than the 0.005 s of tpot_p95 even alone on a replica"
    te = row(TE, None, None, None, None, "weight streaming: x", infeasible_because=why)
    assert f" without compaction 27 do. N{why[1:]}. Binding constraint: " in sentence(found(FULL, te), TE)


def test_the_largest_fleet_says_how_far_a_promise_is_missed():
    sizes = [
        {"gpus": gpus, "ttft_p95_s": [ttft, ttft, ttft], "tpot_p95_s": [0.02, 0.02, 0.02]}
        for gpus, ttft in ((400, 2.7), (512, 2.28))
    ]
    te = row(TE, None, None, None, None, "prefill compute: x", sizes=sizes)
    assert "do. 512 × H200 show p95 TTFT 2.28 s (simulated). Binding" in sentence(found(FULL, te), TE)
    assert "(simulated)" not in sentence(found(FULL, te | {"sizes": sizes[:1]}), TE), "closed forms looked at one size"
    rejecting = [sizes[1] | {"ttft_p95_s": [float("inf")] * 3}]
    assert "(simulated)" not in sentence(found(FULL, te | {"sizes": rejecting}), TE)


def test_what_becomes_of_waiting_caches_is_said_as_it_is_planned():
    te = row(TE, 11, 16, 14.0, 18.0, "decode bandwidth: x")
    for retention, words in (
        ("lru", " without offloading to host memory"),
        ("offload", " with caches offloaded to host memory"),
        ("ttl:30", " with caches dropped after 30 s, without offloading to host memory"),
    ):
        assert f"p95 TPOT ≤ 50 ms{words}" in sentence(found(FULL, te) | {"retention": retention}, TE)


def test_what_costs_more_is_said_as_more_and_without_a_break_even():
    te = row(TE, 30, -3, -5.0, -1.0, "host time: x", turns_break_even=0.5)
    text = sentence(found(FULL, te), TE)
    assert "needs 30 × H200 instead of 27 (3 more, 95 % interval 1–5)" in text
    assert "as long as" not in text


@pytest.mark.parametrize("of", ["answer accuracy", "recall of facts"])
def test_the_table_says_what_its_figures_are(of):
    te = row(TE, 11, 16, 14.0, 18.0, "x", quality_of=of, quality_run="replay-1", **MEASURED)
    text = table_text(found(FULL, te, replications=7))
    head, *_ = text.splitlines()
    assert of in head
    assert ("answer accuracy" in text) == (of == "answer accuracy")
    assert "simulated, 7 replications" in text
    assert f"{of}: measured with smollm2-135m, run replay-1, 40 trajectories" in text
    assert "measured" not in table_text(found(FULL)), "nothing was"


def test_a_selection_is_called_what_it_is():
    te = row(TE, 1, 0, 0.0, 0.0, "none: x")
    assert ", the newest ingest needs 1 × H200" in sentence(found(FULL, te) | {"workload": "last"}, TE)
