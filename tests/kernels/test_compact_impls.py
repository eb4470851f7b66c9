"""The fast forms of `compact_kv` move what the reference moves, bit for bit, whatever the layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvmill.kernels import compact, reference

ON_GPU = torch.cuda.is_available()
SHAPES = [
    # (layers, H_kv, n, D, D_v, m)
    (2, 3, 63, 64, 64, 13),
    (3, 1, 129, 80, 128, 129),
    (1, 8, 1000, 128, 64, 333),
    (2, 2, 129, 256, 256, 1),
    (1, 2, 63, 512, 80, 0),
]
SMALL = [(2, 2, 63, 80, 64, 13), (1, 1, 129, 64, 80, 129), (1, 2, 63, 512, 80, 0)]
CASES = [("torch", shape) for shape in SHAPES] + [("triton", shape) for shape in (SHAPES if ON_GPU else SMALL)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def drawn(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values (layers, H_kv, n, ·), and ascending lists (layers, H_kv, m)."""
    layers, heads, count, dim, value_dim, keep = shape
    generator = torch.Generator().manual_seed(sum(shape))
    keys = torch.randn(layers, heads, count, dim, generator=generator)
    values = torch.randn(layers, heads, count, value_dim, generator=generator)
    order = torch.rand(layers, heads, count, generator=generator).argsort(-1)
    index = order[..., :keep].sort(-1).values
    return keys.to(device, dtype), values.to(device, dtype), index.to(device)


def truth(x: Tensor, index: Tensor) -> Tensor:
    """The reference, layer by layer; lists without leading dimensions serve all."""
    lists = index.expand(*x.shape[:2], -1)
    return torch.stack([reference.compact_kv(layer, layer, rows)[0] for layer, rows in zip(x, lists, strict=True)])


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("impl", "shape"), CASES, ids=str)
@pytest.mark.parametrize("in_place", [False, True], ids=["new", "in-place"])
def test_kept_rows_are_those_of_the_reference(
    impl: Any, shape: tuple[int, ...], dtype: torch.dtype, in_place: bool, device: torch.device
) -> None:
    keys, values, lists = drawn(shape, dtype, device)
    for index in (lists, lists[0], lists[0, 0]):
        want = truth(keys, index), truth(values, index)
        given = keys.clone(), values.clone()
        got = compact.compact_kv(*given, index, in_place=in_place, impl=impl)
        for moved, right, room in zip(got, want, given, strict=True):
            assert torch.equal(moved, right)
            assert (moved.data_ptr() == room.data_ptr()) is (in_place and moved.numel() > 0)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("impl", ["reference", "torch", "triton"])
@pytest.mark.parametrize("in_place", [False, True], ids=["new", "in-place"])
def test_layers_may_be_tensors_of_their_own(impl: Any, in_place: bool, device: torch.device) -> None:
    keys, values, index = drawn(SMALL[0], torch.bfloat16, device)
    apart = [x.clone() for x in keys], [x.clone() for x in values]
    got = compact.compact_kv(*apart, index, in_place=in_place, impl=impl)
    for moved, right in zip(got, (truth(keys, index), truth(values, index)), strict=True):
        assert isinstance(moved, list)
        assert torch.equal(torch.stack(moved), right)
    one = compact.compact_kv(apart[0][0], apart[1][0], index[0] % keys.shape[2], impl=impl)
    assert one[0].shape == (2, 13, 80)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("impl", ["reference", "torch", "triton"])
@pytest.mark.parametrize("in_place", [False, True], ids=["new", "in-place"])
def test_heads_may_keep_different_numbers_of_rows(impl: Any, in_place: bool, device: torch.device) -> None:
    """Beyond a head's length: 0 in new tensors, as before in place, and its list is not read there."""
    keys, values, index = drawn(SMALL[0], torch.float32, device)
    lengths = torch.tensor([[0, 13], [5, 1]], device=device)
    beyond = torch.arange(13, device=device) >= lengths[..., None]
    lists = index.masked_fill(beyond, 10**9)
    given = keys.clone(), values.clone()
    got = compact.compact_kv(*given, lists, lengths=lengths, in_place=in_place, impl=impl)
    for moved, x in zip(got, (keys, values), strict=True):
        rest = x[:, :, :13] if in_place else torch.zeros((), device=device)
        assert torch.equal(moved, torch.where(beyond[..., None], rest, truth(x, index)))
    shared = compact.compact_kv(keys, values, index, lengths=lengths[1], impl=impl)[0]
    assert torch.equal(shared[0, 0, :5], truth(keys, index)[0, 0, :5])
    assert not shared[0, 0, 5:].any()


def layouts(shape: tuple[int, int, int], device: torch.device) -> dict[str, Tensor]:
    """(H_kv, n, D) tensors that are views of something else."""
    heads, count, dim = shape
    return {
        "front of a larger buffer": torch.randn(heads, count + 9, dim, device=device)[:, :count],
        "token by token": torch.randn(count, heads, dim, device=device).transpose(0, 1),
        "part of wider rows": torch.randn(heads, count, dim + 3, device=device)[..., 1 : dim + 1],
        "one for all heads": torch.randn(1, count, dim, device=device).expand(heads, -1, -1),
    }


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.parametrize("layout", list(layouts((1, 1, 1), torch.device("cpu"))))
def test_views_move_like_what_they_show(impl: Any, layout: str, device: torch.device) -> None:
    x = layouts((3, 63, 16), device)[layout]
    _, _, index = drawn((1, 3, 63, 1, 1, 20), torch.float32, device)
    want = reference.compact_kv(x, x, index[0])[0]
    assert torch.equal(compact.compact_kv(x, x.clone(), index[0], impl=impl)[0], want)
    if layout != "one for all heads":
        assert torch.equal(compact.compact_kv(x, x.clone(), index[0], in_place=True, impl=impl)[0], want)


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_keys_may_come_as_a_list_and_values_as_one_tensor(impl: Any, device: torch.device) -> None:
    keys, values, index = drawn((2, 2, 63, 16, 16, 20), torch.float32, device)
    for stacks in ((list(keys), values), (keys, list(values))):
        got = compact.compact_kv(*stacks, index, impl=impl)
        assert [type(x) for x in got] == [type(x) for x in stacks]
        assert torch.equal(torch.stack(list(got[0])), truth(keys, index))
        assert torch.equal(torch.stack(list(got[1])), truth(values, index))


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(1, 7), st.data())
def test_a_forward_copy_in_pieces_overwrites_nothing_that_is_needed(
    count: int, piece: int, data: st.DataObject
) -> None:
    """Whatever the pieces: rows are moved one by one here."""
    index = sorted(data.draw(st.sets(st.integers(0, count - 1))))
    x = torch.arange(count * 2.0).view(1, count, 2)
    want = x.clone()
    for to, row in enumerate(index):
        want[0, to] = x[0, row]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compact, "STAGE_BYTES", piece * 8)
        compact.compact_kv(x, x.clone(), torch.tensor(index, dtype=torch.long), in_place=True, impl="torch")
    assert torch.equal(x, want)


def test_a_forward_copy_in_pieces_on_triton(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvmill.kernels.gpu import compact as gpu

    monkeypatch.setattr(gpu, "FORWARD_BYTES", 1024)
    keys, values, index = drawn((1, 1, 200, 64, 32, 90), torch.float16, device)
    want = truth(keys, index), truth(values, index)
    got = compact.compact_kv(keys, values, index, in_place=True, impl="triton")
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


@pytest.mark.parametrize("impl", ["reference", "torch"])
@pytest.mark.parametrize(
    ("index", "lengths", "in_place", "message"),
    [
        ([[0, 7], [1, 2]], None, False, "rows must lie in 0…6, not 0…7"),
        ([[-1, 3], [1, 2]], None, False, "rows must lie in 0…6, not -1…3"),
        ([[0, 3], [2, 2]], None, True, "only where every list ascends"),
        ([[0, 3], [1, 2]], [3, 0], False, "lengths must lie in 0…2"),
        ([[0] * 8] * 2, None, True, "8 rows do not fit into 7"),
        ([[0], [1], [2]], None, False, r"index must be \(2, 1\), not \(3, 1\)"),
    ],
)
def test_misuse_is_an_error(impl: Any, index: Any, lengths: Any, in_place: bool, message: str) -> None:
    keys = torch.zeros(2, 7, 4)
    counts = None if lengths is None else torch.tensor(lengths)
    with pytest.raises(ValueError, match=message):
        compact.compact_kv(keys, keys.clone(), torch.tensor(index), lengths=counts, in_place=in_place, impl=impl)


def test_what_does_not_fit_together_is_an_error() -> None:
    keys, index = torch.zeros(2, 7, 4), torch.tensor([1])
    for values, message in (
        (torch.zeros(2, 6, 4), r"values\[0\] must be \(2, 7, 4\)"),
        (torch.zeros(2, 7, 4).half(), r"values\[0\] is torch.float16, keys\[0\] torch.float32"),
        (torch.zeros(2, 7, 8)[..., ::2], "contiguous in its last dimension"),
        (torch.zeros(3, 2, 7, 4), "values has 3 layers, keys 1"),
        (torch.zeros(2, 7, 4, device="meta"), r"values\[0\] is on meta, keys\[0\] on cpu"),
    ):
        with pytest.raises(ValueError, match=message):
            compact.compact_kv(keys, values, index, impl="torch")
    with pytest.raises(ValueError, match="index must be int64"):
        compact.compact_kv(keys, keys, index.int(), impl="torch")


def test_on_triton_a_row_that_does_not_exist_is_nan(device: torch.device) -> None:
    """The host does not wait to see the lists, so what it cannot refuse is marked."""
    keys = torch.ones(1, 7, 4, device=device, dtype=torch.bfloat16)
    got, _ = compact.compact_kv(keys, keys.clone(), torch.tensor([0, 7, -1, 6], device=device), impl="triton")
    assert got.isnan()[0, :, 0].tolist() == [False, True, True, False]
    index = torch.tensor([1, 3, 3, 6], device=device)
    got, _ = compact.compact_kv(keys, keys.clone(), index, in_place=True, impl="triton")
    assert got.isnan()[0, :, 0].tolist() == [False, False, True, False]


def paged(device: torch.device, layers: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Keys and values (layers, 9 blocks, 2 heads, 16, D), a table of 6 blocks, and 40 of its first 90 rows."""
    generator = torch.Generator().manual_seed(layers)
    keys = torch.randn(layers, 9, 2, 16, 64, generator=generator).to(device, dtype)
    values = torch.randn(layers, 9, 2, 16, 80, generator=generator).to(device, dtype)
    index = torch.rand(90, generator=generator).argsort()[:40].sort().values
    return keys, values, torch.tensor([4, 0, 8, 2, 5, 7], device=device), index.to(device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_paged_rows_move_like_the_reference_in_all_layers_at_once(
    impl: Any, dtype: torch.dtype, device: torch.device
) -> None:
    keys, values, table, index = paged(device, 2, dtype)
    want = keys.clone(), values.clone()
    for one, other in zip(*want, strict=True):
        right = reference.compact_blocks(one, other, table, 90, index)
    apart = [x.clone() for x in keys], [x.clone() for x in values]
    for stacks in ((keys, values), apart):
        used, freed = compact.compact_blocks(*stacks, table, 90, index, impl=impl)
        assert (used.tolist(), freed.tolist()) == tuple(x.tolist() for x in right) == ([4, 0, 8], [2, 5, 7])
        for moved, true in zip(stacks, want, strict=True):
            # Rows that were left behind in the blocks that stay hold what they held.
            assert torch.equal(torch.stack(list(moved)), true)


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_a_block_may_hold_its_tokens_before_its_heads(impl: Any, device: torch.device) -> None:
    """The layout of paged engines: (blocks, block, H_kv, D) in memory."""
    keys, values, table, index = paged(device, 1, torch.float32)
    want = keys[0].clone(), values[0].clone()
    reference.compact_blocks(*want, table, 90, index)
    given = [x[0].transpose(1, 2).contiguous().transpose(1, 2) for x in (keys, values)]
    compact.compact_blocks(*given, table, 90, index, impl=impl)
    assert torch.equal(given[0], want[0])
    assert torch.equal(given[1], want[1])


@settings(max_examples=40)
@given(st.integers(1, 5), st.integers(1, 23), st.integers(1, 9), st.data())
def test_paged_copies_in_pieces_equal_the_reference(block: int, rows: int, piece: int, data: st.DataObject) -> None:
    needed = -(-rows // block)
    table = torch.tensor(data.draw(st.permutations(range(needed + 2)))[:needed])
    index = torch.tensor(sorted(data.draw(st.sets(st.integers(0, rows - 1)))), dtype=torch.long)
    keys, values = torch.randn(needed + 2, 2, block, 4), torch.randn(needed + 2, 2, block, 3)
    want = keys.clone(), values.clone()
    right = reference.compact_blocks(*want, table, rows, index)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compact, "STAGE_BYTES", piece * 16)
        got = compact.compact_blocks(keys, values, table, rows, index, impl="torch")
    assert [x.tolist() for x in got] == [x.tolist() for x in right]
    assert torch.equal(keys, want[0])
    assert torch.equal(values, want[1])


def test_paged_misuse_is_an_error(device: torch.device) -> None:
    keys = torch.ones(4, 1, 3, 2, device=device)
    table = torch.tensor([1, 3], device=device)
    for rows, index, names, message in (
        (7, [0], table, "7 rows do not fit into 2 blocks of 3"),
        (5, [2, 1], table, "must ascend and lie in 0…4"),
        (5, [5], table, "must ascend and lie in 0…4"),
        (5, [1], table + 1, "blocks in 0…3"),
    ):
        with pytest.raises(ValueError, match=message):
            compact.compact_blocks(keys, keys.clone(), names, rows, torch.tensor(index, device=device), impl="torch")
    compact.compact_blocks(keys, keys.clone(), table, 5, torch.tensor([1, 5], device=device), impl="triton")
    assert keys.isnan()[1, 0, :, 0].tolist() == [False, True, False]


def test_on_triton_a_list_that_turns_back_where_a_piece_ends_is_marked(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvmill.kernels.gpu import compact as gpu

    monkeypatch.setattr(gpu, "FORWARD_BYTES", gpu.MIN_SLICE_BYTES)
    keys = torch.ones(1, 7, 4, device=device)
    index = torch.tensor([1, 5, 5, 6], device=device)
    got, _ = compact.compact_kv(keys, keys.clone(), index, in_place=True, impl="triton")
    assert got.isnan()[0, :, 0].tolist() == [False, False, True, False]
