"""A planted fault turns the night red, exit code 5, and names the policy; a clean second night is green.

The model is tiny and random, so that accuracy is chance. What sees the faults: kept tokens, KL to full, ΔNLL, the peak
KV, and the footprint that replay checks in every cell. Its figures are small, and so are the margins here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from nights import AM, POLICIES, TE, configured, filled, night
from tiny import save_tiny

from kvmill.replay.branch import Branch
from kvmill.replay.policies.am_state import AttentionMatchingState
from kvmill.replay.policies.segment import SegmentPolicy
from kvmill.replay.policies.segment_state import Chosen
from kvmill.replay.policies.states import Eviction
from kvmill.replay.policies.te_state import TokenEvictionState
from kvmill.traces.store import Store

Patch = tuple[type, str, Callable[..., Any]]
MARGINS = "[gate]\nkl = 0.003\n"


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Path]:
    """A store with one accepted night."""
    folder = tmp_path_factory.mktemp("nights")
    model = save_tiny(folder / "model")
    store, config = filled(folder / "store"), configured(folder, str(model), more=MARGINS)
    code, first, said = night(store, config)
    assert (code, first["verdict"]) == (4, "undecided")
    assert f"--accept {first['run']}" in said
    assert night(store, config, "--accept", first["run"])[0] == 0
    return store, config


def off_by_one() -> Patch:
    right = TokenEvictionState.choose

    def choose(self: TokenEvictionState, view: Any, keep: int, forced: Any) -> Chosen:
        chosen = right(self, view, keep, forced)
        return replace(chosen, index=((chosen.index + 1) % view.keys.shape[1]).sort(-1).values)

    return TokenEvictionState, "choose", choose


def lost_bias() -> Patch:
    right = AttentionMatchingState.choose

    def choose(self: AttentionMatchingState, view: Any, keep: int, forced: Any) -> Chosen:
        chosen = right(self, view, keep, forced)
        assert chosen.bias is not None
        return replace(chosen, bias=torch.zeros_like(chosen.bias))

    return AttentionMatchingState, "choose", choose


def wrong_positions() -> Patch:
    right = Branch.evict

    def evict(self: Branch, eviction: Eviction) -> None:
        right(self, eviction)
        self.lane.position = self.rows

    return Branch, "evict", evict


def dropped_prefix() -> Patch:
    """The first five rows of the prefix go with the first eviction."""
    right = TokenEvictionState.close

    def close(self: TokenEvictionState, turn: int, index: Any, cache: Any) -> Any:
        eviction = right(self, turn, index, cache)
        if not isinstance(eviction, Eviction):
            return eviction
        rest = torch.arange(5, eviction.start).expand(*eviction.index.shape[:2], -1)
        return replace(eviction, start=0, index=torch.cat([rest, eviction.index], dim=-1))

    return TokenEvictionState, "close", close


def wrong_footprint() -> Patch:
    right = SegmentPolicy.footprint

    def footprint(self: SegmentPolicy, segments: Any) -> Any:
        return [replace(turn, kv_rows=turn.kv_rows + 1) for turn in right(self, segments)]

    return SegmentPolicy, "footprint", footprint


def keeps_more() -> Patch:
    """Arithmetic and tensors agree on twice the rows: no cell fails, the peak says it."""
    right = SegmentPolicy.kept

    def kept(self: SegmentPolicy, segment: Any) -> int:
        return min(segment.tokens, 2 * right(self, segment)) if self.name == "te" else right(self, segment)

    return SegmentPolicy, "kept", kept


FAULTS: dict[str, tuple[Callable[[], Patch], set[str], str, str | None]] = {
    "off-by-one in kept indices": (off_by_one, {TE}, "REGRESSION", "kept"),
    "lost bias": (lost_bias, {AM}, "REGRESSION", "kl"),
    "wrong positions": (wrong_positions, {TE, AM}, "REGRESSION", "kl"),
    "dropped prefix": (dropped_prefix, {TE}, "STATUS_CHANGE", None),
    "wrong footprint": (wrong_footprint, {TE, AM}, "STATUS_CHANGE", None),
    "keeps more than it promised": (keeps_more, {TE}, "REGRESSION", "kv_tokens_peak"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_turns_the_night_red_and_names_the_policy(
    begun: tuple[Store, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    planted, policies, category, metric = FAULTS[name]
    monkeypatch.setattr(*planted())
    code, found, said = night(*begun)
    assert code == 5
    assert found["verdict"] == "regression"
    red = {(row["policy"], row["family"]) for row in found["rows"] if row["blocks"]}
    assert red == {(policy, family) for policy in policies for family in ("operations", "registry")}
    assert any(row["category"] == category and row["metric"] == metric for row in found["rows"] if row["blocks"])
    assert said.startswith("regression: ")
    assert any(policy in said for policy in policies)


def test_a_clean_night_is_green_again(begun: tuple[Store, Path]) -> None:
    code, found, _ = night(*begun)
    assert (code, found["verdict"]) == (0, "green")
    assert {row["policy"] for row in found["rows"]} == {"full", *POLICIES}
    assert {row["category"] for row in found["rows"]} == {"OK"}
