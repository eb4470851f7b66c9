"""`am` in the engine: composition with the rest of the cache, β at work, invariants, and the same choice every time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

import pytest
import torch
from families import FAMILIES, family_model
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_model, trajectory
from torch import Tensor

from kvmill.kernels import attention as fast
from kvmill.kernels import reference
from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Lockstep
from kvmill.replay.model import LoadedModel
from kvmill.replay.policies import state_table
from kvmill.replay.policies.am import AttentionMatching
from kvmill.replay.policies.am_state import AttentionMatchingState
from kvmill.replay.policies.full import Full
from kvmill.replay.policies.registry import parse_policies
from kvmill.replay.segments import turns_of

NEXT = [3, 1, 4, 1, 5, 9]
FITTED = "am(keep=0.3,fallback=none)"
family = pytest.mark.parametrize("name", sorted(FAMILIES))


def walked(
    model: LoadedModel, policies: Sequence[str], turns: int, threads: int = 1, shuffle: int | None = None
) -> Lockstep:
    """The first turns, short ones, footprints checked; compactions with `threads` and captures in another order."""
    step = Lockstep(
        Forward(model), trajectory(turns=turns, users=False, long_tool=60), parse_policies(policies), seed=3
    )
    torch.set_num_threads(threads)
    try:
        for turn, segments in enumerate(turns_of(step.trajectory)):
            for s in segments:
                for chunk in step.chunks(s):
                    step.feed(chunk)
            if shuffle is not None:
                for branch in step.branches[1:]:
                    reorder(branch.state.captures, random.Random(shuffle + turn))  # type: ignore[attr-defined]
            step.compact(turn)
            step.settle(turn)
    finally:
        torch.set_num_threads(1)
    assert [branch.error for branch in step.branches] == [None] * len(step.branches)
    return step


def reorder(captures: object, draw: random.Random) -> None:
    """The same dictionaries, entered in another order."""
    for held in (captures._queries, captures._totals, captures._seen):  # type: ignore[attr-defined]
        items = list(held.items())
        draw.shuffle(items)
        held.clear()
        held.update(items)


# -- composition ----------------------------------------------------------------------------------------------


def by_blocks(cuts: Sequence[int]):
    """Attention of one token, block by block of the cache, merged by log-sum-exps, in float64."""

    def attend(
        queries: Tensor, keys: Tensor, values: Tensor, scaling: float, mask: Tensor | None, bias: Tensor | None = None
    ) -> Tensor:
        if bias is None:
            return fast.chunk_attention(queries, keys, values, scaling, mask)
        assert mask is None
        ends = [*(c for c in cuts if c < keys.shape[1]), keys.shape[1]]
        parts = [
            reference.decode_attention(
                queries.double(), keys[:, a:b].double(), values[:, a:b].double(), scaling, bias=bias[:, a:b].double()
            )[:2]
            for a, b in zip([0, *ends], ends, strict=False)
        ]
        return reference.merge_partials(*zip(*parts, strict=True))[0].to(queries.dtype)

    return attend


@family
def test_compacted_blocks_and_the_rest_merge_to_what_the_engine_computes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks (K_S, β, V_C) beside raw rows: log-sum-exp merging is attention over all of it with the bias."""
    step = walked(family_model(name), [FITTED], 3)
    branch = step.branches[1]
    spans = branch.state.spans  # type: ignore[attr-defined]
    assert sum(s.count < len(s.segment.ids) for s in spans) == 4
    cuts = [s.start + s.count for s in spans]
    with branch.lane.taken_back():
        whole = torch.cat([step.forward.feed([branch.lane], [token])[0] for token in NEXT])
    monkeypatch.setattr("kvmill.replay.forward.chunk_attention", by_blocks(cuts))
    with branch.lane.taken_back():
        merged = torch.cat([step.forward.feed([branch.lane], [token])[0] for token in NEXT])
    torch.testing.assert_close(whole, merged, atol=2e-5, rtol=0)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([64, 80]), st.integers(1, 5), st.integers(2, 70), st.integers(1, 40))
def test_the_fused_kernel_composes_a_fitted_block_with_the_rest(
    seed: int, dim: int, group: int, count: int, rest: int
) -> None:
    torch.manual_seed(seed)
    keys, values, more_keys, more_values = (torch.randn(2, n, dim) for n in (count, count, rest, rest))
    index = torch.stack([torch.randperm(count)[: max(1, count // 4)].sort().values for _ in range(2)])
    beta, new = reference.ridge_fit(torch.randn(2, 90, dim), keys, values, index, dim**-0.5)
    kept, _ = reference.compact_kv(keys, values, index)
    queries = torch.randn(2 * group, 3, dim)
    parts = [
        reference.decode_attention(queries, kept, new, dim**-0.5, bias=beta)[:2],
        reference.decode_attention(queries, more_keys, more_values, dim**-0.5)[:2],
    ]
    want, _ = reference.merge_partials(*zip(*parts, strict=True))
    both = (torch.cat([kept, more_keys], dim=1), torch.cat([new, more_values], dim=1))
    bias = torch.cat([beta, torch.zeros(2, rest)], dim=1)
    got = fast.chunk_attention(queries, *both, dim**-0.5, None, bias)
    torch.testing.assert_close(got, want, atol=2e-5, rtol=0)


@family
@torch.inference_mode()
def test_without_its_beta_the_cache_says_something_else(name: str) -> None:
    """The canary: every later attention reads the bias, chunks and single tokens alike."""
    step = walked(family_model(name), [FITTED], 3)
    lane = step.branches[1].lane
    bare = lane.fork()
    for slot in range(step.forward.shape.layers):
        bias = lane.cache.bias(slot)
        assert bias is not None
        assert bool(bias.any(1).all())
        bare.cache._writable(slot, bare.cache.rows + 1).bias = None
    for ids in (NEXT, NEXT[:1]):
        with lane.taken_back(), bare.taken_back():
            difference = (step.forward.feed([lane], ids) - step.forward.feed([bare], ids)).abs().max()
        assert float(difference) > 1e-3


# -- invariants -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeepAll(AttentionMatching):
    """am at keep=1 that does not take the short cut of evicting nothing."""


class KeepAllState(AttentionMatchingState):
    def due_spans(self, turn: int):
        return [(s, s.count) for s in self.spans if s.segment.turn == turn and s.segment.kind != "prefix"]

    def close(self, turn: int, index, cache):
        eviction = super().close(turn, index, cache)
        if eviction is not None:
            assert eviction.bias is not None
            assert eviction.values is not None
            assert not eviction.bias.any()
            for layer in range(self.shape.layers):
                assert torch.equal(eviction.values[layer], cache.view(layer)[1][:, eviction.start :])
        return eviction


@family
@pytest.mark.parametrize("options", [{}, {"weighting": "share", "protect": "none"}])
def test_keep_one_through_the_fit_changes_no_logit(
    name: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = state_table.state_for

    def state_for(policy, scene):
        return KeepAllState(policy, scene) if isinstance(policy, KeepAll) else original(policy, scene)

    monkeypatch.setattr("kvmill.replay.branch.state_for", state_for)
    forward = Forward(family_model(name))
    policy = KeepAll(keep=Decimal(1), fallback="none", **options)  # type: ignore[arg-type]
    step = Lockstep(forward, trajectory(turns=4, long_tool=60), [Full(), policy], seed=0)
    worst, compared = 0.0, 0
    for turn, segments in enumerate(turns_of(step.trajectory)):
        for s in segments:
            for chunk in step.chunks(s):
                lanes, hidden = step.feed(chunk)
                if len(lanes) == 2:
                    assert hidden is not None
                    full, kept = (forward.log_probabilities(h) for h in hidden)
                    worst, compared = max(worst, float((full - kept).abs().max())), compared + 1
        step.compact(turn)
    state = step.branches[1].state
    assert step.branches[1].error is None
    assert isinstance(state, AttentionMatchingState)
    assert (state.fits > 0, state.fallbacks) == (True, 0)
    assert step.branches[1].lane.cache.bias(0) is not None
    assert compared >= 4
    # A bias takes attention through a kernel with a mask, whose rounding a recurrent state amplifies.
    assert worst < (5e-5 if name == "qwen3_5" else 1e-5)


def evictions(step: Lockstep) -> Iterator[tuple[int, Tensor]]:
    """Feed turn by turn; before each close what the branch holds: (turn, index)."""
    for turn, segments in enumerate(turns_of(step.trajectory)):
        for s in segments:
            for chunk in step.chunks(s):
                step.feed(chunk)
        yield turn, step.branches[1].index.clone()
        step.compact(turn)
        step.settle(turn)
        assert step.branches[1].error is None


def rows_by_token(step: Lockstep, layer: int, head: int) -> dict[int, tuple[bytes, bytes, float]]:
    """K, V and β of every logical token that one head still holds."""
    branch = step.branches[1]
    keys, values = (x[head].numpy() for x in branch.lane.cache.view(layer))
    bias = branch.lane.cache.bias(layer)
    betas = [0.0] * len(keys) if bias is None else bias[head].tolist()
    tokens = branch.index[layer, head].tolist()
    return {t: (keys[i].tobytes(), values[i].tobytes(), betas[i]) for i, t in enumerate(tokens)}


def test_structure_is_verbatim_keys_are_gathered_and_frozen_turns_never_change() -> None:
    text = trajectory(turns=5, long_tool=60)
    step = Lockstep(Forward(tiny_model()), text, parse_policies([FITTED]), seed=0)
    structural, compacted, at = set(), {}, 0
    for s in text.segments:
        structural |= {at + offset for offset in s.structural}
        compacted |= {at + i: s.turn for i in range(len(s.ids)) if s.kind in ("assistant", "tool")}
        at += len(s.ids)
    raw: dict[int, tuple[bytes, bytes, float]] = {}
    frozen: dict[int, tuple[bytes, bytes, float]] = {}
    changed = 0
    for turn, _ in evictions(step):
        rows = rows_by_token(step, 1, 0)
        for token, row in rows.items():
            first = raw.setdefault(token, row)
            assert row[0] == first[0]  # keys are never touched
            if compacted.get(token, 99) < turn - 1:
                assert frozen.setdefault(token, row) == row
                if token in structural:
                    assert row == first
                    assert row[2] == 0
                else:
                    changed += row[1] != first[1] and row[2] != 0
            else:
                assert row == first
                assert row[2] == 0
    assert changed > 30


@pytest.mark.parametrize(
    ("policy", "fits", "falls"),
    [
        ("am(keep=0.8)", True, True),  # three rows a token: enough for assistants, not for tools
        ("am(proxy=boundary,keep=0.5)", False, True),
        ("am(proxy=boundary,keep=0.5,fallback=none)", True, False),
    ],
)
def test_fits_and_fallbacks_count_every_head_of_every_compacted_segment(policy: str, fits: bool, falls: bool) -> None:
    step = walked(tiny_model(), [policy], 4)
    state = step.branches[1].state
    assert isinstance(state, AttentionMatchingState)
    assert state.fits + state.fallbacks == 3 * 2 * sum(f.compactions for f in step.branches[1].expected)
    assert (state.fits > 0, state.fallbacks > 0) == (fits, falls)


@pytest.mark.parametrize("rest", ["", "proxy=repeat,", "proxy=boundary,", "normaliser=global,", "granularity=token,"])
def test_the_first_compaction_keeps_the_tokens_of_te(rest: str) -> None:
    turns = 1 if rest in ("proxy=repeat,", "proxy=boundary,") else 2
    step = walked(tiny_model(), [f"te({rest}keep=0.3)", f"am({rest}keep=0.3)"], turns)
    te, am = (branch.index for branch in step.branches[1:])
    assert torch.equal(te, am)
    assert te.shape[2] < step.logical


def test_a_bfloat16_cache_holds_bfloat16_values_and_float32_betas() -> None:
    step = walked(tiny_model(torch.bfloat16), [FITTED], 3)
    cache = step.branches[1].lane.cache
    bias = cache.bias(0)
    assert bias is not None
    assert (bias.dtype, cache.view(0)[1].dtype) == (torch.float32, torch.bfloat16)
    assert bool(bias.isfinite().all())
    assert float(bias.abs().max()) <= 3


# -- the same every time --------------------------------------------------------------------------------------

SAME = [
    "te(proxy=assistant+boundary+repeat,delay=2,keep=0.3,normaliser=global)",
    "te(proxy=tool+assistant,keep=0.3,granularity=token)",
    "am(proxy=assistant+tool+repeat,delay=2,keep=0.2,weighting=share)",
    "am(keep=0.3)",
]


@pytest.mark.parametrize(("threads", "shuffle"), [(1, 5), (2, 6)])
def test_the_order_of_dictionaries_and_the_number_of_threads_change_nothing_that_is_kept(
    threads: int, shuffle: int | None
) -> None:
    once, again = walked(tiny_model(), SAME, 3), walked(tiny_model(), SAME, 3, threads, shuffle)
    for a, b in zip(once.branches, again.branches, strict=True):
        assert torch.equal(a.index, b.index)
        if threads == 1:
            for slot in range(3):
                assert torch.equal(a.lane.cache.view(slot)[1], b.lane.cache.view(slot)[1])
                if a.lane.cache.bias(slot) is not None:
                    assert torch.equal(a.lane.cache.bias(slot), b.lane.cache.bias(slot))  # type: ignore[arg-type]


def test_ties_go_to_the_lower_index_under_any_order() -> None:
    """Equal keys everywhere: every score ties."""
    kept = []
    for order in (SAME, SAME[::-1]):
        model = tiny_model()
        for block in model.module.model.layers:
            block.self_attn.k_proj.weight.data.zero_()
        step = walked(model, [p.replace("keep=0.", "protect=none,keep=0.") for p in order], 3)
        kept.append({str(b.policy): b.index.tolist() for b in step.branches})
    assert kept[0] == kept[1]
    first = turns_of(step.trajectory)[0]
    start = len(first[0].ids)
    for rows in kept[0].values():
        for head in (h for layer in rows for h in layer):
            inside = [t - start for t in head if start <= t < start + len(first[1].ids)]
            assert inside == list(range(len(inside)))
