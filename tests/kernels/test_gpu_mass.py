"""The two passes of `attention_mass` in Triton: cut into pieces, over wide rows, over views of larger tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kvmill.kernels import reference

gpu = pytest.importorskip("kvmill.kernels.gpu.mass", reason="triton is not installed")
totals = pytest.importorskip("kvmill.kernels.gpu.totals", reason="triton is not installed")
blocks = pytest.importorskip("kvmill.kernels.gpu.blocks", reason="triton is not installed")


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, device: torch.device) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def truth(queries: Tensor, keys: Tensor, scaling: float, **options: Any) -> Tensor:
    exact = {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in options.items()}
    return reference.attention_mass(queries.double(), keys.double(), scaling, **exact)


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=1e-7 * float(want.max()))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("dim", "dtype"), [(80, torch.float32), (256, torch.float32), (576, torch.bfloat16)], ids=str)
def test_rows_wider_than_a_chunk_and_no_power_of_two(dim: int, dtype: torch.dtype, device: torch.device) -> None:
    queries, keys = (drawn(1, size, dim, seed=size, dtype=dtype, device=device) for size in (9, 63))
    close(gpu.attention_mass(queries, keys, dim**-0.5), truth(queries, keys, dim**-0.5))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("reduction", ["rms", "max"])
def test_pieces_of_keys_and_of_rows_add_up_to_the_whole(
    reduction: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, keys = drawn(1, 150, 64, device=device) * 3, drawn(1, 200, 64, seed=1, device=device)
    limits = torch.arange(150, device=device) + 51
    options: dict[str, Any] = {"reduction": reduction, "limits": limits}
    want = truth(queries, keys, 0.125, **options)
    for room in (1, 12):
        monkeypatch.setattr(totals, "slots", lambda *_, room=room: room)
        monkeypatch.setattr(gpu, "slots", lambda *_, room=room: room)
        got = gpu.attention_mass(queries, keys, 0.125, **options)
        close(got, want)
        assert torch.equal(got, gpu.attention_mass(queries, keys, 0.125, **options))
    assert totals.partial_totals(queries, keys, 0.125, None, None).shape[0] > 1


@pytest.mark.usefixtures("poisoned")
def test_limits_that_leave_whole_blocks_part_of_one_or_nothing(device: torch.device) -> None:
    """A block of rows sees blocks of keys that none may, that some may, and that all may."""
    queries, keys = drawn(1, 70, 64, device=device), drawn(1, 200, 64, seed=1, device=device)
    for least, most in ((140, 201), (0, 60), (0, 1), (200, 201)):
        limits = torch.randint(least, most, (70,), generator=torch.Generator().manual_seed(most)).to(device)
        want = reference.log_totals(queries.double(), keys.double(), 0.125, limits=limits)
        torch.testing.assert_close(
            gpu.log_totals(queries, keys, 0.125, limits=limits).double(), want, rtol=1e-6, atol=1e-5
        )
        close(gpu.attention_mass(queries, keys, 0.125, limits=limits), truth(queries, keys, 0.125, limits=limits))


@pytest.mark.usefixtures("poisoned")
def test_views_are_read_where_they_lie(device: torch.device) -> None:
    """A cache with room to grow, heads beside each other, weights shared by all heads, a bias with a stride."""
    cache = drawn(60, 2, 128, device=device)
    keys, queries = cache[3:43, :, 64:].transpose(0, 1), drawn(2, 20, 64, seed=2, device=device)[:, ::2]
    bias = drawn(40, 2, seed=3, device=device).t()
    weights = torch.rand(10, generator=torch.Generator().manual_seed(4)).to(device)
    options: dict[str, Any] = {"reduction": "sum", "bias": bias, "row_weights": weights}
    close(gpu.attention_mass(queries, keys, 0.125, **options), truth(queries, keys, 0.125, **options))


def test_logits_of_hundreds_are_kept_in_float32(device: torch.device) -> None:
    queries, keys = (drawn(1, size, 64, seed=size, dtype=torch.bfloat16, device=device) * 12 for size in (3, 63))
    want = truth(queries, keys, 0.125)
    torch.testing.assert_close(gpu.attention_mass(queries, keys, 0.125).double(), want, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
def test_pieces_that_are_all_no_numbers_are_seen(
    reduction: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three pieces fill a tile of four up with −inf, which a maximum prefers to what is no number."""
    monkeypatch.setattr(totals, "pieces", lambda *_: 3)
    queries, keys = drawn(2, 5, 64, device=device), drawn(2, 192, 64, seed=1, device=device)
    keys[0, ::64] = torch.nan
    read = gpu.attention_mass(queries, keys, 0.3, reduction=reduction)
    assert read[0].isnan().all()
    assert not read[1].isnan().any()


def test_what_a_kernel_would_read_wrongly_is_refused(device: torch.device) -> None:
    one = torch.ones(1, 16, 16, device=device)
    with pytest.raises(ValueError, match=r"scaling must be positive, not -1\.0"):
        gpu.attention_mass(one, one, -1.0)
    with pytest.raises(ValueError, match="keys must be contiguous in its last dimension"):
        gpu.log_totals(one, one.transpose(1, 2)[:, :, :].expand(1, 16, 16), 1.0)


@pytest.mark.parametrize("programs", [1, 4, 100, 131, 133, 500, 4000])
def test_pieces_fill_the_device_and_are_few(programs: int) -> None:
    """Simulated: programs start as others end, a piece takes its steps and one more."""
    room = 264

    def taken(count: int, steps: int) -> int:
        longest = -(-steps // count) + 1
        return longest * len(range(0, programs * count, room))

    for steps in (1, 2, 7, 64, 1000):
        count = blocks.pieces(programs, steps, room)
        assert 1 <= count <= steps
        best = min(taken(n, steps) for n in range(1, min(steps, room) + 1))
        assert taken(count, steps) <= 1.1 * best
        assert all(taken(n, steps) > 1.1 * best for n in range(1, count))
    assert blocks.pieces(0, 5, room) == blocks.pieces(3, 0, room) == 1
    assert blocks.pieces(4, 256, room) == 64


def test_a_first_block_that_is_hidden_whole_leaves_the_next_ones_as_they_are(device: torch.device) -> None:
    queries, keys = drawn(1, 5, 64, device=device), drawn(1, 200, 64, seed=1, device=device)
    bias = torch.zeros(1, 200, device=device)
    bias[:, :140] = -torch.inf
    close(gpu.attention_mass(queries, keys, 0.125, bias=bias), truth(queries, keys, 0.125, bias=bias))
    want = reference.log_totals(queries.double(), keys.double(), 0.125, bias=bias.double())
    torch.testing.assert_close(gpu.log_totals(queries, keys, 0.125, bias=bias).double(), want, rtol=1e-6, atol=1e-5)
