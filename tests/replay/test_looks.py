"""What a look at a growing run says: of whom, with how many draws, and of whom it says nothing."""

from __future__ import annotations

from typing import Any

from kvmill.replay.looks import Look, look_at, said

IDS = [f"t-{i}" for i in range(80)]
SCORES = {"full": 0.8, "small": 0.1, "large": 0.8}
PEAKS = {"full": 900.0, "small": 200.0, "large": 500.0}


def rows(scores: dict[str, float] = SCORES, ids: list[str] = IDS) -> list[dict[str, Any]]:
    return [
        {"policy": policy, "trajectory_id": name, "family": "ab"[at % 2], "score": score, "peak": PEAKS[policy]}
        for at, name in enumerate(ids)
        for policy, score in scores.items()
    ]


def look(found: list[dict[str, Any]], drawn: int = 80, **changed: Any) -> Look:
    given: dict[str, Any] = {"failed": (), "doubted": (), "available": 10**6, "kinds": 2, "max_loss": 0.3}
    given |= {"family_loss": 0.4, "confidence": 0.95, **changed}
    return look_at(found, IDS[:drawn], ["small", "large"], **given)


def words(found: Look) -> str:
    return said(found, 0.3, 0.95)


def test_the_answer_needs_the_larger_proven_and_the_smaller_disproven() -> None:
    early, late = look(rows(), 10), look(rows())
    assert (early.decision.decided, early.decision.policy) == (False, None)
    assert words(early).startswith("not decided after 10 of 1000000 trajectories: about ")
    assert (late.decision.decided, late.decision.policy, late.answered) == (True, "large", 80)
    assert words(late).startswith("decided after 80 of 1000000 trajectories: it loses at most 30% of full's accuracy")
    assert "smaller by more than 1% of full's" in words(late)


def test_a_proof_of_an_earlier_draw_stands_whatever_comes_later() -> None:
    good = look(rows(), 60)
    worse = [
        row | {"score": 0.0} if row["policy"] == "large" and row["trajectory_id"] in IDS[60:] else row for row in rows()
    ]
    assert look(worse).proofs["large"].good == good.proofs["large"].good


def test_nothing_is_said_of_policies_with_failed_cells() -> None:
    some = look(rows(), failed=["small"])
    assert (some.decision.policy, [*some.proofs]) == ("large", ["large"])
    assert words(some).endswith("; nothing is said of small: cells failed")
    assert some.bar == look(rows()).bar  # the level is shared as before
    every = look(rows(), failed=["small", "large"])
    assert (every.decision.decided, every.decision.policy) == (False, None)
    assert words(every) == "nothing can be decided: every policy has failed cells"


def test_a_policy_that_has_no_score_anywhere_stays_open() -> None:
    """It may be better than the one that is proven good: nobody can tell."""
    found = look(rows({"full": 0.8, "large": 0.8}))
    assert (found.decision.decided, found.decision.policy, found.decision.open) == (False, "large", ("small",))
    assert "small could still be better" in words(found)


def test_trajectories_that_full_does_not_answer_count_as_drawn_and_decide_nothing() -> None:
    found = look(rows(ids=IDS[:9]))
    assert (found.drawn, found.answered, found.decision.decided) == (80, 9, False)
    assert found.proofs["large"].good == look(rows(), 9).proofs["large"].good
