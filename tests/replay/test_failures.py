"""A policy that cannot go on costs its own row, says why in one line, and disturbs nobody."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from families import FAMILIES, family_model
from tiny import probe, tiny_model, trajectory

from kvmill.errors import UserError
from kvmill.replay.engine import BranchRun, replay
from kvmill.replay.forward import Forward
from kvmill.replay.policies.attention_state import AttentionState
from kvmill.replay.policies.registry import parse_policies, parse_policy
from kvmill.replay.rows import Identity
from kvmill.simulator.answers import simulate


def run(family: str, *policies: str) -> dict[str, BranchRun]:
    runs = replay(Forward(family_model(family)), trajectory(turns=3), parse_policies(policies), [probe()], 1)
    return {r.policy.name: r for r in runs}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("where", "calls"), [("begin", 4), ("observe", 12), ("fed", 6), ("look", 3)])
def test_a_policy_that_breaks_while_tokens_are_fed_costs_its_own_row(
    family: str, where: str, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = ("te(proxy=boundary)", "truncate")
    alone = run(family, *others)
    right, count = getattr(AttentionState, where), iter(range(1000))

    def breaks(self: AttentionState, *args: object) -> object:
        if next(count) >= calls:  # it has a lane of its own by then, which other layers still read in this pass
            raise ValueError("out of luck")
        return right(self, *args)

    monkeypatch.setattr(AttentionState, where, breaks)
    runs = run(family, "attention(keep=0.2)", *others)
    assert runs["attention"].error == f"ValueError: out of luck (breaks, line {breaks.__code__.co_firstlineno + 2})"
    for name in ("full", "te", "truncate"):
        assert runs[name].error is None
        assert [t.kv_rows for t in runs[name].turns] == [t.kv_rows for t in alone[name].turns]
        assert runs[name].probes[0].likelihoods == pytest.approx(alone[name].probes[0].likelihoods, abs=1e-4)


def test_a_users_mistake_is_told_in_its_own_words() -> None:
    runs = run("gemma3", "sink_window(renumber=true)", "te")
    said = "rows cannot be renumbered beside sliding-window layers, which keep their positions"
    assert (runs["sink_window"].error, runs["te"].error) == (said, None)


def test_layers_that_a_model_does_not_have_are_not_merged_in_silence() -> None:
    runs = run("llama", "merge(layers=3-9)", "te")
    assert (runs["merge"].error, runs["te"].error) == ("layers=3-9: this model has compactable layers 0-2", None)
    assert run("llama", "merge(layers=2-9)")["merge"].error is None


def test_one_policy_spelled_in_two_ways_has_one_cell() -> None:
    who = Identity("t", "s", "f", 0, "m", "x", "float32", "cpu", 1, "teacher")
    cells = {who.cell(parse_policy(text), "quality")["cell_id"] for text in ("te", "te(keep=0.2)", "te(keep=0.200)")}
    assert len(cells) == 1
    other = replace(who, trajectory_id="u").cell(parse_policy("te"), "quality")["cell_id"]
    assert other not in cells


def test_what_no_cache_can_hold_is_not_simulated(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"only kvmill\.select"):
        simulate("samples", "qwen3.5-27b", "h200", 1, policy="kvzip(scope=global)", agents=4, store=tmp_path)


def test_frequencies_are_found_whatever_policies_ran_before() -> None:
    forward = Forward(tiny_model())
    assert forward.frequencies is not None
    assert forward.frequencies.device == forward.model.device
