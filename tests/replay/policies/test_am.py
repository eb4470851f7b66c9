"""The arithmetic and the options of `am`. `test_segment_footprint` moves tokens one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from lengths import LONG, segments

from kvmill.errors import UserError
from kvmill.replay.policies.am import AttentionMatching, held_out, most_rows
from kvmill.replay.policies.base import QUERY_ROWS_CAP, KvShape, SegmentSize, split_turns
from kvmill.replay.policies.registry import parse_policy

SHAPE = KvShape(layers=4, kv_heads=2, q_heads=6, head_dim=8, dtype_bytes=2)
PAIRS, GROUP, DIM = 8, 3, 8


def am(options: str = "") -> AttentionMatching:
    policy = parse_policy(f"am({options})")
    assert isinstance(policy, AttentionMatching)
    return policy


def test_defaults_and_their_spelling() -> None:
    policy = am()
    assert (policy.proxy, policy.delay, float(policy.keep)) == ("assistant", 1, 0.2)
    assert (float(policy.ridge), int(policy.beta_limit)) == (1e-3, 3)
    assert (policy.weighting, policy.fallback, policy.normaliser) == ("none", "heldout", "local")
    text = "am(proxy=tool,delay=2,keep=0.3,ridge=0.01,beta_limit=7,weighting=share,fallback=none)"
    assert str(parse_policy(text)) == text
    assert am("proxy=repeat").delay == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("ridge=0", "ridge=0 must be a number between"),
        ("beta_limit=11", "beta_limit=11 must be a number between 0 and 10"),
        ("weighting=all", "one of none, share"),
        ("fallback=te", "one of heldout, none"),
        ("delay=0", "delay=0 has no later turn"),
        ("betas=1", "Known: beta_limit, delay, fallback"),
    ],
)
def test_wrong_options_say_what_is_right(options: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        am(options)


def test_log_sum_exps_are_held_only_where_they_are_used() -> None:
    assert am().normalisers(7) == 0
    assert am("weighting=share").normalisers(7) == 7
    assert am("normaliser=global").normalisers(7) == 7


def sizes(assistant: int, tool: int) -> list[SegmentSize]:
    return [SegmentSize("prefix", 5), *[SegmentSize("assistant", assistant), SegmentSize("tool", tool)] * 2]


def test_work_is_scoring_targets_and_two_solves_counted_by_hand() -> None:
    """100 tool tokens, 20 kept, 3·30 rows; with the trial fit 18 of them are held out."""
    text, n, m, rows = sizes(30, 100), 100, 20, 90
    scoring = rows * n * (2 * DIM + 5)

    def fit(r: int) -> float:
        targets = 2 * r * n * DIM
        gram, right = 2 * (2 * r * m * m), 2 * r * m * (1 + DIM)
        factors, solutions = 2 * m**3 / 3, 2 * m * m * (1 + DIM)
        return targets + gram + right + factors + solutions

    once = am("keep_assistant=1,fallback=none").work(text, SHAPE)[-1]
    assert once.flops == pytest.approx(PAIRS * (scoring + fit(90)))
    trial = am("keep_assistant=1").work(text, SHAPE)[-1]
    outputs = 2 * 18 * (n + 2 * m) * DIM
    assert trial.flops == pytest.approx(PAIRS * (scoring + fit(90) + fit(72) + outputs))
    te = parse_policy("te(keep_assistant=1)").work(text, SHAPE)[-1]
    assert once.bytes == te.bytes + PAIRS * n * DIM * 2


def test_too_few_rows_cost_what_te_costs() -> None:
    """3·13 = 39 rows for 20 kept keys are one too few; 3·14 are enough."""
    for tokens, falls in ((13, True), (14, False)):
        text = sizes(tokens, 100)
        found, te = (parse_policy(f"{name}(keep_assistant=1)").work(text, SHAPE)[-1] for name in ("am", "te"))
        assert (found == te) == falls
    boundary = parse_policy("am(proxy=boundary)").work(sizes(50, 100), SHAPE)
    assert boundary == parse_policy("te(proxy=boundary)").work(sizes(50, 100), SHAPE)


def test_other_sources_give_no_more_rows_than_the_first_future_one() -> None:
    assert most_rows(["repeat", "assistant", "tool"], [90, 30, 60]) == 30
    assert most_rows(["tool", "assistant"], [60, 30]) == 60
    assert most_rows(["assistant", "tool"], [0, 60]) == 60
    assert most_rows(["repeat", "boundary"], [90, 6]) is None
    text = sizes(10, 100)
    tool, later = text[2], split_turns(text)[1:]
    rows = {
        "assistant+tool": 2 * 30,
        "tool+assistant": 300 + 30,
        "assistant+repeat+boundary": 30 + 30 + 6,
        "repeat+boundary": 300 + 6,
    }
    for proxy, want in rows.items():
        assert am(f"proxy={proxy}").scoring_rows(tool, later, GROUP) == want


def test_rows_are_capped_together() -> None:
    text = sizes(3000, 3000)
    assert am("proxy=assistant+tool").scoring_rows(text[2], split_turns(text)[1:], GROUP) == QUERY_ROWS_CAP


def test_one_row_in_five_is_held_out_and_at_least_one() -> None:
    assert [held_out(rows) for rows in (1, 2, 5, 6, 100)] == [1, 1, 1, 2, 20]


@settings(max_examples=60, deadline=None)
@given(segments(tokens=LONG))
def test_am_works_where_te_works_and_never_less(text: list[SegmentSize]) -> None:
    for found, te in zip(am().work(text, SHAPE), parse_policy("te").work(text, SHAPE), strict=True):
        assert (found.flops > 0) == (te.flops > 0)
        assert found.flops >= te.flops
        assert found.bytes >= te.bytes
