"""The peers as policies: options, what they count, and which rows of a running branch they keep."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
import torch
from tiny import segment, tiny_model, trajectory

from kvmill.errors import UserError
from kvmill.replay.engine import replay
from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Lockstep
from kvmill.replay.policies.base import KvShape, SegmentSize
from kvmill.replay.policies.full import Full
from kvmill.replay.policies.kvzip import KvZip
from kvmill.replay.policies.peer_scores import (
    expected_attention_scores,
    keydiff_scores,
    knorm_scores,
    rkv_scores,
    snapkv_scores,
)
from kvmill.replay.policies.peers import ExpectedAttention, Peer, RKv, SnapKv
from kvmill.replay.policies.peers_state import SnapKvState
from kvmill.replay.policies.registry import POLICIES, parse_policies, parse_policy
from kvmill.replay.policies.segment_state import SegmentView
from kvmill.replay.policies.sight import Sight
from kvmill.replay.policies.states import Chunk, Scene
from kvmill.replay.segments import turns_of
from kvmill.traces.tokens import TokenSegment

PEERS = ["snapkv", "expected_attention", "keydiff", "knorm", "kvzip", "rkv"]


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_rounds_down_and_protects_structure_like_te(name: str) -> None:
    rule = parse_policy(name)
    assert isinstance(rule, Peer)
    assert (rule.keep, rule.delay, rule.protect, rule.granularity) == (Decimal("0.2"), 0, "structure", "head")
    sizes = [SegmentSize("tool", n) for n in (1, 4, 9, 10, 14)]
    assert [rule.kept(size) for size in sizes] == [1, 1, 1, 2, 2]
    assert rule.kept(SegmentSize("tool", 10, protected=5)) == 5
    # 0.29·100 is 28.999… in doubles.
    assert parse_policy(f"{name}(keep=0.29)").kept(SegmentSize("tool", 100)) == 29  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("snapkv(kernel=4)", "kernel=4 must be an odd whole number"),
        ("snapkv(window=0)", "window=0 must be a whole number of at least 1"),
        ("rkv(lambda=0.1)", "unknown option 'lambda'.*mix"),
        ("expected_attention(vnorm=yes)", "vnorm=yes must be one of true, false"),
        ("kvzip(scope=all)", "scope=all must be one of uniform, global"),
        ("kvzip(scope=global,granularity=token)", "give no granularity=token"),
    ],
)
def test_errors_name_what_is_known(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_policy(text)


def test_what_no_cache_can_hold_is_refused_before_anything_runs() -> None:
    with pytest.raises(UserError, match=r"kvzip\(scope=global\): heads keep unequal numbers of tokens"):
        parse_policies(["te", "kvzip(scope=global)"])


def test_defaults_are_those_of_the_authors_code() -> None:
    assert (SnapKv().window, SnapKv().kernel) == (64, 5)
    assert (RKv().window, RKv().kernel, RKv().mix, RKv().threshold) == (8, 7, Decimal("0.07"), Decimal("0.5"))
    rule = ExpectedAttention()
    assert (rule.n_future, rule.sinks, rule.covariance, rule.vnorm, rule.epsilon) == (512, 4, True, True, 0)
    assert (KvZip().scope, KvZip().sinks, KvZip().chunk) == ("uniform", 4, 2048)


@pytest.mark.parametrize(("name", "tokens"), [("snapkv", (0, 0, 1, 9, 64, 64)), ("rkv", (0, 0, 1, 8, 8, 8))])
def test_the_window_is_never_the_whole_segment(name: str, tokens: tuple[int, ...]) -> None:
    rule = parse_policy(name)
    sizes = [SegmentSize("tool", n) for n in (0, 1, 2, 10, 65, 500)]
    assert tuple(rule.own_queries(size) for size in sizes) == tokens  # type: ignore[attr-defined]
    assert rule.own_queries(SegmentSize("prefix", 500)) == 0  # type: ignore[attr-defined]


def test_kvzip_feeds_a_long_segment_in_chunks_and_holds_scores_until_the_turn_is_compacted() -> None:
    text = [
        SegmentSize("prefix", 100),
        SegmentSize("assistant", 10),
        SegmentSize("tool", 5000),
        SegmentSize("assistant", 1),
        SegmentSize("tool", 3000),
        SegmentSize("assistant", 20),
    ]
    rule = parse_policy("kvzip(delay=1,protect=none)")
    assert isinstance(rule, KvZip)
    first, later = SegmentSize("tool", 1).recall_prompts
    assert rule.pieces(text[2]) == [first + 2048, later + 8 + 2048, later + 8 + 904]
    assert rule.pieces(text[3]) == [], "one token cannot shrink, so nothing is fed for it"
    steps = rule.footprint(text)
    assert [step.copied_tokens for step in steps] == [
        first + 10 + first + later * 2 + 16 + 5000,
        first + later + 8 + 3000,
        first + 20,
    ]
    assert [step.transient_rows for step in steps] == [later + 8 + 2048, first + 2048, first + 20]
    assert [step.scalar_rows for step in steps] == [5010, 3000, 20]
    assert [step.scalar_rows_peak for step in steps] == [5010, 8010, 3020]
    assert [step.kv_rows for step in steps] == [5110, 100 + 2 + 1000 + 3001, 100 + 1002 + 1 + 600 + 20]


def test_work_grows_with_what_a_rule_computes() -> None:
    shape = KvShape(3, 2, 6, 8, 4)

    def flops(name: str, tokens: int) -> float:
        text = [SegmentSize("prefix", 9), SegmentSize("assistant", 5), SegmentSize("tool", tokens)]
        return parse_policy(name).work(text, shape)[0].flops

    for name in PEERS:
        assert 0 < flops(name, 200) < flops(name, 400)
    assert flops("rkv", 4000) > 3 * flops("rkv", 2000), "the cosines of all pairs"
    assert flops("snapkv", 4000) < 2.5 * flops("snapkv", 2000)
    assert flops("knorm", 400) < flops("keydiff", 400) < flops("snapkv", 400) < flops("kvzip", 400)


Captured = dict[tuple[int, str], tuple[int, TokenSegment, list[torch.Tensor]]]


def recorded(policy: str, turns: int) -> tuple[Lockstep, Captured]:
    """Run `turns` turns without the compaction at the end of the last; all queries by (turn, kind)."""
    step = Lockstep(Forward(tiny_model()), trajectory(users=False), [Full(), parse_policy(policy)], seed=0)
    state, captured = step.branches[1].state, Captured()
    begin, observe = state.begin, state.observe
    state.begin = lambda chunk: begin(chunk) or True  # type: ignore[method-assign]
    spot: list[tuple[int, str]] = []

    def note(layer, sight, index):
        pieces = captured[spot[-1]][2]
        pieces[layer] = torch.cat([pieces[layer], sight.queries], dim=1)
        observe(layer, sight, index)

    state.observe = note  # type: ignore[method-assign]
    for turn, segments in enumerate(turns_of(step.trajectory)[:turns]):
        for s in segments:
            spot.append((s.turn, s.kind))
            captured[spot[-1]] = (step.logical, s, [torch.zeros(6, 0, 8)] * 3)
            for chunk in step.chunks(s):
                step.feed(chunk)
        if turn < turns - 1:
            step.compact(turn)
            step.settle(turn)
    return step, captured


def float64_scores(name: str, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, first: int):
    """The scores on one layer of a segment, from all its queries (6, n, 8), in float64."""
    n = keys.shape[1]
    q, k, v = queries.double().view(2, 3, n, 8), keys.double(), values.double()
    scaling = 1 / math.sqrt(8)
    if name == "snapkv":
        return snapkv_scores(q[:, :, -min(64, n - 1) :], k, scaling, 5)
    if name == "rkv":
        return rkv_scores(q[:, :, -8:], k, scaling, 7, 0.07, 0.5)
    if name == "expected_attention":
        frequencies = torch.tensor([10000 ** (-i / 4) for i in range(4)], dtype=torch.float64)
        return expected_attention_scores(q[:, :, 4:], k, v, scaling, frequencies, first)
    return keydiff_scores(k) if name == "keydiff" else knorm_scores(k)


@pytest.mark.parametrize("protect", ["none", "structure"])
@pytest.mark.parametrize("name", [name for name in PEERS if name != "kvzip"])
def test_a_running_branch_keeps_the_best_scores_of_every_segment(name: str, protect: str) -> None:
    # Turn 3 has a tool response of 300 tokens: two chunks.
    step, captured = recorded(f"{name}(keep=0.3,protect={protect})", turns=4)
    branch = step.branches[1]
    before = [[x.clone() for x in branch.lane.cache.view(layer)] for layer in range(3)]
    held = branch.index.clone()
    step.compact(3)
    assert branch.error is None
    for kind in ("assistant", "tool"):
        first, s, queries = captured[3, kind]
        n = len(s.ids)
        forced = set(s.structural) if protect == "structure" else set()
        for layer in range(3):
            at = int((held[layer, 0] < first).sum())
            keys, values = (x[:, at : at + n] for x in before[layer])
            scores = float64_scores(name, queries[layer], keys, values, first).tolist()
            for head in range(2):
                got = {int(t) - first for t in branch.index[layer, head] if first <= int(t) < first + n}
                rest = sorted((j for j in range(n) if j not in forced), key=lambda j: -scores[head][j])
                want = forced | set(rest[: max(1, 3 * n // 10) - len(forced)])
                # A word said twice has the same norm in layer 0: float32 cannot tell its places apart.
                for extra, lacking in zip(sorted(got - want), sorted(want - got), strict=True):
                    assert scores[head][extra] == pytest.approx(scores[head][lacking], rel=1e-6)
                    assert (name, layer) == ("knorm", 0)


def test_a_budget_below_the_window_keeps_its_latest_tokens() -> None:
    step, captured = recorded("snapkv(keep=0.1,protect=none)", turns=1)
    branch = step.branches[1]
    step.compact(0)
    first, s, _ = captured[0, "tool"]
    n = len(s.ids)
    for row in branch.index.flatten(0, 1):
        assert [int(t) - first for t in row if int(t) >= first] == list(range(n - n // 10, n))


def test_layers_that_borrow_a_cache_are_more_heads_of_its_group() -> None:
    """Two readers per cache, the window split over two chunks: each reader's tokens come back in order."""
    shape = KvShape(1, 2, 4, 3, 4, readers=2)
    rule = SnapKv(window=5)
    state = SnapKvState(rule, Scene(shape, 20))
    text = segment("tool", 0, list(range(10)))
    torch.manual_seed(0)
    queries = torch.randn(2, 4, 10, 3)  # reader, query head, token
    for begin, end in ((0, 7), (7, 10)):
        assert state.begin(Chunk(text, begin, end, begin))
        for reader in range(2):
            sight = Sight(queries[reader, :, begin:end], torch.zeros(2, end, 3), 0.5)
            state.observe(0, sight, torch.zeros(2, 0))
    view = SegmentView(0, torch.zeros(2, 10, 3), torch.zeros(2, 10, 3), 0.5, text, 0, 0)
    rows = state.own_rows(view)
    want = queries[:, :, 5:].view(2, 2, 2, 5, 3).permute(1, 0, 2, 3, 4).reshape(2, 4, 5, 3)
    assert torch.equal(rows, want)


def test_a_model_without_plain_rotation_fails_the_cell_that_needs_it() -> None:
    forward = Forward(tiny_model())
    forward.__dict__["frequencies"] = None
    runs = replay(forward, trajectory(turns=2), parse_policies(["expected_attention", "knorm"]))
    assert runs[1].error is not None
    assert "does not turn its keys by plain rotary positions" in runs[1].error
    assert runs[2].error is None


def test_peers_are_listed_with_formula_and_source() -> None:
    for name in PEERS:
        cls = POLICIES[name]
        assert cls.formula
        assert "arXiv" in cls.source
        assert cls.footprint_kind == "exact"
