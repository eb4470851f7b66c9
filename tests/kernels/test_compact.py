import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmill.kernels import reference


def test_rows_are_gathered_per_head() -> None:
    keys = torch.arange(2 * 5 * 3).view(2, 5, 3).float()
    k, v = reference.compact_kv(keys, -keys, torch.tensor([[0, 4], [2, 3]]))
    assert torch.equal(k, torch.stack([keys[0, [0, 4]], keys[1, [2, 3]]]))
    assert torch.equal(v, -k)


def test_one_list_may_serve_all_heads_and_values_may_be_narrower_than_keys() -> None:
    keys, values = torch.randn(2, 5, 3).bfloat16(), torch.randn(2, 5, 2).bfloat16()
    shared = reference.compact_kv(keys, values, torch.tensor([1, 4]))
    headed = reference.compact_kv(keys, values, torch.tensor([[1, 4], [1, 4]]))
    for one, other, whole in zip(shared, headed, (keys, values), strict=True):
        assert torch.equal(one, whole[:, [1, 4]])
        assert torch.equal(one, other)
        assert one.data_ptr() != whole.data_ptr()


@settings(max_examples=80)
@given(st.integers(1, 5), st.integers(0, 23), st.sampled_from([torch.float32, torch.bfloat16]), st.data())
def test_paged_rows_move_to_the_front_and_the_other_blocks_are_freed(
    block: int, rows: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    """Against a list of slots, moved one by one; blocks of other sequences stay as they are."""
    spare = data.draw(st.integers(0, 2))
    needed = -(-rows // block) + spare
    blocks = needed + 3
    table = data.draw(st.permutations(range(blocks)))[:needed]
    index = sorted(data.draw(st.sets(st.integers(0, rows - 1)))) if rows else []
    keys = torch.randn(blocks, 2, block, 4).to(dtype)
    values = torch.randn(blocks, 2, block, 3).to(dtype)
    before = [x.clone() for x in (keys, values)]
    got, freed = reference.compact_blocks(
        keys, values, torch.tensor(table, dtype=torch.long), rows, torch.tensor(index, dtype=torch.long)
    )
    used = -(-len(index) // block)
    assert got.tolist() == table[:used]
    assert freed.tolist() == table[used:]
    for x, old in zip((keys, values), before, strict=True):
        for to, row in enumerate(index):
            old_row = old[table[row // block], :, row % block]
            assert torch.equal(x[table[to // block], :, to % block], old_row)
        others = [b for b in range(blocks) if b not in table[:used]]
        assert torch.equal(x[others], old[others])


def test_paged_form_equals_dense_form() -> None:
    torch.manual_seed(1)
    keys, values = torch.randn(6, 2, 16, 8), torch.randn(6, 2, 16, 8)
    table, index = torch.tensor([4, 0, 3, 5]), torch.arange(1, 60, 3)
    dense = [x[table].transpose(0, 1).reshape(2, 64, 8)[:, :61].clone() for x in (keys, values)]
    want = reference.compact_kv(*dense, index)
    kept, freed = reference.compact_blocks(keys, values, table, 61, index)
    assert (kept.tolist(), freed.tolist()) == ([4, 0], [3, 5])
    for paged, dense_rows in zip((keys, values), want, strict=True):
        assert torch.equal(paged[kept].transpose(0, 1).reshape(2, 32, 8)[:, :20], dense_rows)


@pytest.mark.parametrize(
    ("rows", "index", "message"),
    [
        (7, [0], "7 rows do not fit into 2 blocks of 3"),
        (5, [1, 1], "must ascend and lie in 0…4"),
        (5, [2, 1], "must ascend and lie in 0…4"),
        (5, [5], "must ascend and lie in 0…4"),
        (5, [-1, 2], "must ascend and lie in 0…4"),
    ],
)
def test_misuse_is_an_error(rows: int, index: list[int], message: str) -> None:
    keys = torch.zeros(4, 1, 3, 2)
    with pytest.raises(ValueError, match=message):
        reference.compact_blocks(keys, keys.clone(), torch.tensor([1, 3]), rows, torch.tensor(index))
