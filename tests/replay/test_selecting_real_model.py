"""`kvmill.select` on the real small model against float64 written from the formulas, on what the library computes.

The reference takes the outputs of the library's own projections through hooks and rotates them itself: nothing of
kvmill's scoring, rotation, cache or engine is in it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import kvmill
from kvmill.errors import UserError
from kvmill.replay.model import LoadedModel, load_model
from kvmill.replay.weights import pull
from kvmill.traces import samples
from kvmill.traces.tokens import tokenize

PROMPT, FUTURE = 128, 12
LAYERS, HEADS, GROUP, DIM = 30, 3, 3, 64
ASKED = "\n\nRepeat the previous context exactly."
REPLY = "<|im_end|>\n<|im_start|>assistant\n"


@dataclass
class Heads:
    """One layer, float64: queries (9, n, 64) before and after rotation, rotated keys and plain values (3, n, 64)."""

    plain: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    try:
        pull("smollm2-135m")
    except UserError as error:
        pytest.skip(f"the small model cannot be had: {error}")
    return load_model("smollm2-135m", dtype="float32")


@pytest.fixture(scope="module")
def ids(model: LoadedModel) -> list[int]:
    """The beginning of a bundled trajectory, and what follows it."""
    text = tokenize(samples.load()[0], model.tokenizer)
    return [token for segment in text.segments for token in segment.ids][: PROMPT + FUTURE]


def observed(model: LoadedModel, ids: list[int]) -> list[Heads]:
    """One pass of the library over all ids; rotation with the library's own float32 angles."""
    module = model.module
    module.set_attn_implementation("sdpa")
    caught: dict[str, list[Tensor]] = {"q_proj": [], "k_proj": [], "v_proj": []}
    hooks = [
        getattr(layer.self_attn, name).register_forward_hook(lambda _m, _i, out, name=name: caught[name].append(out[0]))
        for layer in module.model.layers
        for name in caught
    ]
    module(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    frequencies = torch.tensor([1 / 100_000 ** (2 * i / DIM) for i in range(DIM // 2)])
    angles = (torch.arange(len(ids)).float()[:, None] * frequencies).double()
    out = []
    for q, k, v in zip(*caught.values(), strict=True):
        plain, keys, values = (x.double().view(len(ids), -1, DIM).transpose(0, 1) for x in (q, k, v))
        out.append(Heads(plain, turned(plain, angles), turned(keys, angles), values))
    return out


def turned(x: Tensor, angles: Tensor) -> Tensor:
    half = DIM // 2
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()], dim=-1)


@pytest.fixture(scope="module")
def seen(model: LoadedModel, ids: list[int]) -> list[Heads]:
    return observed(model, ids[:PROMPT])


Score = Callable[[Heads, int], list[float]]


def snapkv(x: Heads, head: int) -> list[float]:
    past, read = PROMPT - 64, torch.zeros(PROMPT - 64, dtype=torch.float64)
    for query_head in range(head * GROUP, head * GROUP + GROUP):
        for i in range(past, PROMPT):
            weights = (x.keys[head, : i + 1] @ x.queries[query_head, i] / 8).softmax(0)
            read += weights[:past] / 64 / GROUP
    padded = [0.0, 0.0, *read.tolist(), 0.0, 0.0]
    return [*(sum(padded[j : j + 5]) / 5 for j in range(past)), *(10.0 + i for i in range(64))]


def rkv(x: Heads, head: int) -> list[float]:
    past, keys, mine = PROMPT - 8, x.keys[head], slice(head * GROUP, head * GROUP + GROUP)
    read = torch.zeros(past, dtype=torch.float64)
    for i in range(past, PROMPT):
        read += (x.queries[mine, i] @ keys[:past].T / 8).max(0).values.softmax(0) / 8
    padded = [-1.0] * 3 + read.tolist() + [-1.0] * 3
    important = [max(padded[j : j + 7]) for j in range(past)]
    units = keys / (keys.norm(dim=1, keepdim=True) + 1e-8)
    table = (units @ units.T).tolist()
    for i, row in enumerate(table):
        row[i] = 0.0
        row[max((j for j, cosine in enumerate(row) if cosine > 0.5), default=0)] = 0.0
    repeats = torch.tensor(table, dtype=torch.float64).mean(0).softmax(0).tolist()
    return [*(0.07 * a - 0.93 * r for a, r in zip(important, repeats, strict=False)), *(10.0 + i for i in range(8))]


def expected_attention(x: Heads, head: int) -> list[float]:
    frequencies = torch.tensor([1 / 100_000 ** (2 * i / DIM) for i in range(DIM // 2)], dtype=torch.float64)
    angles = torch.arange(PROMPT, PROMPT + 512, dtype=torch.float64)[:, None] * frequencies
    # Column d of the mean rotation is the mean of what the rotations make of the unit vector d.
    unit = torch.eye(DIM, dtype=torch.float64)
    mean_turn = torch.stack([turned(unit[d].expand(512, -1), angles).mean(0) for d in range(DIM)], dim=1)
    total = torch.zeros(PROMPT - 4, dtype=torch.float64)
    keys = x.keys[head, 4:]
    for query_head in range(head * GROUP, head * GROUP + GROUP):
        plain = x.plain[query_head, 4:]
        centre = mean_turn @ plain.mean(0)
        spread = mean_turn @ torch.cov(plain.T, correction=0) @ mean_turn.T
        logits = keys @ centre / 8 + (keys @ spread @ keys.T).diagonal() / 128
        total += logits.softmax(0) / GROUP
    return [9e9 - i for i in range(4)] + (total * x.values[head, 4:].norm(dim=1)).tolist()


def keydiff(x: Heads, head: int) -> list[float]:
    mean = torch.stack([key / key.norm() for key in x.keys[head]]).mean(0)
    return [-float(key @ mean / key.norm() / mean.norm()) for key in x.keys[head]]


def knorm(x: Heads, head: int) -> list[float]:
    return [-float(key.norm()) for key in x.keys[head]]


def compare(got: dict[int, list[Any]], scores: list[list[list[float]]], keep: int) -> None:
    """Every head keeps the `keep` best; only scores that float32 cannot tell apart may trade places."""
    strict = 0
    for layer, head in itertools.product(range(LAYERS), range(HEADS)):
        mine, s = got[layer][head].tolist(), scores[layer][head]
        assert mine == sorted(set(mine))
        assert len(mine) == keep
        best = sorted(sorted(range(len(s)), key=lambda j: -s[j])[:keep])
        strict += mine == best
        for extra, lacking in zip(sorted(set(mine) - set(best)), sorted(set(best) - set(mine)), strict=True):
            assert s[extra] == pytest.approx(s[lacking], rel=2e-5)
    assert strict >= 0.97 * LAYERS * HEADS


@pytest.mark.parametrize("rule", [snapkv, rkv, expected_attention, keydiff, knorm])
def test_a_peer_keeps_what_its_formula_in_float64_keeps(
    model: LoadedModel, ids: list[int], seen: list[Heads], rule: Score
) -> None:
    scores = [[rule(layer, head) for head in range(HEADS)] for layer in seen]
    # A budget below snapkv's window keeps its latest tokens, which the reference ranks in the same order.
    for keep in (0.2, 0.6) if rule is snapkv else (0.4,):
        got = kvmill.select(model, ids[:PROMPT], f"{rule.__name__}(keep={keep})")
        compare(got, scores, int(keep * PROMPT))


def test_kvzip_keeps_what_a_repetition_reads(model: LoadedModel, ids: list[int]) -> None:
    prompt, encode = ids[:PROMPT], model.tokenizer.encode
    request = [*encode(ASKED, False), *encode(REPLY, True)]
    repeated = [*prompt, *request, *prompt]
    scores: list[list[list[float]]] = []
    for x in observed(model, repeated):
        heads = []
        for head in range(HEADS):
            best = torch.zeros(PROMPT, dtype=torch.float64)
            for query_head in range(head * GROUP, head * GROUP + GROUP):
                logits = x.queries[query_head, PROMPT:] @ x.keys[head].T / 8
                unseen = torch.ones_like(logits).triu(PROMPT + 1).bool()
                best = torch.maximum(best, logits.masked_fill(unseen, -math.inf).softmax(1)[:, :PROMPT].amax(0))
            heads.append(best.tolist())
        scores.append(heads)
    compare(kvmill.select(model, prompt, "kvzip(keep=0.3)"), scores, int(0.3 * PROMPT))
    everywhere = kvmill.select(model, prompt, "kvzip(keep=0.3,scope=global)")
    kept = {(layer, h, int(j)) for layer, heads in everywhere.items() for h, row in enumerate(heads) for j in row}
    ranked = sorted(
        itertools.product(range(LAYERS), range(HEADS), range(PROMPT)), key=lambda at: -scores[at[0]][at[1]][at[2]]
    )
    budget = math.floor(0.3 * LAYERS * HEADS * PROMPT)
    assert len(kept) == budget
    assert len(kept & set(ranked[:budget])) >= budget - 2
    assert len({len(row) for heads in everywhere.values() for row in heads}) > 10


def test_te_and_am_keep_what_the_future_reads(model: LoadedModel, ids: list[int]) -> None:
    scores = []
    for x in observed(model, ids):
        heads = []
        for head in range(HEADS):
            square = torch.zeros(PROMPT, dtype=torch.float64)
            for query_head in range(head * GROUP, head * GROUP + GROUP):
                for query in x.queries[query_head, PROMPT:]:
                    square += (x.keys[head, :PROMPT] @ query / 8).softmax(0) ** 2
            heads.append((square / GROUP / FUTURE).sqrt().tolist())
        scores.append(heads)
    got = kvmill.select(model, ids[:PROMPT], "te(keep=0.17)", future_ids=ids[PROMPT:])
    compare(got, scores, math.ceil(0.17 * PROMPT))
    late = kvmill.select(model, ids[:PROMPT], "te(proxy=tool,delay=3,keep=0.17)", future_ids=ids[PROMPT:])
    fitted = kvmill.select(model, ids[:PROMPT], "am(keep=0.17)", future_ids=ids[PROMPT:])
    for layer, head in itertools.product(range(LAYERS), range(HEADS)):
        assert got[layer][head].tolist() == late[layer][head].tolist() == fitted[layer][head].tolist()
        assert got[layer][head].dtype == np.int64
