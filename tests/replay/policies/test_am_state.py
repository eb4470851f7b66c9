"""What `am` chooses for one layer, against float64 loops written from the formulas of `am.py`."""

from __future__ import annotations

import math
from random import Random

import pytest
import torch
from by_hand import draws, tensor
from choosing import GROUP, H_KV, SEED, Layer, fit, output, rows_for, sampled, scores, state_of, target, top
from hypothesis import given, settings
from torch import Tensor

from kvmill.replay.policies.am import AttentionMatching
from kvmill.replay.policies.am_state import AttentionMatchingState
from kvmill.replay.policies.registry import parse_policy
from kvmill.replay.policies.segment_state import Chosen


def am(options: str) -> AttentionMatching:
    policy = parse_policy(f"am({options})")
    assert isinstance(policy, AttentionMatching)
    return policy


def choose(
    policy: AttentionMatching, layer: Layer, keep: int, forced: list[int]
) -> tuple[Chosen, AttentionMatchingState]:
    state, view = state_of(policy, layer)
    assert isinstance(state, AttentionMatchingState)
    mask = torch.zeros(layer.keys.shape[1], dtype=torch.bool)
    mask[forced] = True
    return state.choose(view, keep, mask), state


def reference(
    policy: AttentionMatching, layer: Layer, keep: int, forced: list[int]
) -> tuple[list[list[int]], Tensor, Tensor, list[float]]:
    """Kept keys, β and values of every head, and by how much the held-out error of the fit exceeds te's (relative)."""
    n = layer.keys.shape[1]
    sources = [source for source in policy.proxy.split("+") if source in layer.queries]
    by_source = [rows_for(policy, layer, source) for source in sources]
    future = [rows for source, rows in zip(sources, by_source, strict=True) if source in ("assistant", "tool")]
    most = len(future[0][0]) if future else 10**9
    heads = [[row for rows in by_source for row in sampled(rows[h], most)] for h in range(H_KV)]
    free = keep - len(forced)
    if not heads[0]:
        return [top([0.0] * n, forced, free)] * H_KV, torch.zeros(H_KV, keep), layer.values, [math.inf] * H_KV
    index = [top(score, forced, free) for score in scores(policy, heads)]
    ridge, limit, fixed = float(policy.ridge), float(policy.beta_limit), set(forced)
    count = len(heads[0])
    order = torch.randperm(count, generator=torch.Generator().manual_seed(SEED)).tolist()
    held = order[: -(-count // 5)]
    betas, values, margins = [], [], []
    for h, rows in enumerate(heads):
        vectors, kept = layer.values[h].double().tolist(), index[h]
        old, nothing = [vectors[j] for j in kept], [0.0] * keep
        margin = -math.inf
        if policy.fallback == "heldout":
            asked = [rows[i] for i in held]
            trial = fit([rows[i] for i in order[len(held) :]], kept, fixed, vectors, ridge, limit)
            goal = target(asked, vectors)
            errors = [float((output(asked, kept, *new) - goal).norm()) for new in (trial, (nothing, old))]
            margin = math.inf if count < 2 * keep else errors[0] - errors[1]
            margin = margin if abs(margin) > 1e-9 * float(goal.norm()) else -math.inf
        beta, new = (nothing, old) if margin > 0 else fit(rows, kept, fixed, vectors, ridge, limit)
        betas.append(beta)
        values.append(new)
        margins.append(margin)
    return index, tensor(betas), tensor(values), margins


def some_problem(pick: Random) -> tuple[AttentionMatching, Layer, int, list[int]]:
    """A policy with random options, a layer, how many keys stay and which of them are forced."""
    lengths = {source: pick.choice([0, pick.randint(1, 14)]) for source in ("assistant", "tool", "repeat")}
    lengths["boundary"] = pick.randint(0, 2)
    proxies = pick.sample(sorted(lengths), pick.randint(1, 4))
    n = pick.choice([2, pick.randint(3, 30)])
    layer = Layer.random(pick.randint(0, 10**6), n, pick.choice([2, 8]), lengths)
    forced = sorted(pick.sample(range(n), pick.randint(0, min(n, 4))))
    keep = max(len(forced), pick.randint(1, min(n, 9)))
    options = [
        f"proxy={'+'.join(proxies)}",
        f"reduction={pick.choice(['rms', 'mean', 'max'])}",
        f"normaliser={pick.choice(['local', 'global'])}",
        f"granularity={pick.choice(['head', 'token'])}",
        f"ridge={pick.choice(['0.001', '0.1'])}",
        f"beta_limit={pick.choice(['3', '0.5', '0'])}",
        f"weighting={pick.choice(['none', 'share'])}",
        f"fallback={pick.choice(['heldout', 'none'])}",
    ]
    return am(",".join(options)), layer, keep, forced


@settings(max_examples=200, deadline=None)
@given(draws())
def test_the_whole_choice_is_that_of_float64_loops(pick: Random) -> None:
    policy, layer, keep, forced = some_problem(pick)
    chosen, state = choose(policy, layer, keep, forced)
    index, beta, values, margins = reference(policy, layer, keep, forced)
    assert chosen.index.tolist() == index
    assert chosen.bias is not None
    assert chosen.values is not None
    if not any(source in layer.queries for source in policy.proxies):
        values = layer.values.gather(1, chosen.index[..., None].expand(-1, -1, layer.values.shape[2]))
    torch.testing.assert_close(chosen.bias.double(), beta.double(), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(chosen.values, values, atol=1e-6, rtol=1e-6)
    worse, level = sum(m > 0 for m in margins), sum(m == -math.inf for m in margins)
    assert state.fallbacks + state.fits == len(margins)
    # Which of two equally good forms a head gets is decided by rounding, on each processor otherwise.
    assert 0 <= state.fallbacks - worse <= (level if policy.fallback == "heldout" else 0)


@settings(max_examples=60, deadline=None)
@given(draws())
def test_half_precision_caches_are_fitted_in_float32_and_beta_stays_float32(pick: Random) -> None:
    policy, layer, keep, forced = some_problem(pick)
    dtype = pick.choice([torch.float32, torch.bfloat16])
    rounded = Layer(
        layer.keys.to(dtype),
        layer.values.to(dtype),
        {source: q.to(dtype) for source, q in layer.queries.items()},
        layer.seen,
        layer.rest,
    )
    chosen, _ = choose(policy, rounded, keep, forced)
    exact = Layer(
        rounded.keys.double(),
        rounded.values.double(),
        {source: q.double() for source, q in rounded.queries.items()},
        layer.seen,
        layer.rest,
    )
    want, _ = choose(policy, exact, keep, forced)
    assert chosen.bias is not None
    assert chosen.values is not None
    assert want.bias is not None
    assert want.values is not None
    assert (chosen.bias.dtype, chosen.values.dtype) == (torch.float32, dtype)
    if not torch.equal(chosen.index, want.index) or policy.fallback == "heldout":
        return  # a near tie may fall either way in float32
    torch.testing.assert_close(chosen.bias.double(), want.bias.double(), atol=2e-3, rtol=2e-3)
    within = 2e-2 if dtype == torch.bfloat16 else 2e-3
    torch.testing.assert_close(chosen.values.double(), want.values, atol=within, rtol=within)


@settings(max_examples=100, deadline=None)
@given(draws())
def test_without_beta_the_training_error_never_exceeds_te(pick: Random) -> None:
    """V_S is feasible and free of penalty: an exact bound (compaction.md 9), also with forced rows and shares."""
    policy, layer, keep, forced = some_problem(pick)
    options = f"proxy={policy.proxy},beta_limit=0,fallback=none,weighting={policy.weighting},ridge={policy.ridge}"
    policy = am(options)
    chosen, state = choose(policy, layer, keep, forced)
    assert chosen.bias is not None
    assert chosen.values is not None
    assert not chosen.bias.any()
    _, view = state_of(policy, layer)
    rows = state.together(view)
    if rows is None:
        return
    shares = state.shares(rows, view)
    for h in range(H_KV):
        weights = (rows.queries[h] @ layer.keys[h].T * layer.scaling).softmax(-1)
        goal = weights @ layer.values[h]
        kept = (rows.queries[h] @ layer.keys[h, chosen.index[h]].T * layer.scaling).softmax(-1)
        old = layer.values[h, chosen.index[h]]
        share = torch.ones(len(goal), dtype=torch.float64) if shares is None else shares[h]
        fitted, plain = (((kept @ v - goal) * share[:, None]).norm() for v in (chosen.values[h], old))
        assert float(fitted) <= float(plain) * (1 + 1e-12) + 1e-12


@pytest.mark.parametrize("proxy", ["assistant", "tool", "repeat", "boundary"])
@pytest.mark.parametrize("rest", ["", ",normaliser=global", ",reduction=max,granularity=token"])
def test_one_source_keeps_the_keys_of_te(proxy: str, rest: str) -> None:
    for seed in range(5):
        layer = Layer.random(seed, 40, 8, {proxy: 2 if proxy == "boundary" else 30})
        forced = torch.zeros(40, dtype=torch.bool)
        forced[[0, 38]] = True
        te, view = state_of(parse_policy(f"te(proxy={proxy}{rest})"), layer)  # type: ignore[arg-type]
        chosen, _ = choose(am(f"proxy={proxy}{rest}"), layer, 9, [0, 38])
        assert torch.equal(chosen.index, te.choose(view, 9, forced).index)


def test_forced_rows_stay_verbatim_and_the_others_change() -> None:
    layer = Layer.random(1, 30, 8, {"assistant": 20})
    chosen, _ = choose(am("fallback=none"), layer, 8, [0, 13, 29])
    assert chosen.bias is not None
    assert chosen.values is not None
    kept = layer.values.gather(1, chosen.index[..., None].expand(-1, -1, 8))
    forced = torch.isin(chosen.index, torch.tensor([0, 13, 29]))
    assert int(forced.sum()) == 3 * H_KV
    assert not chosen.bias[forced].any()
    assert torch.equal(chosen.values[forced], kept[forced])
    assert bool((chosen.bias[~forced] != 0).all())
    assert bool((chosen.values[~forced] != kept[~forced]).any(-1).all())


def test_everything_kept_is_unchanged_whatever_the_rows() -> None:
    for tokens in (1, 30):
        layer = Layer.random(2, 12, 8, {"assistant": tokens}, torch.float32)
        chosen, _ = choose(am("fallback=none"), layer, 12, [3])
        assert chosen.bias is not None
        assert chosen.values is not None
        assert not chosen.bias.any()
        assert torch.equal(chosen.values, layer.values)


# -- the fallback ---------------------------------------------------------------------------------------------


def clusters(noisy: bool, seed: int, rows: int = 20) -> tuple[Tensor, Tensor, Tensor]:
    """One head: queries that repeat three questions, or are all different in more dimensions than there are rows."""
    draw = torch.Generator().manual_seed(seed)
    n, dim = 30, 64
    keys, values = (torch.randn(n, dim, generator=draw, dtype=torch.float64) for _ in range(2))
    kinds = torch.randn(GROUP * rows if noisy else 3, dim, generator=draw, dtype=torch.float64)
    queries = kinds[torch.arange(GROUP * rows) % len(kinds)] * (3 if noisy else 0.5)
    return queries.view(GROUP, rows, dim), keys, values


@pytest.mark.parametrize("noisy", [(False, False), (True, False), (False, True), (True, True)])
def test_a_head_falls_back_exactly_where_its_fit_is_worse_on_rows_held_out(noisy: tuple[bool, bool]) -> None:
    """Three questions asked again and again are learnt; a nearly free fit of noise is learnt by heart."""
    parts = [clusters(n, seed) for seed, n in enumerate(noisy)]
    layer = Layer(
        torch.stack([keys for _, keys, _ in parts]),
        torch.stack([values for _, _, values in parts]),
        {"assistant": torch.cat([queries for queries, _, _ in parts])},
        {"assistant": [30] * 20},
        {"assistant": torch.zeros(6, 20)},
        0.125,
    )
    policy = am("ridge=0.000000001")
    chosen, state = choose(policy, layer, 28, [])
    _, _, _, margins = reference(policy, layer, 28, [])
    assert [margin > 0 for margin in margins] == list(noisy)
    assert (state.fallbacks, state.fits) == (sum(noisy), 2 - sum(noisy))
    assert chosen.bias is not None
    assert chosen.values is not None
    kept = layer.values.gather(1, chosen.index[..., None].expand(-1, -1, 64))
    for h in range(2):
        assert bool(chosen.bias[h].any()) != noisy[h]
        assert torch.equal(chosen.values[h], kept[h]) == noisy[h]
    never, _ = choose(am("ridge=0.000000001,fallback=none"), layer, 28, [])
    assert never.bias is not None
    assert bool(never.bias.any(1).all())


@pytest.mark.parametrize(("tokens", "falls"), [(5, True), (6, False)])
def test_fewer_rows_than_twice_the_kept_keys_are_not_fitted(tokens: int, falls: bool) -> None:
    layer = Layer.random(4, 30, 4, {"assistant": tokens})  # 3 rows a token, 9 kept keys
    layer.queries["assistant"][:] = layer.queries["assistant"][:, :1]  # one question, asked again: easily learnt
    chosen, state = choose(am(""), layer, 9, [])
    assert (state.fallbacks, state.fits) == ((H_KV, 0) if falls else (0, H_KV))
    assert chosen.bias is not None
    assert bool(chosen.bias.any()) != falls
    assert choose(am("fallback=none"), layer, 9, [])[1].fits == H_KV


def test_without_a_query_the_forced_and_the_first_tokens_stay_as_they_are() -> None:
    for options in ("", "fallback=none", "weighting=share,normaliser=global"):
        layer = Layer.random(5, 10, 4, {})
        chosen, state = choose(am(options), layer, 4, [7])
        assert chosen.index.tolist() == [[0, 1, 2, 7]] * H_KV
        assert chosen.bias is not None
        assert not chosen.bias.any()
        assert torch.equal(chosen.values, layer.values[:, [0, 1, 2, 7]])  # type: ignore[arg-type]
        assert (state.fallbacks, state.fits) == (H_KV, 0)


# -- what rows are used ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("proxy", "want"),
    [
        ("assistant+tool+repeat+boundary", 3 * (4 + 4 + 4 + 2)),
        ("repeat+tool+assistant", 3 * (9 + 9 + 4)),
        ("repeat+boundary", 3 * (20 + 2)),
        ("tool", 27),
    ],
)
def test_other_sources_are_sampled_down_to_the_first_future_one(proxy: str, want: int) -> None:
    layer = Layer.random(6, 12, 4, {"assistant": 4, "tool": 9, "repeat": 20, "boundary": 2})
    state, view = state_of(am(f"proxy={proxy}"), layer)
    assert isinstance(state, AttentionMatchingState)
    rows = state.together(view)
    assert rows is not None
    assert rows.queries.shape[1] == want
    everything = {tuple(q) for source in layer.queries.values() for q in source.flatten(0, 1).tolist()}
    assert {tuple(q) for q in rows.queries.flatten(0, 1).tolist()} <= everything
    again, _ = state_of(am(f"proxy={proxy}"), layer)
    assert torch.equal(again.together(view).queries, rows.queries)  # type: ignore[attr-defined]


def test_rows_that_ignore_the_segment_do_not_count_under_share_weighting() -> None:
    """Half of the rows spend e^−30 of their attention here: the fit is that of the other half alone."""
    layer = Layer.random(7, 25, 6, {"assistant": 16})
    layer.rest["assistant"][:, :8] = 60.0
    layer.rest["assistant"][:, 8:] = -60.0
    half = Layer(layer.keys, layer.values, {"assistant": layer.queries["assistant"][:, 8:]}, {"assistant": [25] * 8})
    half.rest = {"assistant": layer.rest["assistant"][:, 8:]}
    options = "fallback=none,normaliser=global"
    found, alone = (choose(am(f"{options},weighting=share"), part, 6, [])[0] for part in (layer, half))
    plain = choose(am(options), layer, 6, [])[0]
    assert torch.equal(found.index, alone.index)
    torch.testing.assert_close(found.bias, alone.bias)
    torch.testing.assert_close(found.values, alone.values)
    assert not torch.allclose(found.bias, plain.bias)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["te", "am"])
def test_two_threads_keep_the_rows_of_one(name: str) -> None:
    """Large enough that torch divides the work."""
    layer = Layer.random(8, 400, 64, {"assistant": 200, "repeat": 300}, torch.float32)
    forced = torch.zeros(400, dtype=torch.bool)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            state, view = state_of(parse_policy(f"{name}(proxy=assistant+repeat)"), layer)  # type: ignore[arg-type]
            found.append(state.choose(view, 80, forced))
        finally:
            torch.set_num_threads(1)
    assert torch.equal(found[0].index, found[1].index)
    if name == "am":
        torch.testing.assert_close(found[0].bias, found[1].bias, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(found[0].values, found[1].values, atol=1e-3, rtol=1e-3)
