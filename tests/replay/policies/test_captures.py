from __future__ import annotations

import torch

from kvmill.replay.policies.base import QUERY_ROWS_CAP, KvShape
from kvmill.replay.policies.captures import Captures, Key, Rows, draw

SHAPE = KvShape(layers=2, kv_heads=2, q_heads=6, head_dim=4, dtype_bytes=4)
A, B = Key(1, "assistant", "future"), Key(2, "assistant", "future")


def numbered(tokens: range) -> torch.Tensor:
    """(6, L, 4) queries whose first number is 100·head + token."""
    out = torch.zeros(6, len(tokens), 4)
    for head in range(6):
        out[head, :, 0] = torch.tensor([100.0 * head + t for t in tokens])
    return out


def test_rows_are_grouped_head_by_head_whatever_the_chunks_and_keys() -> None:
    captures = Captures(SHAPE, 0)
    for layer in range(2):
        captures.add(A, layer, numbered(range(3)))
    for layer in range(2):
        captures.add(A, layer, numbered(range(3, 5)))
        captures.add(B, layer, numbered(range(5, 6)))
    rows = captures.rows([A, Key(9, "tool", "future"), B], 1)
    assert rows is not None
    assert rows.totals is rows.seen is None
    want = [[100 * (3 * head + g) + t for g in range(3) for t in range(6)] for head in range(2)]
    assert rows.queries[..., 0].tolist() == want
    assert captures.rows([Key(9, "tool", "future")], 0) is None
    assert captures.nbytes == 2 * 6 * 6 * 4 * 4
    captures.drop([A, Key(9, "tool", "future")])
    assert captures.held() == [B]
    assert captures.nbytes == 2 * 6 * 1 * 4 * 4


def test_what_goes_with_a_row_stays_with_it() -> None:
    """Log-sum-exps and visible tokens through chunks, grouping and the cap."""
    captures, key = Captures(SHAPE, 3), Key(0, "tool", "own", 7)
    for tokens in (range(2), range(2, 5)):
        queries = numbered(tokens)
        captures.add(key, 0, queries, queries[..., 0] + 0.5, [t + 1 for t in tokens])
    rows = captures.rows([key], 0)
    assert rows is not None
    for found in (rows, captures.capped(rows, 4)):
        assert found.totals is not None
        assert found.seen is not None
        assert torch.equal(found.totals, found.queries[..., 0] + 0.5)
        assert torch.equal(found.seen.expand(2, -1), (found.queries[..., 0] % 100 + 1).long())
    assert captures.nbytes == 6 * 5 * (4 + 1) * 4
    captures.drop([key])
    assert captures.nbytes == 0
    captures.add(key, 0, numbered(range(1)), numbered(range(1))[..., 0], [1])
    again = captures.rows([key], 0)
    assert again is not None
    assert again.seen is not None
    assert again.seen.tolist() == [1] * 3


def test_what_is_kept_is_a_copy() -> None:
    captures, queries = Captures(SHAPE, 0), numbered(range(3))
    captures.add(A, 0, queries)
    queries.zero_()
    rows = captures.rows([A], 0)
    assert rows is not None
    assert rows.queries[..., 0].max() == 502


def test_the_cap_is_a_seeded_subsample_in_order_the_same_for_all_heads() -> None:
    rows = Rows(torch.arange(QUERY_ROWS_CAP + 500).float()[None, :, None].expand(2, -1, -1))
    picks = [Captures(SHAPE, seed).capped(rows).queries[..., 0] for seed in (0, 0, 1)]
    assert picks[0].shape == (2, QUERY_ROWS_CAP)
    assert len(picks[0][0].unique()) == QUERY_ROWS_CAP
    assert torch.equal(picks[0][0], picks[0][1])
    assert torch.equal(picks[0], picks[1])
    assert not torch.equal(picks[0], picks[2])
    assert torch.equal(picks[0], picks[0].sort().values)
    few = Rows(rows.queries[:, :QUERY_ROWS_CAP])
    assert Captures(SHAPE, 0).capped(few) is few


def test_a_draw_depends_on_its_seed_alone() -> None:
    torch.manual_seed(1)
    first = draw(50, 4)
    torch.manual_seed(2)
    assert torch.equal(first, draw(50, 4))
    assert sorted(first.tolist()) == list(range(50))
    assert not torch.equal(first, draw(50, 5))
