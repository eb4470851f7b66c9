"""The exact invariants of compaction (compaction.md, section 9) with real weights in float32. Slow: `make test-slow`.

The tiny random models of the other tests have small logits and blunt attention; here both are as in use.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from masking import masked_pass
from torch import Tensor

from kvmill.replay.branch import Branch, Lane
from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Lockstep
from kvmill.replay.model import head, load_model
from kvmill.replay.policies.am_state import AttentionMatchingState
from kvmill.replay.policies.proxy_state import ProxyState
from kvmill.replay.policies.registry import parse_policies
from kvmill.replay.segments import turns_of
from kvmill.replay.weights import ALIASES, cached_file
from kvmill.traces import samples
from kvmill.traces.tokens import TokenTrajectory, tokenize

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MODELS = ("smollm2-135m", "gemma3-270m")
ASKED = 6  # tokens fed to compare logits with
SAME = (
    "te(keep=0.2)",
    "te(proxy=boundary+repeat,keep=0.3,normaliser=global)",
    "am(proxy=repeat,keep=0.2)",
    "snapkv(keep=0.2)",
    "kvzip(keep=0.2)",
    "attention(keep=0.3)",
)

Text = tuple[Forward, TokenTrajectory]


@pytest.fixture(scope="module", params=MODELS)
def real(request: pytest.FixtureRequest) -> Text:
    """A model and a bundled sample in its tokens."""
    if not cached_file(ALIASES[request.param]).is_file():
        pytest.skip(f"{request.param} is not in the cache: kvmill models pull {request.param}")
    model = load_model(request.param, dtype="float32", threads=1)
    return Forward(model), tokenize(samples.load()[0], model.tokenizer)


def begun(real: Text, policies: list[str]) -> Lockstep:
    forward, text = real
    return Lockstep(forward, text, parse_policies(policies), seed=0)


def fed(step: Lockstep, turns: int, on_chunk: Callable[[list[Lane], Tensor], None] | None = None) -> Iterator[int]:
    """Feed the first turns; stops before each is closed."""
    for turn, segments in enumerate(turns_of(step.trajectory)[:turns]):
        for s in segments:
            for chunk in step.chunks(s):
                lanes, hidden = step.feed(chunk)
                if on_chunk is not None and hidden is not None:
                    on_chunk(lanes, hidden)
        yield turn


def evicted(step: Lockstep) -> tuple[Branch, Branch]:
    """`full` and the policy just after its first eviction: both have had the same past so far."""
    full, branch = step.branches
    for turn, segments in enumerate(turns_of(step.trajectory)):
        for s in segments:
            for chunk in step.chunks(s):
                step.feed(chunk)
                step.look(chunk)
                if branch.counters.compactions:
                    return full, branch
        step.compact(turn)
        assert branch.error is None
        if branch.counters.compactions:
            return full, branch
    pytest.fail("nothing was evicted")


def logits(forward: Forward, hidden: Tensor) -> Tensor:
    return head(forward.model.module, hidden).float()


def following(step: Lockstep) -> list[int]:
    """The recorded tokens that come next."""
    return step.ids[step.logical : step.logical + ASKED]


def everything_is_due(state: ProxyState) -> None:
    """At keep=1 nothing would be evicted: have every segment scored, selected and fitted nevertheless."""
    state.due_spans = lambda turn: [  # type: ignore[method-assign]
        (s, s.count) for s in state.spans if s.segment.turn == turn and s.segment.kind in ("assistant", "tool")
    ]


@pytest.mark.parametrize("policy", ["te(keep=1)", "am(keep=1,fallback=none)"])
@torch.inference_mode()
def test_keep_one_through_selection_and_fit_gives_the_logits_of_full(real: Text, policy: str) -> None:
    forward, _ = real
    step = begun(real, [policy])
    branch = step.branches[1]
    state = branch.state
    assert isinstance(state, ProxyState)
    everything_is_due(state)
    differences: list[float] = []

    def compare(lanes: list[Lane], hidden: Tensor) -> None:
        if len(lanes) == 2:
            full, kept = logits(forward, hidden[:, -ASKED:])
            differences.append(float((full - kept).abs().max()))

    for turn in fed(step, 4, compare):
        step.compact(turn)
        assert branch.error is None
    assert branch.counters.compactions == 6  # assistant and tool of three turns
    assert branch.rows == step.logical
    if isinstance(state, AttentionMatchingState):
        assert (state.fits > 0, state.fallbacks) == (True, 0)
        bias = branch.lane.cache.bias(0)
        assert bias is not None
        assert not bias.any()
    assert len(differences) >= 4  # the first compaction is that of turn 0, when turn 1 closes
    assert max(differences) < 1e-4


@pytest.mark.parametrize("policy", ["te(keep=0.2)", "snapkv(keep=0.2)", "random(keep=0.2)", "attention(keep=0.3)"])
@torch.inference_mode()
def test_an_evicted_cache_is_the_full_cache_with_the_evicted_keys_masked(real: Text, policy: str) -> None:
    forward, _ = real
    step = begun(real, [policy])
    full, branch = evicted(step)
    assert branch.rows < full.rows
    ids = following(step)
    want = logits(forward, masked_pass(forward, full.lane, branch.index, ids))
    with branch.lane.taken_back():
        got = logits(forward, forward.feed([branch.lane], ids)[0])
    assert float((got - want).abs().max()) < 1e-3
    # The canaries: rows counted as positions, and a mask that lacks one key of every head, must not pass.
    with branch.lane.taken_back():
        branch.lane.position = branch.lane.cache.rows
        moved = logits(forward, forward.feed([branch.lane], ids)[0])
    assert float((moved - want).abs().max()) > 1e-1
    fewer = logits(forward, masked_pass(forward, full.lane, branch.index[..., 1:], ids))
    assert float((fewer - want).abs().max()) > 1e-2


@pytest.mark.parametrize("policy", ["te(keep=0.2)", "am(keep=0.2)"])
@torch.inference_mode()
def test_the_order_of_the_kept_rows_does_not_matter(real: Text, policy: str) -> None:
    """Keys carry their rotation: rows, with their β, may lie anywhere, another order in every head."""
    forward, _ = real
    step = begun(real, [policy])
    _, branch = evicted(step)
    ids, lane = following(step), branch.lane
    with lane.taken_back():
        want = logits(forward, forward.feed([lane], ids)[0])
    draw = torch.Generator().manual_seed(3)
    orders = torch.stack(
        [torch.randperm(branch.rows, generator=draw) for _ in range(branch.index.shape[0] * branch.index.shape[1])]
    ).view(branch.index.shape)
    before = lane.cache.view(0)[0].clone()
    lane.cache.evict(0, orders)
    assert lane.cache.rows == branch.rows
    assert not torch.equal(lane.cache.view(0)[0], before)
    with lane.taken_back():
        got = logits(forward, forward.feed([lane], ids)[0])
    assert float((got - want).abs().max()) < 1e-3
    if policy.startswith("am"):
        # The canary: β at other rows than their keys.
        bias = lane.cache.bias(0)
        assert bias is not None
        for slot in range(forward.shape.layers):
            rows = lane.cache.bias(slot)
            assert rows is not None
            rows.copy_(rows.roll(1, dims=1))
        with lane.taken_back():
            rolled = logits(forward, forward.feed([lane], ids)[0])
        assert float((rolled - want).abs().max()) > 1e-2


@pytest.mark.parametrize("policy", ["te(proxy=repeat,keep=0.2)", "am(proxy=repeat,keep=0.2)", "kvzip(keep=0.2)"])
def test_sliding_layers_are_untouched_by_compaction_and_by_copies(real: Text, policy: str) -> None:
    forward, _ = real
    sliding = forward.model.layer_counts().get("sliding", 0)
    if not sliding:
        pytest.skip("this model has no sliding layers")
    step = begun(real, [policy])
    branch = step.branches[1]
    for turn in fed(step, 2):
        rows, position, before = branch.rows, branch.lane.position, digest(branch.lane)
        step.compact(turn)
        assert branch.error is None
        assert branch.counters.copied_tokens > 0
        assert branch.rows < rows
        assert len(branch.lane.fixed.sliding) == sliding
        assert (branch.lane.position, digest(branch.lane)) == (position, before)
        step.settle(turn)


def digest(lane: Lane) -> str:
    """Of everything that sliding layers hold."""
    out = hashlib.sha256()
    for layer, pair in sorted(lane.fixed.sliding.items()):
        out.update(str(layer).encode())
        for state in pair:
            out.update(state.contiguous().numpy().tobytes())
    return out.hexdigest()


PROGRAM = """
import hashlib, sys
from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Lockstep
from kvmill.replay.model import load_model
from kvmill.replay.policies.registry import parse_policies
from kvmill.replay.segments import turns_of
from kvmill.traces import samples
from kvmill.traces.tokens import tokenize

model = load_model("smollm2-135m", dtype="float32", threads=1)
step = Lockstep(Forward(model), tokenize(samples.load()[0], model.tokenizer), parse_policies(sys.argv[1:]), seed=0)
for turn, segments in enumerate(turns_of(step.trajectory)[:2]):
    for s in segments:
        for chunk in step.chunks(s):
            step.feed(chunk)
            step.look(chunk)
    step.compact(turn)
    step.settle(turn)
for branch in step.branches:
    assert branch.error is None, branch.error
    held = [branch.index.numpy().tobytes()]
    held += [t.numpy().tobytes() for slot in range(30) for t in branch.lane.cache.view(slot)]
    print(branch.policy, branch.rows, hashlib.sha256(b"".join(held)).hexdigest())
"""


def test_the_same_identity_keeps_the_same_rows_in_another_process() -> None:
    """Indices and contents, bit for bit, whatever order sets and dictionaries of strings have there."""
    if not cached_file(ALIASES["smollm2-135m"]).is_file():
        pytest.skip("smollm2-135m is not in the cache: kvmill models pull smollm2-135m")
    said = []
    for seed in ("1", "2"):
        environ = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", PROGRAM, *SAME]
        done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
        assert done.returncode == 0, done.stderr[-500:]
        said.append(done.stdout.splitlines())
    assert said[0] == said[1]
    rows = [int(line.split()[1]) for line in said[0]]
    assert len(rows) == 1 + len(SAME)
    assert all(count < rows[0] for count in rows[1:])
