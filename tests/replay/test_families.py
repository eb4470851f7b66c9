"""Every layer layout: the engine's pass is the library's, states fork and come back, and compaction is exact."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from families import FAMILIES, family_model
from tiny import VOCABULARY, probe, trajectory

from kvmill.replay.engine import replay
from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Lockstep
from kvmill.replay.policies.registry import parse_policies
from kvmill.replay.segments import turns_of

EXACT = {"qwen3_5": 5e-4}  # the library's chunked delta rule itself differs by 1e-4 between chunk sizes
IDS = [random.Random(4).randrange(VOCABULARY) for _ in range(90)]
CUTS = (0, 23, 24, 61, 90)
SOME = [
    "te(keep=0.3)",
    "te(proxy=repeat,keep=0.3)",
    "te(proxy=assistant+boundary,delay=2,keep=0.3,normaliser=global)",
    "attention(keep=0.3)",
    "sink_window(keep=0.3)",
    "truncate(keep=0.3)",
    "snapkv(keep=0.3)",
    "expected_attention(keep=0.3,n_future=8)",
    "rkv(keep=0.3)",
    "kvzip(keep=0.3)",
]

family = pytest.mark.parametrize("name", sorted(FAMILIES))


@family
@torch.inference_mode()
def test_chunks_through_the_engine_are_the_librarys_one_pass(name: str) -> None:
    model = family_model(name)
    want = model.module.base_model(input_ids=torch.tensor([IDS])).last_hidden_state[0]
    forward = Forward(model)
    lane = forward.new_lane()
    got = torch.cat([forward.feed([lane], IDS[a:b])[0] for a, b in itertools.pairwise(CUTS)])
    torch.testing.assert_close(got, want, atol=EXACT.get(name, 5e-5), rtol=0)


@family
@torch.inference_mode()
def test_forks_diverge_and_what_is_taken_back_leaves_no_trace(name: str) -> None:
    forward = Forward(family_model(name))
    lane = forward.new_lane()
    forward.feed([lane], IDS[:30])
    twin = lane.fork()
    other = lane.fork()
    forward.feed([other], IDS[40:70])
    before = [state.clone() for state in (*_tensors(twin), *_rows(forward, twin))]
    with twin.taken_back():
        forward.feed([twin], IDS[50:80])
        assert twin.cache.rows == 60
    after = [*_tensors(twin), *_rows(forward, twin)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert twin.position == 30
    both = forward.feed([lane, twin], IDS[30:60])
    torch.testing.assert_close(both[0], both[1], atol=1e-5, rtol=0)


def _tensors(lane) -> list[torch.Tensor]:
    return [*(t for pair in lane.fixed.sliding.values() for t in pair), *lane.fixed.linear.values()]


def _rows(forward: Forward, lane) -> list[torch.Tensor]:
    return [t for slot in range(forward.shape.layers) for t in lane.cache.view(slot)]


@family
def test_footprints_are_exact_on_every_layout(name: str) -> None:
    runs = replay(Forward(family_model(name)), trajectory(turns=5), parse_policies(SOME), [probe()], seed=0)
    assert {str(r.policy): r.error for r in runs if r.error} == {}
    assert all(r.turns[-1].kv_rows < runs[0].turns[-1].kv_rows for r in runs[1:])


@family
def test_layers_that_are_left_alone_are_the_same_in_every_branch_until_rows_are_evicted(name: str) -> None:
    """Compaction itself must not touch a sliding window or a recurrent state: hashed before and after."""
    forward = Forward(family_model(name))
    step = Lockstep(forward, trajectory(turns=3), parse_policies(["te(proxy=repeat,keep=0.3)"]), seed=0)
    branch = step.branches[1]
    for turn, segments in enumerate(turns_of(step.trajectory)):
        for segment in segments:
            for chunk in step.chunks(segment):
                step.feed(chunk)
        before, rows = [t.clone() for t in _tensors(branch.lane)], branch.rows
        step.compact(turn)
        assert branch.error is None
        assert branch.rows < rows
        assert all(torch.equal(a, b) for a, b in zip(before, _tensors(branch.lane), strict=True))
        step.settle(turn)


@family
@torch.inference_mode()
def test_probes_are_answered_as_the_library_scores_the_whole_text(name: str) -> None:
    model = family_model(name)
    text, asked = trajectory(turns=2), probe()
    ids = [i for s in text.segments for i in s.ids]
    want = []
    for candidate in asked.candidates:
        whole = [*ids, *asked.stem, *candidate]
        logp = model.module(torch.tensor([whole])).logits[0].double().log_softmax(-1)
        start = len(ids) + len(asked.stem) - 1
        want.append(sum(float(logp[start + i, token]) for i, token in enumerate(candidate)))
    found = replay(Forward(model), text, parse_policies([]), [asked, probe(6)], seed=0)[0].probes[0]
    assert found.likelihoods == pytest.approx(want, abs=20 * EXACT.get(name, 2e-5))


@family
def test_keys_turn_by_the_frequencies_that_the_model_tells(name: str) -> None:
    forward = Forward(family_model(name))
    assert forward.frequencies is not None
    partial = {"qwen3_5": 2}
    assert len(forward.frequencies) == partial.get(name, forward.shape.head_dim // 2)


def test_a_truncated_text_on_sliding_windows_reads_like_a_fresh_prompt() -> None:
    for name in ("gemma3", "qwen3_5"):
        forward = Forward(family_model(name))
        step = Lockstep(forward, trajectory(turns=3), parse_policies(["truncate(keep=0.3)"]), seed=0)
        branch = step.branches[1]
        for turn, segments in enumerate(turns_of(step.trajectory)):
            for segment in segments:
                for chunk in step.chunks(segment):
                    step.feed(chunk)
            step.compact(turn)
            step.catch_up()
            step.settle(turn)
        assert branch.error is None
        fresh = forward.new_lane()
        forward.feed([fresh], [step.ids[t] for t in branch.index[0, 0].tolist()])
        a, b = forward.feed([branch.lane], IDS[:5]), forward.feed([fresh], IDS[:5])
        torch.testing.assert_close(a, b, atol=EXACT.get(name, 5e-5), rtol=0)


def test_readers_of_shared_caches_are_counted_and_asked() -> None:
    """Gemma 4: layers without a cache read an earlier one's, and their queries must score its keys too."""
    model = family_model("gemma4")
    assert [layer.kind for layer in model.layers] == ["sliding", "full", "sliding", "full", "shared", "shared"]
    assert model.shape().readers == model.shape().layers + 1
    forward, seen = Forward(model), []
    forward.feed([forward.new_lane()], IDS[:9], observers=[[lambda slot, *rest: seen.append(slot)]])
    assert seen == [0, 1, 1]
    assert model.layer_counts() == {"full": 2, "sliding": 2, "shared": 2}
