"""`kvmill inspect`: where a policy departs from the full cache, what it had lost by then, and what it did when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import save_tiny

from kvmill.replay.explain import AROUND, diverged, explained_text, most_lost
from kvmill.replay.fanout import run_replay
from kvmill.replay.inspect import Goals, inspect, inspect_text, with_goals
from kvmill.traces import samples
from kvmill.traces.store import Store

from .runs import FULL, TE, replay_run

NOT_ASKED = {"generated_tokens": None, "action_arguments_match_full": None, "action_text_similarity_full": None}


def turns(*agreements: float | None) -> list[dict[str, Any]]:
    return [{"turn": turn, "top1_agreement": share, **NOT_ASKED} for turn, share in enumerate(agreements)]


def asked(turn: int, same: bool | None, similar: float, generated: int | None = 5) -> dict[str, Any]:
    found = {"generated_tokens": generated, "action_arguments_match_full": same, "action_text_similarity_full": similar}
    return {"turn": turn, "top1_agreement": 0.5, **found}


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (turns(1.0, None, 0.99, 0.5), (2, "likeliest token")),
        (turns(1.0, 1.0), (None, None)),
        # Where actions were generated only they count: turn 0 was not asked, turn 1 says the same in other words.
        ([*turns(0.5), asked(1, True, 0.9), asked(2, False, 0.99)], (2, "action")),
        # Nothing that full says at turn 1 is an action: its words are compared.
        ([asked(1, None, 1.0), asked(2, None, 0.8), asked(3, False, 0.1)], (2, "text")),
        ([asked(1, True, 1.0), asked(2, None, 1.0)], (None, None)),
    ],
)
def test_the_first_departure_is_found_and_says_in_what(
    rows: Sequence[dict[str, Any]], found: tuple[int | None, str | None]
) -> None:
    assert diverged(rows) == found


def tokens(shares: Sequence[float], masses: Sequence[float | None]) -> list[dict[str, Any]]:
    """Two tokens a turn."""
    return [
        {"position": at, "turn": at // 2, "kind": "tool", "text": f" {at}", "share": share, "mass_full": mass}
        for at, (share, mass) in enumerate(zip(shares, masses, strict=True))
    ]


def test_lost_tokens_are_the_dropped_of_the_past_by_their_mass() -> None:
    kept = tokens([0.0, 1.0, 0.4, 0.5, 0.1, 0.0, 0.0, 0.0], [1, 9, 3, 8, 2, 7, 6, 5])

    def lost(delay: int, turn: int | None) -> list[int]:
        found = most_lost(kept, delay, turn)
        assert found is not None
        return [token["position"] for token in found]

    assert lost(0, 3) == [5, 2, 4, 0], "held by half is not dropped; turn 3 is not yet past"
    assert lost(1, 3) == [2, 0], "turn 2 is compacted when turn 3 closes"
    assert lost(0, None) == [5, 6, 7, 2, 4, 0]
    assert lost(0, 0) == []
    (first, *_) = most_lost(kept, 0, None) or []
    assert (first["mass"], first["share"], first["around"]) == (7, 0.0, " 0 1 2 3 4 5 6 7")
    assert AROUND == 5
    many = most_lost(tokens([0.0] * 30, list(range(30))), 0, None)
    assert [token["position"] for token in many or []] == list(range(29, 19, -1)), "ten at most"


def test_without_masses_nothing_is_claimed() -> None:
    assert most_lost(tokens([0.0, 0.0], [None, None]), 0, None) is None


def test_the_goal_is_the_system_prompt_the_first_request_and_the_answers() -> None:
    words = [
        "<s>",
        "system",
        "\n",
        " Be",
        " kind",
        ".",
        "\n",
        "{schema}",
        "user",
        "\n",
        "Find",
        " Ann",
        "'s room",
        "</s>",
    ]
    rows = [{"turn": 0, "kind": "prefix", "text": word} for word in words]
    rows += [{"turn": 0, "kind": "tool", "text": word} for word in ("Find", " room", " 12")]
    goals = Goals({0: {"12"}}, {"system": "  Be kind.\n", "request": "Find Ann's room"})
    marked = [goal for _, goal in with_goals(rows, goals)]
    assert marked == [None] * 3 + ["system"] * 3 + [None] * 4 + ["request"] * 3 + [None] * 3 + ["answer"]
    assert [row["text"] for row, _ in with_goals(rows, goals)] == [row["text"] for row in rows]


def test_a_fabricated_run_says_what_was_compacted_and_how_long_it_took(tmp_path: Path) -> None:
    store, run = replay_run(tmp_path)
    found = inspect(store, run, "a/1")
    full, te = found["explained"]
    assert (full["policy"], te["policy"]) == (FULL, TE)
    assert [turn["ttft_s"] for turn in full["turns"]] == [1.0] * 3
    assert [turn["kv_tokens"] for turn in te["turns"]] == [100.0] * 3
    assert [turn["ttft_s"] for turn in te["turns"]] == [None] * 3, "its latency has no rows by turn"
    assert te["lost"] is None
    assert (te["diverged_turn"], te["diverged_by"]) == (None, None), "no agreement by turn in these rows"
    text = inspect_text(found)
    assert "replay with --explain" in text
    assert "seconds were not measured for this trajectory" in text
    one = inspect(store, run, "a/1", turn=1, policy=TE)["explained"]
    assert [(entry["policy"], [turn["turn"] for turn in entry["turns"]]) for entry in one] == [(TE, [1])]


def test_a_real_run_is_explained(tmp_path: Path) -> None:
    """Tiny model: every figure is there, and the lost tokens are what the kept rows say."""
    store, sample = Store.open(tmp_path / "store"), samples.load()[0]
    cut = replace(sample, turns=sample.turns[:4], probes=())
    run = run_replay(
        store=store,
        trajectories=[cut],
        model=str(save_tiny(tmp_path / "model")),
        policies=[TE],
        measure="both",
        latency_repeats=1,
        dtype="float32",
        threads=1,
        explain=True,
        progress=False,
    )
    found = inspect(store, run, sample.id, turn=1)
    full, te = found["explained"]
    assert full["diverged_turn"] is None
    assert full["lost"] == [], "nothing was dropped"
    assert te["diverged_by"] == "likeliest token"
    assert te["diverged_turn"] >= 2, "turn 0 is compacted when turn 1 has closed"
    masses = [token["mass"] for token in te["lost"]]
    assert masses == sorted(masses, reverse=True)
    assert len(masses) == 10
    assert all(token["share"] < 0.5 and token["turn"] + 1 < te["diverged_turn"] for token in te["lost"])
    (turn,) = te["turns"]
    assert turn["turn"] == 1
    assert turn["compactions"] > 0
    assert turn["prefill_s"] > 0
    assert turn["compaction_s"] is not None
    goals = {token["goal"] for token in inspect(store, run, sample.id, turn=0)["tokens"][TE]}
    assert {"system", "request"} <= goals
    text = inspect_text(found)
    assert f"{TE}: first at turn {te['diverged_turn']}: the likeliest next token" in text
    assert "dropped before that, most attention first" in text
    assert "compaction s" in explained_text(found["explained"])
