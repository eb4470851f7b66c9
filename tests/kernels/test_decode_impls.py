"""The fast forms of `decode_attention` say what the float64 reference says: outputs, log-sum-exps, who was read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kvmill.kernels import decode, reference

ON_GPU = torch.cuda.is_available()
SHAPES = [
    # (H_kv, G, L, n, D)
    (3, 3, 1, 63, 64),
    (2, 8, 1, 129, 80),
    (2, 1, 4, 1000, 128),
    (1, 5, 2, 129, 256),
    (1, 2, 1, 63, 512),
]
SMALL = [(2, 3, 1, 63, 64), (1, 2, 2, 129, 80)]
CASES = [("torch", shape) for shape in SHAPES] + [("triton", shape) for shape in (SHAPES if ON_GPU else SMALL)]
OUTPUT = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def drawn(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor, float]:
    heads, group, length, count, dim = shape
    generator = torch.Generator().manual_seed(sum(shape))
    queries = torch.randn(heads * group, length, dim, generator=generator) * 2
    keys, values = (torch.randn(heads, count, dim, generator=generator) for _ in range(2))
    return queries.to(device, dtype), keys.to(device, dtype), values.to(device, dtype), dim**-0.5


def agree(got: Any, queries: Tensor, keys: Tensor, values: Tensor, scaling: float, **options: Any) -> None:
    wide = {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in options.items()}
    want = reference.decode_attention(queries.double(), keys.double(), values.double(), scaling, activity=True, **wide)
    out, total, activity = got
    assert out.dtype == queries.dtype
    bound = OUTPUT[queries.dtype]
    torch.testing.assert_close(out.double(), want[0], rtol=bound, atol=bound)
    torch.testing.assert_close(total.double(), want[1], rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(activity.double(), want[2], rtol=2e-5, atol=1e-7)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", list(OUTPUT), ids=str)
@pytest.mark.parametrize(("impl", "shape"), CASES, ids=str)
def test_decode_is_the_reference(impl: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    problem = drawn(shape, dtype, device)
    agree(decode.decode_attention(*problem, activity=True, impl=impl), *problem)
    out, total, nothing = decode.decode_attention(*problem, impl=impl)
    assert nothing is None
    agree((out, total, decode.decode_attention(*problem, activity=True, impl=impl)[2]), *problem)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_ragged_lengths_and_bias_with_rubbish_behind_the_end(impl: Any, device: torch.device) -> None:
    """Two sequences of a batch, folded into heads; what lies behind a row's end is NaN."""
    queries, keys, values, scaling = drawn((4, 3, 1, 129, 64), torch.float32, device)
    lengths = torch.tensor([129, 0, 1, 70], device=device)
    bias = torch.randn(4, 129, generator=torch.Generator().manual_seed(2)).to(device)
    hidden = torch.arange(129, device=device) >= lengths[:, None]
    keys[hidden], values[hidden], bias[hidden] = torch.nan, torch.nan, torch.nan
    got = decode.decode_attention(queries, keys, values, scaling, lengths=lengths, bias=bias, activity=True, impl=impl)
    clean = [x.masked_fill(hidden if x.dim() == 2 else hidden[..., None], 0.0) for x in (keys, values, bias)]
    agree(got, queries, clean[0], clean[1], scaling, lengths=lengths, bias=clean[2])
    out, total, activity = got
    assert not out[3:6].any()
    assert (total[3:6] == -torch.inf).all()
    assert activity is not None
    assert not activity[hidden].any()


@pytest.mark.parametrize("step", [64, 100, 4096])
def test_blocks_merge_exactly_enough(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = drawn((2, 4, 2, 1000, 64), torch.float32, torch.device("cpu"))
    monkeypatch.setattr(decode, "BLOCK_ENTRIES", step * 2 * 8)
    agree(decode.decode_attention(*problem, activity=True), *problem)


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_values_may_be_narrower_than_keys_and_no_keys_are_no_error(impl: Any, device: torch.device) -> None:
    queries, keys, values, scaling = drawn((2, 2, 1, 63, 64), torch.float32, device)
    narrow = values[..., :32].contiguous()
    agree(
        decode.decode_attention(queries, keys, narrow, scaling, activity=True, impl=impl),
        queries,
        keys,
        narrow,
        scaling,
    )
    out, total, activity = decode.decode_attention(
        queries, keys[:, :0], values[:, :0], scaling, activity=True, impl=impl
    )
    assert not out.any()
    assert (total == -torch.inf).all()
    assert activity is not None
    assert activity.shape == (2, 0)


def test_misuse_is_said_in_words() -> None:
    queries, keys, values, scaling = drawn((2, 2, 1, 63, 64), torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match="a multiple of 2 heads"):
        decode.decode_attention(queries[:3], keys, values, scaling)
    with pytest.raises(ValueError, match=r"values must be \(2, 63, any\)"):
        decode.decode_attention(queries, keys, values[:, :5], scaling)
    with pytest.raises(ValueError, match=r"lengths must be \(2\)"):
        decode.decode_attention(queries, keys, values, scaling, lengths=torch.ones(3))
