"""`kvmill.select` on a tiny model: segments, protection, what must be given, and what it refuses."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from tiny import save_tiny

import kvmill
from kvmill.errors import UserError
from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Lockstep
from kvmill.replay.model import LoadedModel, load_model
from kvmill.replay.policies.full import Full
from kvmill.replay.policies.registry import parse_policy
from kvmill.replay.segments import turns_of
from kvmill.traces.tokens import TokenTrajectory, segment_of_ids

START, END = 256, 257
IDS = [random.Random(3).randrange(256) for _ in range(120)]
SCORING = ["snapkv", "expected_attention", "keydiff", "knorm", "kvzip", "rkv", "te(proxy=boundary)", "te(proxy=repeat)"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Three layers, two KV heads, with a byte-level tokenizer."""
    return load_model(str(save_tiny(tmp_path_factory.mktemp("tiny"))), dtype="float32", threads=1)


def lists(kept: dict[int, list[Any]]) -> list[list[int]]:
    return [row.tolist() for heads in kept.values() for row in heads]


@pytest.mark.parametrize("name", SCORING)
def test_one_ascending_array_per_head_of_every_layer(model: LoadedModel, name: str) -> None:
    kept = kvmill.select(model, torch.tensor(IDS), name)
    assert list(kept) == [0, 1, 2]
    assert all(len(heads) == 2 for heads in kept.values())
    for heads in kept.values():
        for row in heads:
            assert isinstance(row, np.ndarray)
            assert row.tolist() == sorted({*row.tolist()} & {*range(120)})
            assert len(row) == 24
    assert lists(kept) == lists(kvmill.select(model, IDS, parse_policy(name))), "the same again, policy as an object"


@pytest.mark.parametrize("name", ["keydiff(keep=1)", "te(proxy=boundary,keep=1)", "kvzip(keep=1)", "full"])
def test_keep_one_keeps_all(model: LoadedModel, name: str) -> None:
    assert lists(kvmill.select(model, IDS, name)) == [list(range(120))] * 6


def test_one_token_stays(model: LoadedModel) -> None:
    for name in SCORING:
        assert lists(kvmill.select(model, [5], name)) == [[0]] * 6
    for name in ("snapkv", "expected_attention", "kvzip", "rkv"):
        assert all(len(row) == 1 for row in lists(kvmill.select(model, [5, 6], f"{name}(keep=0)")))


def test_nothing_is_protected_unless_asked(model: LoadedModel) -> None:
    ids = [START, *IDS[:60], END, *IDS[60:]]
    for row in lists(kvmill.select(model, ids, "knorm(protect=structure+last:2)")):
        assert {0, 61, 120, 121} <= set(row)
    free = lists(kvmill.select(model, ids, "knorm"))
    assert free == lists(kvmill.select(model, ids, "knorm(protect=none)"))
    assert any(61 not in row for row in free)


def test_a_name_is_loaded(model: LoadedModel) -> None:
    assert lists(kvmill.select(model.name, IDS, "keydiff")) == lists(kvmill.select(model, IDS, "keydiff"))


def test_segments_are_compacted_as_in_replay(model: LoadedModel) -> None:
    """The engine on the same segments keeps the same rows, at every turn's close."""
    parts = [("prefix", 10), ("assistant", 20), ("tool", 30), ("user", 8), ("assistant", 32), ("tool", 20)]
    for policy in (
        "snapkv(keep=0.3,protect=none)",
        "te(proxy=assistant,keep=0.3,protect=none)",
        "sink_window(keep=0.3)",
    ):
        future = [7, 8, 9] if "assistant" in policy else None
        got = lists(kvmill.select(model, IDS, policy, segments=parts, future_ids=future))
        turns, at, segments = [0, 0, 0, 1, 1, 1], 0, []
        for (kind, n), turn in zip(parts, turns, strict=True):
            segments.append(segment_of_ids(kind, turn, IDS[at : at + n], model.tokenizer))  # type: ignore[arg-type]
            at += n
        if future:
            segments.append(segment_of_ids("assistant", 2, future, model.tokenizer))
        run = Lockstep(
            Forward(model), TokenTrajectory("prompt", "", "", tuple(segments)), [Full(), parse_policy(policy)], seed=0
        )
        for turn, pieces in enumerate(turns_of(run.trajectory)):
            for segment in pieces:
                for chunk in run.chunks(segment):
                    run.feed(chunk)
                    run.look(chunk)
            run.compact(turn)
        want = [[int(t) for t in row if int(t) < 120] for row in run.branches[1].index.flatten(0, 1)]
        assert run.branches[1].error is None
        assert got == want
        assert all(row[:10] == list(range(10)) for row in got), "the prefix is kept whole"
        assert len(got[0]) < 70


def test_what_comes_after_the_prompt_scores_it(model: LoadedModel) -> None:
    one = lists(kvmill.select(model, IDS, "te", future_ids=[1, 2, 3]))
    other = lists(kvmill.select(model, IDS, "te", future_ids=[200, 100, 50]))
    assert one != other
    assert one == lists(kvmill.select(model, IDS, "te(proxy=tool,delay=2)", future_ids=[1, 2, 3]))
    asked = kvmill.select(model, IDS, "te", segments=[("assistant", 100), ("user", 20)], future_ids=[1, 2, 3])
    assert all(row[-20:] == list(range(100, 120)) for row in lists(asked)), "a question belongs to the turn it opens"
    assert all(len(row) == 40 for row in lists(asked))


def test_adaptive_keeps_what_the_given_future_reads(model: LoadedModel) -> None:
    """One later turn and one segment: the model's own weights, as te takes them with a global normaliser."""
    for delay in (1, 3):
        got = lists(kvmill.select(model, IDS, f"adaptive(delay={delay})", future_ids=[200, 100, 50]))
        assert got == lists(kvmill.select(model, IDS, "te(normaliser=global)", future_ids=[200, 100, 50]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "te"}, r"policy te: assistant queries come after the prompt: give future_ids, or another proxy"),
        ({"policy": "te(proxy=assistant+tool)", "future_ids": [1]}, "give one of assistant, tool"),
        ({"policy": "adaptive"}, "policy adaptive: assistant queries come after the prompt: give future_ids$"),
        ({"token_ids": [5] * 4000, "policy": "te", "future_ids": [5] * 97}, "4097 tokens, model .* takes 4096"),
        ({"policy": "nope"}, "unknown policy 'nope'"),
        ({"segments": [("assistant", 119)]}, "segments must be .* 120 tokens in all"),
        ({"segments": [("system", 120)]}, "kinds prefix, user, assistant, tool"),
        ({"segments": [("assistant", 120), ("tool", 0)]}, "segments must be"),
        ({"segments": [("tool", 120)]}, "a tool segment must follow an assistant segment"),
        ({"segments": [("assistant", 100), ("user", 20)]}, "segments after the last turn"),
        ({"token_ids": []}, "at least one id"),
        ({"token_ids": [1, 999]}, "between 0 and 257"),
        ({"token_ids": [1], "policy": "te", "future_ids": [-1]}, "between 0 and 257"),
    ],
)
def test_what_does_not_fit_together_is_said(model: LoadedModel, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        kvmill.select(**{"model": model, "token_ids": IDS, "policy": "knorm", **arguments})


@pytest.mark.parametrize("scope", ["uniform", "global"])
def test_kvzip_in_chunks_is_what_the_library_attends_to(model: LoadedModel, scope: str) -> None:
    """Chunks of 50, 50 and 20 tokens after a prefix of 9; each is repeated after the whole context, one at a time."""
    ids, encode = [*IDS[:9], *IDS], model.tokenizer.encode
    reply = encode("<|im_end|>\n<|im_start|>assistant\n", True)
    first = encode("\n\nRepeat the previous context exactly.", False)
    later = encode("\n\nRepeat the part of the previous context exactly, starting with", False)
    scores = torch.zeros(3, 2, 120, dtype=torch.float64)
    for begin in (0, 50, 100):
        chunk = IDS[begin : begin + 50]
        asked = first if begin == 0 else [*later, *IDS[begin - 8 : begin]]
        copy = [*asked, *reply, *chunk]
        for layer, (queries, keys) in enumerate(_projected(model, [*ids, *copy])):
            for head in range(6):
                k = keys[head // 3]
                row = 9 + begin
                chosen = torch.cat([k[:4], k[row : row + len(chunk)], k[len(ids) :]])
                for i in range(len(copy)):
                    seen = chosen[: 4 + len(chunk) + i + 1]
                    weights = (seen @ queries[head, len(ids) + i] / math.sqrt(8)).softmax(0)[4 : 4 + len(chunk)]
                    best = scores[layer, head // 3, begin : begin + len(chunk)]
                    torch.maximum(best, weights, out=best)
    policy = f"kvzip(keep=0.31,chunk=50,scope={scope})"
    kept = kvmill.select(model, ids, policy, segments=[("prefix", 9), ("assistant", 120)])
    got = [[j - 9 for j in row if j >= 9] for row in lists(kept)]
    if scope == "uniform":
        want = [sorted(row.topk(37).indices.tolist()) for row in scores.flatten(0, 1)]
    else:
        flat = scores.flatten()
        mask = torch.zeros_like(flat).scatter(0, flat.topk(math.floor(0.31 * 720)).indices, 1.0).view(6, 120)
        want = [row.nonzero()[:, 0].tolist() for row in mask]
        assert len({len(row) for row in want}) > 1
    assert got == want


def _projected(model: LoadedModel, ids: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Rotated queries (6, n, 8) and keys (2, n, 8) per layer, float64, from the library's own attention calls."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

    caught: list[tuple[torch.Tensor, torch.Tensor]] = []

    def note(layer: Any, query: Any, key: Any, value: Any, mask: Any, **rest: Any) -> Any:
        caught.append((query[0].double(), key[0].double()))
        return ALL_ATTENTION_FUNCTIONS["sdpa"](layer, query, key, value, mask, **rest)

    AttentionInterface.register("noted", note)
    model.module.set_attn_implementation("noted")
    causal = torch.full((len(ids), len(ids)), -torch.inf).triu(1)[None, None]
    model.module(torch.tensor([ids]), attention_mask=causal)
    return caught
