"""A sweep stands for its policies, and its plateau is a region, not the luckiest point."""

from __future__ import annotations

import random

import pytest

from kvmill.errors import UserError
from kvmill.replay.sweep import parse_sweep, plateau, plateaus, sweep_text, with_sweeps

SPEC = "te(proxy=assistant,delay=1|2|3,keep=0.1|0.2|0.4)"
SWEEP = parse_sweep(SPEC)


def scored(true: dict[tuple[int, ...], float], count: int, seed: int = 0) -> dict[str, dict[str, float]]:
    """Trajectories of unequal difficulty, the same under every setting, plus noise."""
    rng = random.Random(seed)
    ease = [rng.gauss(0, 0.2) for _ in range(count)]
    return {
        policy: {f"t{i}": true[place] + ease[i] + rng.gauss(0, 0.05) for i in range(count)}
        for place, policy in SWEEP.settings.items()
    }


def test_a_sweep_is_the_product_of_its_choices_in_order() -> None:
    assert len(SWEEP.policies()) == 9
    assert SWEEP.policies()[:2] == ["te(proxy=assistant,delay=1,keep=0.1)", "te(proxy=assistant,delay=1,keep=0.2)"]
    assert [key for key, _ in SWEEP.options] == ["delay", "keep"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("te(keep=0.2)", "give values to choose from"),
        ("te(delay=1|2,keep=0.1|nothing)", "nothing"),
        ("to(keep=0.1|0.2)", "unknown policy"),
        ("te(keep=0.2|0.20)", "the same policy"),
        ("te(keep=" + "|".join(f"0.{n}" for n in range(10, 90)) + ")", "at most 64"),
    ],
)
def test_what_is_no_sweep_is_said(spec: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_sweep(spec)


def test_the_plateau_is_what_is_as_good_as_the_best_and_hangs_together() -> None:
    """Delay 2 and 3 at keep 0.2 and 0.4 are equally good; one far setting is as good, but no neighbour of them."""
    true = dict.fromkeys(SWEEP.settings, 0.3) | dict.fromkeys([(1, 1), (1, 2), (2, 1), (2, 2)], 0.8) | {(0, 0): 0.8}
    sizes = {policy: float(100 * place[1]) for place, policy in SWEEP.settings.items()}
    found = plateau(SWEEP, scored(true, 30), sizes)
    assert found is not None
    region = {"delay": ["2", "3"], "keep": ["0.2", "0.4"]}
    if found["peak"] != SWEEP.settings[0, 0]:
        assert found["options"] == region
        assert len(found["plateau"]) == 4
        assert found["centre"] in (SWEEP.settings[1, 1], SWEEP.settings[2, 1]), "of equal ones, the smaller"
    else:
        assert found["plateau"] == [SWEEP.settings[0, 0]]
    assert "not distinguishable from the best" in sweep_text(found)
    assert not found["few"]


def test_the_centre_has_more_neighbours_than_the_peak_at_the_edge() -> None:
    true = dict.fromkeys(SWEEP.settings, 0.8)
    true[0, 0] = 0.801
    found = plateau(SWEEP, scored(true, 40), {})
    assert found is not None
    assert found["centre"] == SWEEP.settings[1, 1]
    assert len(found["plateau"]) == 9


def test_only_shared_trajectories_count_and_few_are_flagged() -> None:
    scores = scored(dict.fromkeys(SWEEP.settings, 0.5), 12)
    first = SWEEP.settings[0, 0]
    scores[first] = dict(list(scores[first].items())[:4])
    found = plateau(SWEEP, scores, {})
    assert found is not None
    assert (found["n"], found["few"]) == (4, True)
    assert "fewer than 10" in sweep_text(found)
    assert plateau(SWEEP, {}, {}) is None
    scores[first] = {"elsewhere": 1.0}
    assert plateau(SWEEP, scores, {}) is None


def row(policy: str, trajectory: str, **sums: float | None) -> dict[str, float | str | None]:
    counts = {f"{name}_count": None if total is None else 4 for name, total in sums.items()}
    return {"policy": policy, "trajectory_id": trajectory, **sums, **counts}


def test_a_run_is_judged_by_its_answers_else_by_likelihood() -> None:
    spec = "te(delay=1|2,keep=0.2)"
    # Given in other words than the sweep's: the same policy.
    one, two = "te(proxy=assistant,delay=1,keep=0.20)", "te(delay=2,keep=0.2)"
    entries = [{"policy": one, "kv_tokens_peak": 10.0}, {"policy": two, "kv_tokens_peak": 5.0}]
    likelihoods = [row(one, "a", answer_accuracy=None, delta_nll=0.4), row(two, "a", answer_accuracy=None, delta_nll=2)]
    (found,) = plateaus([spec], likelihoods, entries)
    assert (found["score"], found["peak"], found["peak_score"]) == ("delta_nll", "te(delay=1,keep=0.2)", -0.1)
    assert "judged by −ΔNLL, mean over 1 trajectories" in sweep_text(found)
    answers = [row(one, "b", answer_accuracy=1, delta_nll=0), row(two, "b", answer_accuracy=3, delta_nll=9)]
    (found,) = plateaus([spec], [*likelihoods, *answers, row("full", "b", answer_accuracy=4)], entries)
    assert (found["score"], found["peak"], found["peak_score"]) == ("answer_accuracy", two, 0.75)
    assert (found["n"], found["settings"]) == (1, 2)
    assert found["centre"] == two, "equal neighbours: the smaller one"
    assert "judged by recall of facts" in sweep_text(found, "recall of facts")


def test_a_sweep_without_rows_is_null_and_says_so() -> None:
    (found,) = plateaus(["te(keep=0.1|0.2)"], [row("full", "a", delta_nll=0)], [])
    assert (found["n"], found["peak"], found["plateau"]) == (0, None, None)
    assert "no trajectory was measured" in sweep_text(found)


def test_sweeps_add_their_policies_once() -> None:
    sweeps = [parse_sweep("te(delay=1|2,keep=0.2)"), parse_sweep("te(delay=1,keep=0.20|0.4)")]
    chosen = with_sweeps(["te(proxy=assistant,delay=2,keep=0.2)"], sweeps)
    given = "te(proxy=assistant,delay=2,keep=0.2)"
    assert chosen == ["full", given, "te(delay=1,keep=0.2)", "te(delay=1,keep=0.4)"]
    assert with_sweeps([], []) == ["full"]
    with pytest.raises(UserError, match="given twice"):
        with_sweeps(["random", "random"], sweeps)
