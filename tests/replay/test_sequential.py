"""However often one looks, false answers stay as rare as promised; and what stopping early saves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kvmill.replay import sequential
from kvmill.replay.noninferior import differences
from kvmill.replay.sequential import Proof, at_most, bar_for, decide, log_capitals, wealth

CAMPAIGNS, POLICIES, DRAWS, LOSS, FAMILY = 2_000, 3, 250, 0.1, 0.3
BAR = bar_for(POLICIES, 0.95)
# Rejections beyond which a rate of 5 % over the campaigns is refuted (binomial, 99.9 %).
MOST = 0.05 + 3.1 * math.sqrt(0.05 * 0.95 / CAMPAIGNS)
Drawn = tuple[np.ndarray, np.ndarray, np.ndarray]


def one_answer(rng: np.random.Generator, loss: float = LOSS) -> Drawn:
    """One probe per trajectory, all scores 0 or 1; a policy loses what `full` knew, and each one on its own."""
    full = rng.random((CAMPAIGNS, 1, DRAWS)) < rng.beta(3, 1.3, (CAMPAIGNS, 1, DRAWS))
    kept = rng.random((CAMPAIGNS, POLICIES, DRAWS)) > loss
    return _drawn(rng, full & kept, full)


def eight_probes(rng: np.random.Generator, loss: float = LOSS) -> Drawn:
    """Eight probes of unequal trajectories, forgotten together in most of them: what one run loses it loses wholly."""
    full = rng.binomial(8, rng.beta(3, 1.3, (CAMPAIGNS, 1, DRAWS))) / 8
    lost = np.minimum(1.0, rng.exponential(1.0, (CAMPAIGNS, POLICIES, DRAWS)))
    lost *= loss / (1 - math.exp(-1))  # the mean of an exponential one that is cut at 1
    return _drawn(rng, full * (1 - lost), full)


def rare_and_total(rng: np.random.Generator, loss: float = LOSS) -> Drawn:
    """All policies fail outright in the same trajectories, and lose nothing in the others."""
    full = rng.binomial(8, rng.beta(3, 1.3, (CAMPAIGNS, 1, DRAWS))) / 8
    kept = rng.random((CAMPAIGNS, 1, DRAWS)) > loss
    return _drawn(rng, np.repeat(full * kept, POLICIES, axis=1), full)


def _drawn(rng: np.random.Generator, scores: np.ndarray, full: np.ndarray) -> Drawn:
    families = rng.integers(0, 3, (CAMPAIGNS, 1, DRAWS))
    both = (np.broadcast_to(values, scores.shape) for values in (full, families))
    return (scores.astype(float), *(values.astype(float) for values in both))


def capitals(drawn: Drawn, available: int = 100_000, **limits: float) -> tuple[np.ndarray, np.ndarray]:
    """Log capitals (campaign, policy, draw) of both sides."""
    given = {"max_loss": LOSS, "family_loss": FAMILY, **limits}
    return log_capitals(*drawn, available=available, kinds=3, **given)  # type: ignore[arg-type]


def ever(capital: np.ndarray) -> float:
    """The share of campaigns in which some policy is ever proven."""
    return float((capital.max(axis=-1) >= BAR).any(axis=-1).mean())


@pytest.mark.parametrize("draw", [one_answer, eight_probes, rare_and_total])
def test_at_the_limit_a_false_answer_comes_in_at_most_one_campaign_of_twenty(draw: Any) -> None:
    """Looked at after every single draw; all policies lose exactly what is allowed, the worst case of both sides."""
    good, bad = capitals(draw(np.random.default_rng(1)))
    assert ever(good) <= MOST
    assert ever(bad) <= MOST
    # A fixed-sample test looked at as often would not do: that is why this one exists.
    if draw is one_answer:
        scores, full, _ = draw(np.random.default_rng(1))
        d = differences(scores[:, 0], full[:, 0], LOSS)
        n = np.arange(1, DRAWS + 1)
        spread = np.sqrt(np.maximum(np.cumsum(d**2, -1) / n - (np.cumsum(d, -1) / n) ** 2, 1e-12))
        z = np.cumsum(d, -1) / np.sqrt(n) / spread
        assert (z[:, 10:] > 1.645).any(-1).mean() > 0.2


def test_a_set_that_is_drawn_to_its_end_is_judged_by_its_own_mean() -> None:
    """Without replacement: the set loses exactly what is allowed, and the draws must average out."""
    rng = np.random.default_rng(2)
    size = 80
    full = rng.integers(4, 9, (CAMPAIGNS, 1, size)) / 8
    lost = rng.random((CAMPAIGNS, POLICIES, size)) * full
    lost *= LOSS * full.sum(-1, keepdims=True) / lost.sum(-1, keepdims=True)
    d = differences(np.clip(full - lost, 0, 1), np.repeat(full, POLICIES, axis=1), LOSS)
    assert np.abs(d.sum(-1)).max() < 1e-9
    for side, least in ((d, 1 - LOSS), (-d, 1.0)):
        assert ever(wealth(side, least, size)) <= MOST


def test_the_price_of_a_draw_is_what_the_rest_of_the_set_must_make_up_for() -> None:
    """With two values of which the first is −½, a set mean of 0 means +½ for the second: a fair bet, no gain."""
    assert wealth([-0.5, 0.5], 1.0, 2)[1] == pytest.approx(wealth([-0.5], 1.0, 2)[0])
    assert wealth([-0.5, 0.5], 1.0, 10**9)[1] > wealth([-0.5], 1.0, 2)[0]
    assert wealth([0.5, 0.5], 1.0, 2)[1] == pytest.approx(
        np.logaddexp.reduce([2 * math.log1p(share * 0.5) for share in sequential.SHARES]) - math.log(4)
    )
    with pytest.raises(ValueError, match="below"):
        wealth([-1.5], 1.0, 2)


def test_what_has_no_answer_changes_nothing() -> None:
    scores, full = [0.5, np.nan, 1.0, 0.75], [0.75, 1.0, np.nan, 1.0]
    families = ["a", "a", "b", "b"]
    limits: dict[str, Any] = {"max_loss": LOSS, "family_loss": FAMILY, "available": 10**9, "kinds": 2}
    good, bad = log_capitals(scores, full, families, **limits)
    alone = log_capitals([0.5, 0.75], [0.75, 1.0], ["a", "b"], **limits)
    assert good[[0, 3]] == pytest.approx(alone[0])
    assert bad[[0, 3]] == pytest.approx(alone[1])
    assert good[1:3] == pytest.approx(good[0])


def test_the_capital_against_a_policy_is_half_overall_and_half_among_all_families() -> None:
    """With one family, held to the same limit, both halves make the same bets; families not drawn yet keep theirs."""
    rng = np.random.default_rng(7)
    full = rng.integers(4, 9, 40) / 8
    limits: dict[str, Any] = {"max_loss": LOSS, "family_loss": LOSS, "available": 10**6}
    _, alone = log_capitals(full / 2, full, ["a"] * 40, kinds=1, **limits)
    assert alone == pytest.approx(wealth(-differences(full / 2, full, LOSS), 1.0, 10**6))
    _, three = log_capitals(full / 2, full, ["a"] * 40, kinds=3, **limits)
    assert np.exp(three) == pytest.approx(np.exp(alone) / 2 + (np.exp(alone) + 2) / 6)
    assert math.exp(bar_for(3, 0.95)) == pytest.approx(60)


def test_what_has_no_score_is_no_family_of_its_own() -> None:
    """Missing rows carry the name "": it takes no capital from the families that there are."""
    rng = np.random.default_rng(8)
    full = rng.integers(4, 9, 40) / 8
    limits: dict[str, Any] = {"max_loss": LOSS, "family_loss": FAMILY, "available": 10**9, "kinds": 2}
    families = np.array(["a", "b"] * 20)
    _, bad = log_capitals(full / 4, full, families, **limits)
    gaps = [np.insert(values, 7, np.nan) for values in (full / 4, full)]
    _, again = log_capitals(*gaps, np.insert(families.astype("U1"), 7, ""), **limits)
    assert again[-1] == pytest.approx(bad[-1])


def test_a_family_that_collapses_is_found_though_the_whole_is_not() -> None:
    rng = np.random.default_rng(3)
    families = rng.integers(0, 3, 250)
    full = np.full(250, 0.8)
    scores = np.where(families == 2, 0.4, full)  # 17 % overall
    limits: dict[str, Any] = {"max_loss": 0.25, "family_loss": FAMILY, "available": 10**6}
    _, bad = log_capitals(scores, full, families, kinds=3, **limits)
    assert bad[-1] > BAR
    _, many = log_capitals(scores, full, families, kinds=50, **limits)
    assert bad[-1] - many[-1] == pytest.approx(math.log(50 / 3), abs=0.2)
    _, fine = log_capitals(full, full, families, kinds=3, **limits)
    assert fine[-1] < 0
    _, never = log_capitals(0 * full, full, families, kinds=3, **limits | {"max_loss": 0.95, "family_loss": 1.05})
    overall = wealth(-differences(0 * full, full, 0.95), 1.0, 10**6)
    assert never == pytest.approx(np.logaddexp(overall, 0.0) - math.log(2))


@pytest.mark.parametrize(("loss", "proven"), [(0.0, "good"), (0.3, "bad")])
def test_clear_cases_are_proven_and_most_of_them_early(loss: float, proven: str) -> None:
    """Of 2,000 campaigns each, the share of policies proven within 250 draws, and the draws that half of them took."""
    good, bad = capitals(eight_probes(np.random.default_rng(4), loss))
    capital, other = (good, bad) if proven == "good" else (bad, good)
    hit = capital >= BAR
    assert hit.any(-1).mean() > 0.99
    assert np.median(hit.argmax(-1) + 1) < 90
    assert other.max() < BAR


def test_an_upper_bound_of_a_mean_holds_at_all_sizes_together() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(0.0, 1.0, (500, 200))
    for row, most in ((values, 0.05), (rng.exponential(1.0, (500, 200)) - 1, 0.12)):  # asymptotic: skew costs something
        assert np.mean([any(at_most(v[:n], 0.05) < 0 for n in range(10, 201, 10)) for v in row]) <= most
    assert at_most([3.0] * 5, 0.05) == 3.0
    assert at_most([3.0], 0.05) == math.inf
    assert at_most(values.ravel()[:50_000], 0.05) < 0.05


def proof(mean: float, good: float = 0.0, bad: float = 0.0, pace: float = 0.1) -> Proof:
    return Proof(good, bad, mean, max(good, bad), pace)


PEAKS = {"small": [100.0] * 12, "middle": [200.0] * 12, "large": [300.0] * 12}
GOOD, BAD, OPEN = proof(0.05, good=9.0), proof(-0.2, bad=9.0), proof(0.02, good=1.0)


def answer(**proofs: Proof) -> tuple[bool, str | None, tuple[str, ...]]:
    found = decide(proofs, PEAKS, (), bar=5.0, margin=4.0, level=0.01)
    return found.decided, found.policy, found.open


def test_decided_means_that_nothing_open_could_change_the_answer() -> None:
    assert answer(small=BAD, middle=GOOD, large=OPEN) == (True, "middle", ())
    assert answer(small=OPEN, middle=GOOD, large=GOOD) == (False, "middle", ("small",))
    assert answer(small=GOOD, middle=OPEN, large=BAD) == (True, "small", ())
    assert answer(small=BAD, middle=BAD, large=BAD) == (True, None, ())
    assert answer(small=BAD, middle=BAD, large=OPEN) == (False, None, ("large",))
    assert answer() == (True, None, ())
    # Within the limit overall, proven beyond it in a family: out, whatever the family shows by now.
    split = proof(0.05, good=9.0, bad=9.0)
    assert answer(small=split, middle=GOOD) == (True, "middle", ())
    assert answer(small=split, middle=OPEN) == (False, None, ("middle",))
    assert answer(small=split) == (True, None, ())


def test_a_doubted_policy_is_not_named_and_stays_a_rival() -> None:
    found = decide({"small": GOOD, "middle": GOOD}, PEAKS, ("small",), bar=5.0, margin=4.0, level=0.01)
    assert (found.decided, found.policy, found.open) == (False, "middle", ("small",))


def test_the_order_of_peaks_must_be_settled_too() -> None:
    rng = np.random.default_rng(6)
    peaks = {"a": 200 + rng.normal(0, 60, 12), "b": 201 + rng.normal(0, 60, 12)}
    both = {"a": GOOD, "b": GOOD}
    assert not decide(both, peaks, (), bar=5.0, margin=4.0, level=0.01).decided
    assert decide(both, peaks, (), bar=5.0, margin=4.0, level=0.01).more is None
    assert decide(both, peaks, (), bar=5.0, margin=400.0, level=0.01).decided
    alike = {"a": [200.0] * 12, "b": [201.0] * 12}
    assert decide({"a": OPEN, "b": GOOD}, alike, (), bar=5.0, margin=4.0, level=0.01).policy == "b"
    assert decide({"a": OPEN, "b": GOOD}, alike, (), bar=5.0, margin=4.0, level=0.01).decided


def test_the_estimate_waits_for_the_slowest_proof_that_the_answer_needs() -> None:
    slow, quick = proof(-0.1, bad=1.0, pace=0.01), proof(0.05, good=1.0, pace=0.1)
    found = decide({"small": slow, "middle": quick}, PEAKS, (), bar=5.0, margin=4.0, level=0.01)
    assert found.more == 400
    assert quick.more(5.0) == 40
    assert proof(0.0, pace=-0.1).more(5.0) is None
    assert GOOD.more(5.0) == BAD.more(5.0) == 0
    assert (
        decide({"small": BAD, "middle": proof(0.0, pace=0.0)}, PEAKS, (), bar=5.0, margin=4.0, level=0.01).more is None
    )
