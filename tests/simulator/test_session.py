import pytest
from worlds import TE, deployment

from kvmill.replay.policies.registry import parse_policy
from kvmill.simulator.cost import CostModel
from kvmill.simulator.session import SessionSpec, compile_session, turns_in_window
from kvmill.simulator.workload import assemble

OUT, TOOLS = [100, 50, 80, 60], [1000, 500, 700]
SPEC = SessionSpec(assemble(2000, OUT, TOOLS), (1.0, 2.0, 3.0, 4.0), shared=1000)


def compiled(policy, spec=SPEC, place=None):
    place = place or deployment()
    return compile_session(spec, parse_policy(policy), place, CostModel.of(place))


def test_full_feeds_what_is_new_and_keeps_everything():
    plan = compiled("full")
    assert plan.feed == [2000, 1001, 501, 701]  # the last sampled token of a turn is fed with the next one
    assert plan.base == [0, 2099, 3149, 3729]
    assert plan.peak == plan.after == plan.raw == plan.top == [2000, 3100, 3650, 4430]
    assert plan.pay == plan.repay == [0.0] * 4
    assert plan.shared == 992, "whole blocks only"
    assert [plan.rows(j) for j in range(4)] == [2099, 3149, 3729, 4489]


def test_te_follows_its_own_footprint_turn_by_turn():
    policy = parse_policy("te(proxy=assistant,delay=1,keep=0.2)")
    prints = policy.footprint(SPEC.segments)
    plan = compiled(str(policy))
    assert plan.after == [2000, *(step.kv_rows for step in prints[:3])]
    assert plan.peak == [2000, *(step.kv_rows_peak for step in prints[:3])]
    assert plan.after[2] == 2000 + 20 + 200 + 50 + 500  # turn 0 compacted, turn 1 raw
    assert plan.pay[0] == plan.pay[1] == 0.0
    assert plan.pay[2] > 0
    assert plan.repay[3] == pytest.approx(plan.pay[2] + plan.pay[3])


def test_captured_queries_are_held_through_the_gap():
    plan, bare = compiled(TE), compiled("full")
    shape = deployment().geometry.kv_shape("bf16")
    captured = 50 * shape.layers * shape.q_heads * shape.head_dim * 2  # the assistant tokens of turn 1
    assert plan.extra[1] - bare.extra[1] == -(-captured // (16 * shape.row_bytes))


def test_a_compacted_session_whose_cache_is_gone_prefills_its_raw_tokens_again():
    plan, full = compiled(TE), compiled("full")
    assert plan.raw == full.raw
    assert plan.after[3] < full.after[3]
    assert plan.top[3] == max(plan.peak)


def test_text_level_policies_prefill_what_they_cut_and_nothing_raw():
    policy = parse_policy("truncate(keep=0.2)")
    prints = policy.footprint(SPEC.segments)
    plan = compiled(str(policy))
    assert plan.feed[2] == prints[1].reprefill_tokens
    assert plan.base[2] + plan.feed[2] == plan.after[2] == prints[1].kv_rows
    assert plan.raw[2] == plan.after[2]


@pytest.mark.parametrize("policy", ["truncate(keep=0.2)", "truncate(keep=1)", "truncate(keep=0.5,prefix=drop)"])
def test_text_is_cut_before_it_is_fed_so_the_peak_is_the_footprints(policy):
    """What is held when the assistant has spoken (its last token is not fed yet), or after the cut."""
    prints = parse_policy(policy).footprint(SPEC.segments)
    plan = compiled(policy)
    for j in range(1, plan.turns):
        assert max(plan.rows(j - 1) + 1, plan.peak[j]) == prints[j - 1].kv_rows_peak
        assert plan.base[j] + plan.feed[j] == plan.peak[j] == plan.after[j]


@pytest.mark.parametrize("policy", ["full", TE, "sink_window(keep=0.3)", "attention(keep=0.3)", "truncate(keep=0.3)"])
def test_needs_cover_what_is_held_and_nothing_is_negative(policy):
    plan = compiled(policy)
    for j in range(plan.turns):
        assert plan.need[j] >= plan.blocks(j, plan.after[j])
        assert plan.size[j] >= plan.blocks(j, plan.rows(j))
        assert plan.feed[j] > 0
        assert plan.base[j] >= 0
        assert plan.peak[j] >= plan.after[j] > 0


def test_constant_state_is_charged_per_session():
    place = deployment(model="qwen3.5-27b", gpu="h200")
    assert compiled("full", place=place).extra[0] == place.state_blocks() == 148


def test_a_session_ends_at_the_window_because_compaction_does_not_lower_positions():
    spec = SessionSpec(assemble(30_000, [1000] * 4, [5000] * 3), (1.0,) * 4)
    place = deployment(model="qwen3-8b")  # 40,960 positions
    assert compiled("full", spec, place).turns == compiled(TE, spec, place).turns == 2
    too_long = SessionSpec(assemble(41_000, [10], []), (1.0,))
    assert compiled("full", too_long, place) is None
    assert turns_in_window([], 10) == 0


def test_history_before_the_first_request_belongs_to_the_session():
    spec = SessionSpec(assemble(1000, [1, 100], [4000]), (0.0, 1.0), begin=1)
    plan = compiled("full", spec)
    assert (plan.begin, plan.raw[1]) == (1, 5001)


def test_a_copy_that_is_fed_to_score_a_turn_costs_a_prefill_of_it():
    copied, bare = compiled("te(proxy=repeat,keep=0.2)"), compiled("te(proxy=boundary,keep=0.2)")
    cost = CostModel.of(deployment())
    tokens = 20 + OUT[0] + TOOLS[0]
    held = 2000 + OUT[0] + TOOLS[0]
    prefill_s = cost.step_s(0, 0.0, 1, tokens, tokens * (held + tokens / 2), 0)
    assert copied.pay[1] > prefill_s
    assert copied.pay[1] - bare.pay[1] == pytest.approx(prefill_s, rel=0.2)
    assert copied.peak[1] == bare.peak[1] + tokens
    assert copied.after == bare.after


def without(policy, *effects):
    place = deployment()
    return compile_session(SPEC, parse_policy(policy), place, CostModel.of(place), frozenset(effects))


def test_without_the_memory_it_frees_a_policy_holds_what_full_holds_and_still_works():
    te, full, off = compiled(TE), compiled("full"), without(TE, "held")
    for name in ("base", "feed", "peak", "after", "raw", "top", "extra", "need", "size"):
        assert getattr(off, name) == getattr(full, name), name
    assert (off.pay, off.repay) == (te.pay, te.repay)
    assert not off.divisible


def test_without_its_seconds_a_policy_costs_no_time_and_nothing_else_changes():
    te, off = compiled(TE), without(TE, "seconds")
    assert off.pay == off.repay == [0.0] * 4
    assert (off.after, off.need, off.raw) == (te.after, te.need, te.raw)


def test_without_lost_prefixes_kept_rows_come_back_as_they_are():
    te, off = compiled(TE), without(TE, "prefix")
    assert off.raw == off.after == te.after
    assert off.repay == [0.0] * 4
    assert off.pay == te.pay
    drop = "drop_tool_outputs(older_than=1)"
    cut, kept = compiled(drop), without(drop, "prefix")
    assert kept.feed == [min(a, b) for a, b in zip(cut.feed, compiled("full").feed, strict=True)]
    assert sum(kept.feed) < sum(cut.feed)
    assert kept.after == cut.after


def test_only_rows_of_a_text_can_be_found_again():
    assert compiled("full").divisible
    assert compiled("truncate(keep=0.2)").divisible
    assert compiled("sink_window(keep=1)").divisible
    assert not compiled(TE).divisible
    assert not compiled("sink_window(keep=0.5)").divisible
    hybrid = deployment(model="qwen3.5-27b", gpu="h200")
    assert not compiled("full", place=hybrid).divisible, "its recurrent state exists at the end only"
    coarse = deployment(model="qwen3.5-27b", gpu="h200", coarse_tokens=528)
    assert compiled("full", place=coarse).divisible
