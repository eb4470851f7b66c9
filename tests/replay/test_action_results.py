"""Figures of stepwise runs from rows made by hand: shares are of turns, intervals over trajectories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvmill.replay.action_results import NOT_MEASURED, action_entries
from kvmill.traces.store import Store

MOST = 10


def turn(trajectory: str, number: int, **columns: Any) -> dict[str, Any]:
    key = {"cell_id": trajectory, "trajectory_id": trajectory, "family": trajectory[0], "policy": "full"}
    asked = {"action_parsed": True, "generated_tokens": 4, "action_text_similarity": 0.5} if number else {}
    return {**key, "measure": "quality", "turn": number, **asked, **columns}


def matched(name: bool | None, arguments: bool | None, full: bool | None, share: float | None) -> dict[str, Any]:
    mine = {"action_name_match": name, "action_arguments_match": arguments, "action_field_share": share}
    return {**mine, "action_arguments_match_full": full}


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Store, str]:
    """One turn of f1 does what was recorded, one of three of g1 does half of it, one more has nothing to compare."""
    store = Store.open(tmp_path)
    run = store.begin("replay", {"model": "m", "policies": ["full"], "mode": "stepwise"})
    rows = [
        turn("f1", 0),
        turn("f1", 1, **matched(True, True, True, 1.0), generated_tokens=MOST),
        turn("g1", 0),
        turn("g1", 1, **matched(True, False, True, 0.5)),
        turn("g1", 2, **matched(False, False, None, 0.0), generated_tokens=MOST - 1),
        turn("g1", 3, **matched(False, False, False, 0.0), action_parsed=False),
        turn("g1", 4, **matched(None, None, None, None), action_text_similarity=None),
    ]
    run.add({"turn_metrics": rows}, key="all")
    run.finish()
    return store, run.id


def test_shares_are_of_the_turns_that_have_something_to_compare_with(stored: tuple[Store, str]) -> None:
    (found,) = action_entries(*stored, most=MOST).values()
    assert (found["action_turns"], found["action_compared"]) == (5, 4)
    assert (found["action_match"], found["action_match_full"]) == (1 / 4, 2 / 3)
    assert (found["action_name_match"], found["action_field_share"]) == (2 / 4, 1.5 / 4)
    assert found["action_parsed"] == 4 / 5
    assert found["action_text_similarity"] == 0.5
    assert (found["actions_cut"], found["generated_tokens"]) == (1 / 5, (10 + 4 + 9 + 4 + 4) / 5)
    assert found["action_name_match_full"] is None, "nothing was measured"


def test_intervals_resample_whole_trajectories(stored: tuple[Store, str]) -> None:
    """Of two trajectories a resample has the one, the other, or both: 1 of 1, 0 of 3, or 1 of 4."""
    (found,) = action_entries(*stored).values()
    assert (found["action_match_low"], found["action_match_high"]) == (0, 1)
    assert (found["action_match_full_low"], found["action_match_full_high"]) == (1 / 2, 1)


def test_families_and_turns_have_their_own(stored: tuple[Store, str]) -> None:
    by_family = action_entries(*stored, by="family", most=MOST)
    assert [by_family[family, "full"]["action_match"] for family in "fg"] == [1, 0]
    assert [by_family[family, "full"]["actions_cut"] for family in "fg"] == [1, 0]
    by_turn = action_entries(*stored, by="turn")
    assert {turn: entry["action_match"] for (turn, _), entry in by_turn.items()} == {1: 1 / 2, 2: 0, 3: 0, 4: None}
    assert by_turn[4, "full"]["action_match_low"] is None
    assert action_entries(*stored, by="kind") == {}
    assert {*NOT_MEASURED} == {*by_turn[1, "full"]}
