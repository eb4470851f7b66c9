"""The fast forms of `rotate_keys` turn keys as the float64 reference does, however far."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kvmill.kernels import reference, rotate

ON_GPU = torch.cuda.is_available()
IMPLS = ["torch", "triton"]
SHAPES = [
    # (leading dimensions, n, D, frequencies)
    ((3,), 63, 64, 32),
    ((), 129, 80, 40),
    ((2, 2), 129, 128, 16),
    ((8,), 1000, 256, 32),
    ((1,), 63, 512, 256),
    ((2,), 7, 64, 0),
]
SMALL = [((3,), 63, 64, 32), ((), 129, 80, 40), ((1, 2), 63, 256, 32), ((2,), 7, 64, 0)]
CASES = [("torch", shape) for shape in SHAPES] + [("triton", shape) for shape in (SHAPES if ON_GPU else SMALL)]
# Half an ulp of the result in float16 and bfloat16, a whole one under the interpreter, which cuts digits off.
DTYPES = {torch.float32: 1e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}


def drawn(shape: Any, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Keys, and frequencies as models have them."""
    lead, count, dim, half = shape
    keys = torch.randn(*lead, count, dim, generator=torch.Generator().manual_seed(count + dim))
    return keys.to(device, dtype), (1e6 ** -(torch.arange(half) / max(half, 1))).to(device)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
@pytest.mark.parametrize(("impl", "shape"), CASES, ids=str)
def test_keys_are_turned_as_by_the_reference(impl: Any, shape: Any, dtype: torch.dtype, device: torch.device) -> None:
    keys, frequencies = drawn(shape, dtype, device)
    lead, count, _, half = shape
    generator = torch.Generator().manual_seed(count)
    whole = torch.randint(-(10**6), 10**6, (count,), generator=generator).to(device)
    broken = ((torch.rand(*lead, count, generator=generator) - 0.5) * 1e6).to(device)
    for offsets in (whole, broken):
        got = rotate.rotate_keys(keys, offsets, frequencies, impl=impl)
        want = reference.rotate_keys(keys.double(), offsets, frequencies)
        assert got.dtype == dtype
        bound = DTYPES[dtype]
        torch.testing.assert_close(got.double(), want, rtol=bound, atol=1e-6)
        assert torch.equal(got[..., 2 * half :], keys[..., 2 * half :])


@pytest.mark.parametrize("impl", IMPLS)
def test_a_quarter_turn_swaps_the_pair_and_no_turn_changes_nothing(impl: Any, device: torch.device) -> None:
    """Every multiple of a quarter turn, both ways, and pairs that do not turn at all."""
    keys = torch.randn(9, 6, generator=torch.Generator().manual_seed(1)).to(device)
    frequencies = torch.tensor([torch.pi / 2, 0.0], dtype=torch.float64, device=device)
    got = rotate.rotate_keys(keys, torch.arange(-4, 5, device=device), frequencies, impl=impl)
    for row, x, quarter in zip(got.tolist(), keys.tolist(), range(-4, 5), strict=True):
        turned = complex(x[0], x[2]) * 1j**quarter
        assert row[0] == pytest.approx(turned.real, abs=1e-6)
        assert row[2] == pytest.approx(turned.imag, abs=1e-6)
        assert (row[1], row[3], row[4:]) == (x[1], x[3], x[4:])
    still = torch.zeros(9, device=device)
    assert torch.equal(rotate.rotate_keys(keys, still, frequencies, impl=impl), keys)


@pytest.mark.parametrize("impl", IMPLS)
def test_views_and_many_heads_turn_alike(impl: Any, device: torch.device) -> None:
    """Tokens before heads in memory, rows of a wider tensor, and more heads than one program takes."""
    generator = torch.Generator().manual_seed(2)
    keys = torch.randn(21, 11, 20, generator=generator).to(device).transpose(0, 1)[..., :16]
    frequencies, offsets = torch.tensor([1.0, 0.1, 0.01], device=device), torch.arange(21, device=device) * 1000
    want = reference.rotate_keys(keys.double(), offsets, frequencies)
    for places in (offsets, offsets.expand(11, -1)):
        got = rotate.rotate_keys(keys, places, frequencies, impl=impl)
        torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=1e-6)


def test_float64_stays_exact_and_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = torch.randn(2, 50, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    frequencies, offsets = 1e4 ** -(torch.arange(8) / 8), torch.arange(50) * 20_011.5
    whole = rotate.rotate_keys(keys, offsets, frequencies)
    monkeypatch.setattr(rotate, "BLOCK_BYTES", 1000)
    assert torch.equal(rotate.rotate_keys(keys, offsets, frequencies), whole)
    torch.testing.assert_close(whole, reference.rotate_keys(keys, offsets, frequencies), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("impl", ["reference", *IMPLS])
def test_misuse_is_an_error(impl: Any) -> None:
    with pytest.raises(ValueError, match="5 frequencies turn 10 dimensions, and keys have 8"):
        rotate.rotate_keys(torch.zeros(1, 8), torch.zeros(1), torch.ones(5), impl=impl)
    with pytest.raises(ValueError, match=r"offsets must be \(2, 3\) or \(3,\), not \(2,\)"):
        rotate.rotate_keys(torch.zeros(2, 3, 8), torch.zeros(2), torch.ones(4), impl=impl)
    with pytest.raises(ValueError, match="offsets is on meta"):
        rotate.rotate_keys(torch.zeros(1, 8), torch.zeros(1, device="meta"), torch.ones(4), impl=impl)


@pytest.mark.parametrize("impl", IMPLS)
def test_nothing_to_turn(impl: Any, device: torch.device) -> None:
    keys, offsets, frequencies = (torch.zeros(size, device=device) for size in ((2, 0, 8), (0,), (4,)))
    assert rotate.rotate_keys(keys, offsets, frequencies, impl=impl).shape == (2, 0, 8)
