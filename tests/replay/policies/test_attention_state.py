"""Activity of `attention` in all its forms, query by query in float64, and which rows it evicts."""

from __future__ import annotations

import pytest
import torch
from stepping import Query, equal, run, start, walk, watched

from kvmill.replay.policies.attention_state import AttentionState


def by_definition(queries: list[Query], options: dict[str, str], token: int) -> float:
    """The activity of one token after all `queries`, from the formulas of the policy's docstring."""
    decay, window = float(options.get("decay", "0.99")), int(options.get("window", "0"))
    locality, distance = options.get("locality", "none"), int(options.get("distance", "16"))
    activity = most = 0.0
    for number, query in enumerate(queries):
        weight = query.weights.get(token, 0.0)
        if locality == "distance" and query.position - token < distance:
            weight = 0.0
        if window:
            share = float(number // window >= (len(queries) - 1) // window - 1)
        else:
            share = 1.0 if decay == 1 else (1 - decay) * decay ** (len(queries) - 1 - number)
        activity += share * weight
        most += share * (query.position >= token)
    return activity / most if locality == "normalised" else activity


@pytest.mark.parametrize(
    "options",
    [
        "decay=0.95",
        "decay=0.95,locality=distance,distance=5",
        "decay=0.95,locality=normalised",
        "decay=1",
        "decay=0",
        "decay=1,locality=normalised",
        "window=30",
        "window=7,locality=normalised",
        "window=1000,locality=normalised",
        "window=50,locality=distance,distance=9",
    ],
)
def test_activity_is_its_formula_written_out(options: str) -> None:
    """keep=1 never evicts, so every query of the run counts."""
    step = start(f"attention(keep=1,{options})", turns=2, users=False)
    record = watched(step)
    walk(step)
    state = step.branches[1].state
    assert isinstance(state, AttentionState)
    scores = state.scores(step.branches[1].index[:, :, state.fixed :])
    chosen = dict(part.split("=") for part in options.split(","))
    for (layer, head), queries in record.queries.items():
        assert len(queries) == state.compactable
        want = [by_definition(queries, chosen, token) for token in range(state.fixed, step.logical)]
        equal(scores[layer, head], torch.tensor(want), 2e-5 * max(1.0, *want))
    blocks = 2 if "window" in options else 1
    assert state.aux_bytes() == blocks * state.compactable * 3 * 2 * 4


@pytest.mark.parametrize("options", ["decay=0.9", "window=40", "decay=1,locality=normalised"])
def test_each_eviction_drops_the_least_active_but_the_forced(options: str) -> None:
    step = start(f"attention(keep=0.3,{options})", turns=3)
    chosen = dict(part.split("=") for part in options.split(","))
    cuts = []

    def check(tail, allowed, eviction) -> None:
        cuts.append(allowed)
        state = step.branches[1].state
        for (layer, head), queries in record.queries.items():
            tokens = tail[layer, head].tolist()
            score = {t: by_definition(queries, chosen, t) for t in tokens}
            forced = [t for t in tokens if state.is_forced[t]]  # type: ignore[attr-defined]
            free = sorted((t for t in tokens if t not in forced), key=lambda t: -score[t])
            want = sorted([*forced, *free[: allowed - len(forced)]])
            rows = (eviction.index[layer, head] - eviction.start).tolist()
            assert [tokens[r] for r in rows] == want

    record = watched(step, check)
    walk(step)
    assert len(cuts) >= 2


def test_activity_of_rows_that_stay_moves_with_them() -> None:
    step = run("attention(keep=0.3)")
    state = step.branches[1].state
    assert isinstance(state, AttentionState)
    assert state.held.shape == (1, 3, 2, step.branches[1].rows - state.fixed)
