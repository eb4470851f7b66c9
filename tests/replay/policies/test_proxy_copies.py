"""`repeat`: a copy of the turn leaves no trace, and its queries are those of one pass."""

from __future__ import annotations

import gc

import pytest
import torch
from families import FAMILIES, family_model
from proxies import begun, close, feed
from tiny import VOCABULARY, segment, trajectory
from torch import Tensor

from kvmill.replay.lockstep import Lockstep
from kvmill.replay.policies.captures import Key
from kvmill.replay.segments import turns_of
from kvmill.traces.tokens import TokenTrajectory

family = pytest.mark.parametrize("name", sorted(FAMILIES))


def everything(step: Lockstep) -> list[Tensor]:
    """K, V, β, sliding and recurrent states of the second branch."""
    lane = step.branches[1].lane
    rows = [
        part for slot in range(step.forward.shape.layers) for part in (*lane.cache.view(slot), lane.cache.bias(slot))
    ]
    fixed = [t for pair in lane.fixed.sliding.values() for t in pair] + list(lane.fixed.linear.values())
    return [t for t in [*rows, *fixed] if t is not None]


def held_bytes() -> int:
    """Bytes of every tensor that Python can reach, each storage once."""
    gc.collect()
    found = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), Tensor):
            storage = thing.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


@family
@pytest.mark.parametrize("policy", ["te(proxy=repeat,delay=1,keep=0.3)", "am(proxy=repeat,keep=0.3,normaliser=global)"])
def test_a_copy_leaves_rows_position_and_states_bit_for_bit_and_nothing_behind(name: str, policy: str) -> None:
    step, state = begun(family_model(name), policy, trajectory(turns=2))
    feed(step, 0)
    close(step, 0)  # the branch now has a lane of its own
    feed(step, 1)
    branch = step.branches[1]
    before, aux = [t.clone() for t in everything(step)], state.aux_bytes()
    place, size, index = branch.lane.position, branch.lane.cache.nbytes, branch.index.clone()
    copies = state.copies(1)
    held = held_bytes()
    for copy in copies:
        step._copy(branch, copy)
    assert held_bytes() - held == state.aux_bytes() - aux > 0
    after = everything(step)
    assert len(before) == len(after) > 0
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert (branch.lane.position, branch.lane.cache.nbytes) == (place, size)
    assert torch.equal(branch.index, index)
    tokens = sum(len(s.ids) for s in turns_of(step.trajectory)[1])
    assert (branch.counters.transient_rows, branch.counters.copied_tokens) == (3 + tokens, 3 + tokens)


@family
def test_the_copys_queries_are_those_of_one_pass_over_everything(name: str) -> None:
    text = trajectory(turns=1)
    if name == "llama":  # a copy of several chunks
        segments = (*text.segments[:2], segment("tool", 0, [i % VOCABULARY for i in range(3, 400)]))
        text = TokenTrajectory("long", "", "", segments, prompts=text.prompts)
    step, state = begun(family_model(name), "te(proxy=repeat,delay=1)", text)
    feed(step, 0)
    (copy,) = state.copies(0)
    assert copy.ids == (7, 8, 9, *(i for s in text.segments[1:] for i in s.ids))
    step._copy(step.branches[1], copy)
    seen: dict[int, list[Tensor]] = {}
    fresh = step.forward.new_lane()
    step.forward.feed(
        [fresh],
        [*step.ids, *copy.ids],
        observers=[[lambda slot, sight: seen.setdefault(slot, []).append(sight.queries.clone())]],
    )
    first, at = len(text.segments[0].ids), len(step.ids) + 3
    for s in text.segments[1:]:
        end = at + len(s.ids)
        for slot, readers in seen.items():
            rows = state.captures.rows([Key(0, s.kind, "copy", first)], slot)
            assert rows is not None
            want = torch.cat([queries[:, at:end] for queries in readers], dim=1).reshape(rows.queries.shape)
            torch.testing.assert_close(rows.queries, want, atol=1e-3 if name == "qwen3_5" else 1e-4, rtol=0)
        first, at = first + len(s.ids), end


def test_no_copy_is_fed_and_nothing_captured_for_what_stays_whole() -> None:
    step, state = begun(family_model("llama"), "te(proxy=repeat+boundary,keep=1)", trajectory(turns=2))
    for turn in range(2):
        feed(step, turn)
        assert state.copies(turn) == ()
        assert state.aux_bytes() == 0
        close(step, turn)
    step, state = begun(family_model("llama"), "te(proxy=repeat,keep_tool=1,delay=1)", trajectory(turns=2))
    feed(step, 0)
    close(step, 0)
    assert [key.kind for key in state.captures.held()] == ["assistant"]
    assert step.branches[1].counters.copied_tokens == 0  # settled
