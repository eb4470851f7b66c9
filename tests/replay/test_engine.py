from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from masking import masked_pass
from tiny import probe, tiny_model, trajectory

from kvmill.replay import probes
from kvmill.replay.branch import FootprintMismatch
from kvmill.replay.engine import BranchRun, replay
from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Lockstep
from kvmill.replay.policies import state_table
from kvmill.replay.policies.base import SegmentSize
from kvmill.replay.policies.full import Full
from kvmill.replay.policies.registry import DEMO_POLICIES, parse_policies, parse_policy
from kvmill.replay.policies.te import TokenEviction
from kvmill.replay.policies.te_state import TokenEvictionState
from kvmill.replay.segments import turns_of

MANY = [
    *DEMO_POLICIES[1:],
    "te(delay=3,keep=0.3)",
    "te(proxy=assistant+boundary,keep=0.3)",
    "te(proxy=tool+assistant,delay=2,keep=0.3,granularity=token)",
    "te(proxy=boundary,keep_user=0.5)",
    "te(protect=none,reduction=max,keep_tool=0.1,keep_assistant=0.5)",
    "te(keep=0)",
    "te(proxy=repeat,keep=0.3)",
    "te(proxy=assistant+repeat,delay=2,keep=0.3,normaliser=global)",
    "te(normaliser=global,keep_user=0.4,protect=structure+sinks:2+last:5)",
    "te(proxy=boundary+repeat,normaliser=global,keep_tool=1)",
    "am(keep=0.2)",
    "am(proxy=repeat,keep=0.3,protect=none,fallback=none)",
    "am(proxy=assistant+boundary+tool,delay=2,keep=0.3,weighting=share,granularity=token)",
    "am(proxy=boundary+repeat,keep=0.1,weighting=share,keep_user=0.5)",
    "truncate(prefix=drop,keep=0.3)",
    "truncate(budget=50)",
    "sink_window(prefix=drop,keep=0.3)",
    "sink_window(keep=0.3,trigger=tokens:50)",
    "attention(locality=distance,keep=0.3)",
    "attention(locality=normalised,trigger=tokens:50,budget=40)",
    "random(trigger=threshold:1.1,keep=0.3)",
    "sink_window(renumber=true,keep=0.3)",
    "sink_window(renumber=true,prefix=drop,keep=0.3,trigger=threshold:1.1)",
    "drop_tool_outputs",
    "drop_tool_outputs(older_than=1,min_tokens=65)",
    "attention(window=30,keep=0.3)",
    "attention(decay=1,locality=normalised,keep=0.3)",
    "hybrid(keep=0.3)",
    "hybrid(prefix=drop,gamma=0,keep=0.2)",
    "hybrid(window=30,pool=20,entities=rules+role)",
    "hybrid(budget=40,window=10,entities=role,trigger=tokens:50,protect=none)",
    "merge(keep=0.3)",
    "merge(mass_bias=true,keep=0.2)",
    "merge(space=post,representative=medoid,keep=0.3)",
    "merge(layers=0-1,mass_bias=true,budget=50,protect=none)",
    "merge(prefix=drop,trigger=turn,keep=0.3)",
    "snapkv(keep=0.3)",
    "snapkv(window=5,kernel=3,delay=2,keep_user=0.4,protect=none)",
    "expected_attention(keep=0.3,n_future=16,granularity=token)",
    "expected_attention(delay=1,covariance=false,vnorm=false,protect=none)",
    "keydiff(keep=0.3)",
    "knorm(keep=0.05,protect=none)",
    "kvzip(keep=0.3)",
    "kvzip(chunk=40,delay=2,keep_user=0.5,protect=sinks:2)",
    "rkv(keep=0.3)",
    "adaptive(keep=0.2)",
    "adaptive(budget=60,delay=2)",
    "adaptive(loss=0.2,protect=none)",
]


def run(policies: Sequence[str], seed: int = 3, **kwargs: object) -> list[BranchRun]:
    torch.manual_seed(99)  # nothing may depend on the global generator
    forward = Forward(tiny_model())
    return replay(forward, trajectory(**kwargs), parse_policies(list(policies)), [probe()], seed)  # type: ignore[arg-type]


@pytest.mark.parametrize("users", [True, False])
def test_footprint_equals_live_tensors_for_every_policy(users: bool) -> None:
    runs = run(MANY, users=users)
    assert {str(r.policy): r.error for r in runs if r.error} == {}
    for r in runs:
        assert r.kept is not None
        assert math.isclose(float(r.kept.sum()), r.turns[-1].kv_rows, rel_tol=1e-5)


def test_a_wrong_footprint_fails_the_cell_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    right = TokenEviction.footprint

    def wrong(self: TokenEviction, segments: Sequence[SegmentSize]) -> list:
        return [replace(f, kv_rows=f.kv_rows + (t == 2)) for t, f in enumerate(right(self, segments))]

    monkeypatch.setattr(TokenEviction, "footprint", wrong)
    by_name = {r.policy.name: r for r in run(["te", "random"])}
    assert by_name["te"].error is not None
    assert FootprintMismatch.__name__ in by_name["te"].error
    assert "turn 2: kv_rows live" in by_name["te"].error
    assert by_name["random"].error is None
    assert len(by_name["random"].probes) == 1


def test_full_is_the_library_and_its_own_reference() -> None:
    forward = Forward(tiny_model())
    text = trajectory()
    full = replay(forward, text, [Full()], [probe()])[0]
    ids = [i for s in text.segments for i in s.ids]
    forward.model.module.set_attn_implementation("sdpa")
    logp = forward.model.module(torch.tensor([ids])).logits[0].log_softmax(-1)
    at, want = 0, []
    for s in text.segments:
        want += [-float(logp[at + i - 1, s.ids[i]]) for i in range(*s.scored)]
        at += len(s.ids)
    assert sum(t.quality.tokens for t in full.turns) == len(want)
    assert math.isclose(sum(t.quality.nll for t in full.turns), sum(want), rel_tol=1e-5)
    assert all(t.quality.kl == 0 and t.quality.agreed == t.quality.tokens for t in full.turns)
    asked = probe()
    for candidate, got in zip(asked.candidates, full.probes[0].likelihoods, strict=True):
        path = forward.model.module(torch.tensor([[*ids, *asked.stem, *candidate]])).logits[0].log_softmax(-1)
        start = len(ids) + len(asked.stem) - 1
        expected = sum(float(path[start + i, token]) for i, token in enumerate(candidate))
        assert math.isclose(got, expected, abs_tol=1e-4)


def test_same_identity_same_rows() -> None:
    first, second = run(MANY), run(MANY)
    for a, b in zip(first, second, strict=True):
        assert a.turns == b.turns
        assert a.probes == b.probes
        assert torch.equal(a.kept, b.kept)  # type: ignore[arg-type]
    other = run(["random"], seed=4)
    assert not torch.equal(other[1].kept, next(r for r in first if r.policy.name == "random").kept)  # type: ignore[arg-type]


def test_lockstep_keeps_the_same_tokens_as_running_alone() -> None:
    together = {str(r.policy): r for r in run(MANY)}
    for policy in ("te(delay=3,keep=0.3)", "attention(keep=0.2)", "truncate(keep=0.2)"):
        alone = run([policy])[1]
        assert torch.equal(alone.kept, together[policy].kept)  # type: ignore[arg-type]
        for mine, theirs in zip(alone.turns, together[policy].turns, strict=True):
            assert math.isclose(mine.quality.nll, theirs.quality.nll, rel_tol=1e-4)


@dataclass(frozen=True)
class KeepAll(TokenEviction):
    """te at keep=1 that does not take the short cut of evicting nothing."""


class KeepAllState(TokenEvictionState):
    def due_spans(self, turn: int):
        return [(s, s.count) for s in self.spans if s.segment.turn == turn and s.segment.kind != "prefix"]

    def close(self, turn: int, index, cache):
        eviction = super().close(turn, index, cache)
        return None if eviction is None else replace(eviction, segments=0)

    def choose(self, view, keep, forced):
        self.selected = super().choose(view, keep, forced)
        return self.selected


def test_keep_one_through_the_compaction_path_changes_no_logit(monkeypatch: pytest.MonkeyPatch) -> None:
    original = state_table.state_for

    def state_for(policy, *rest):
        return KeepAllState(policy, *rest) if isinstance(policy, KeepAll) else original(policy, *rest)

    monkeypatch.setattr("kvmill.replay.branch.state_for", state_for)
    from decimal import Decimal

    forward = Forward(tiny_model())
    step = Lockstep(forward, trajectory(turns=5), [Full(), KeepAll(keep=Decimal(1))], seed=0)
    worst, compared = 0.0, 0
    for turn, segments in enumerate(turns_of(step.trajectory)):
        for s in segments:
            for chunk in step.chunks(s):
                lanes, hidden = step.feed(chunk)
                if len(lanes) == 2:
                    full, kept = (forward.log_probabilities(h) for h in hidden)
                    worst, compared = max(worst, float((full - kept).abs().max())), compared + 1
        step.compact(turn)
        step.settle(turn)
    assert step.branches[1].error is None
    assert isinstance(step.branches[1].state, KeepAllState)
    assert step.branches[1].state.selected.index.shape[1] > 0
    assert compared >= 6
    assert worst < 1e-5


def feed_until_evicted(step: Lockstep) -> Iterator[int]:
    """Feed turn by turn and stop at the first eviction of the second branch: both have had the same past so far."""
    branch = step.branches[1]
    for turn, segments in enumerate(turns_of(step.trajectory)):
        for s in segments:
            for chunk in step.chunks(s):
                step.feed(chunk)
                step.look(chunk)
                if branch.counters.compactions:
                    return
        step.compact(turn)
        if branch.counters.compactions:
            return
        step.settle(turn)
        yield turn
    pytest.fail("nothing was evicted")


@pytest.mark.parametrize("policy", ["te(keep=0.2)", "random(keep=0.3)", "attention(keep=0.3)", "sink_window(keep=0.3)"])
@torch.inference_mode()
def test_an_evicted_cache_is_a_masked_full_cache(policy: str) -> None:
    forward = Forward(tiny_model())
    step = Lockstep(forward, trajectory(long_tool=90), parse_policies([policy]), seed=0)
    full, branch = step.branches
    for _ in feed_until_evicted(step):
        pass
    assert branch.rows < full.rows
    following = [3, 1, 4, 1, 5, 9, 2, 6]
    evicted = forward.feed([branch.lane], following)[0]
    masked = masked_pass(forward, full.lane, branch.index, following)
    torch.testing.assert_close(evicted, masked, atol=1e-5, rtol=0)
    # The canary: the same rows at wrong positions must not pass.
    branch.lane.cache.roll_back(branch.rows - len(following))
    branch.lane.position = branch.lane.cache.rows
    assert float((forward.feed([branch.lane], following)[0] - masked).abs().max()) > 1e-3


def test_structural_tokens_stay_in_every_head_and_layer() -> None:
    text = trajectory()
    for r in run(["te(keep=0.05)", "random(keep=0.1)", "attention(keep=0.1)"])[1:]:
        at = 0
        for s in text.segments:
            if s.kind != "prefix" and r.policy.name != "full":
                assert r.kept is not None
                assert all(float(r.kept[at + offset]) == pytest.approx(1.0) for offset in s.structural)
            at += len(s.ids)


def test_one_policy_that_raises_costs_its_own_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, *args: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(TokenEvictionState, "observe", broken)
    by_name = {r.policy.name: r for r in run(["te", "random"])}
    assert "ZeroDivisionError: planted" in str(by_name["te"].error)
    assert by_name["random"].error is None
    assert by_name["full"].error is None


def test_a_failing_reference_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Full, "footprint", lambda self, segments: [])
    with pytest.raises(RuntimeError, match="reference run failed"):
        run(["random"])


def test_probes_leave_the_cache_as_it_was() -> None:
    forward = Forward(tiny_model())
    step = Lockstep(forward, trajectory(turns=2), [Full(), parse_policy("random(keep=0.3)")], seed=0)
    for turn, segments in enumerate(turns_of(step.trajectory)):
        for s in segments:
            for chunk in step.chunks(s):
                step.feed(chunk)
        step.compact(turn)
    before = [(b.rows, b.lane.cache.nbytes, b.lane.position, b.lane.cache.view(1)[0].clone()) for b in step.branches]
    once = probes.answer_probes(forward, step.branches, [probe(i) for i in range(4)])
    again = probes.answer_probes(forward, step.branches, [probe(i) for i in range(4)])
    for branch, (rows, size, position, keys) in zip(step.branches, before, strict=True):
        assert (branch.rows, branch.lane.cache.nbytes, branch.lane.position) == (rows, size, position)
        assert torch.equal(branch.lane.cache.view(1)[0], keys)
        assert once[id(branch)] == again[id(branch)]


def test_branches_share_one_lane_until_they_diverge() -> None:
    forward = Forward(tiny_model())
    step = Lockstep(forward, trajectory(turns=3), parse_policies(["te", "te(delay=2)"]), seed=0)
    counts = []
    for turn, segments in enumerate(turns_of(step.trajectory)):
        for s in segments:
            for chunk in step.chunks(s):
                step.feed(chunk)
        counts.append(len(step.lanes()))
        step.compact(turn)
    assert counts == [1, 1, 2]
    assert len(step.lanes()) == 3
