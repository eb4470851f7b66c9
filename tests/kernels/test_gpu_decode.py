"""Attention in Triton: more pieces than keys, many rows, half-precision weights, and what goes with the output."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kvmill.kernels import reference

attend = pytest.importorskip("kvmill.kernels.gpu.attend", reason="triton is not installed")
decode = pytest.importorskip("kvmill.kernels.gpu.decode", reason="triton is not installed")


def drawn(device: torch.device, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(len(shapes) + shapes[0][-1])
    return [torch.randn(*shape, generator=generator).to(device, dtype) for shape in shapes]


def truth(
    queries: Tensor, keys: Tensor, values: Tensor, scaling: float, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    exact = {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in options.items()}
    out, total, read = reference.decode_attention(
        queries.double(), keys.double(), values.double(), scaling, activity=True, **exact
    )
    assert read is not None
    return out, total, read


@pytest.mark.usefixtures("poisoned")
def test_pieces_that_get_no_keys_count_nothing(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of 0 to 200 keys are each cut into as many pieces as the longest needs."""
    monkeypatch.setattr(attend, "slots", lambda *_: 12)
    queries, keys, values = drawn(device, torch.float32, (6, 1, 64), (3, 200, 64), (3, 200, 64))
    lengths = torch.tensor([200, 0, 3], device=device)
    got = decode.decode_attention(queries, keys, values, 0.3, lengths=lengths, activity=True)
    for found, want in zip(got, truth(queries, keys, values, 0.3, lengths=lengths), strict=True):
        torch.testing.assert_close(found.double(), want, rtol=2e-5, atol=1e-6)
    again = decode.decode_attention(queries, keys, values, 0.3, lengths=lengths, activity=True)
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))


@pytest.mark.usefixtures("poisoned")
def test_the_largest_logit_is_that_of_all_pieces(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attend, "slots", lambda *_: 12)
    queries, keys, values = drawn(device, torch.float32, (2, 5, 64), (2, 300, 64), (2, 300, 0))
    bias = torch.zeros(2, 300, device=device)
    bias[1] = -torch.inf
    got = attend.attend(queries, keys, values, 1.0, dtype=torch.float32, bias=bias, with_top=True)
    logits = reference.attention_logits(queries.double(), keys.double(), 1.0, bias.double())
    torch.testing.assert_close(got.top.double(), logits.amax(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.total.double(), logits.logsumexp(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("dim", "dtype"), [(64, torch.bfloat16), (80, torch.float32), (512, torch.float16)], ids=str)
def test_rows_beyond_one_block(dim: int, dtype: torch.dtype, device: torch.device) -> None:
    queries, keys, values = drawn(device, dtype, (1, 133, dim), (1, 63, dim), (1, 63, dim))
    options: dict[str, Any] = {"dtype": torch.float32, "with_top": True, "with_logits": True}
    got = attend.attend(queries, keys, values, dim**-0.5, **options)
    out, total, _ = truth(queries, keys, values, dim**-0.5)
    torch.testing.assert_close(got.out.double(), out, rtol=0, atol=1e-5)
    torch.testing.assert_close(got.total.double(), total, rtol=1e-6, atol=1e-5)
    logits = reference.attention_logits(queries.double(), keys.double(), dim**-0.5)
    torch.testing.assert_close(got.top.double(), logits.amax(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.logits.double() * torch.tensor(2.0).log().item(), logits, rtol=1e-5, atol=1e-5)


def test_weights_of_half_precision_values_lose_nothing(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the tensor cores, in float16, which the interpreter knows: weights of 11 bits would be off by 1e-4."""
    queries, keys, values = drawn(device, torch.float16, (16, 1, 64), (1, 129, 64), (1, 129, 64))
    arithmetic = attend.arithmetic
    monkeypatch.setattr(attend, "arithmetic", lambda x: arithmetic(x) | {"UPCAST": False})
    rows = reference.group_rows(queries, 1)
    got = attend.attend(rows, keys, values, 0.2, dtype=torch.float32)
    out, _, _ = truth(queries, keys, values, 0.2)
    torch.testing.assert_close(got.out.double().view(out.shape), out, rtol=0, atol=1e-6)


def test_many_faint_float16_weights_beside_a_sink_add_up(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """e⁻¹⁸ is less than half of what float16 can tell from 0, and 4,000 keys of that weight make the whole output."""
    queries, keys = (torch.zeros(*shape, dtype=torch.float16, device=device) for shape in ((1, 1, 16), (1, 4001, 16)))
    queries[..., 0], keys[:, 0, 0] = 1.0, 18.0
    values = torch.ones_like(keys)
    values[:, 0] = 0.0
    arithmetic = attend.arithmetic
    monkeypatch.setattr(attend, "arithmetic", lambda x: arithmetic(x) | {"UPCAST": False})
    got = attend.attend(queries, keys, values, 1.0, dtype=torch.float32)
    out, total, _ = truth(queries, keys, values, 1.0)
    torch.testing.assert_close(got.out.double(), out, rtol=1e-4, atol=0)
    torch.testing.assert_close(got.total.double(), total, rtol=1e-7, atol=0)


def test_pieces_that_are_all_no_numbers_are_seen(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three pieces fill a tile of four up with −inf, which a maximum prefers to what is no number."""
    monkeypatch.setattr(attend, "pieces", lambda *_: 3)
    queries, keys, values = drawn(device, torch.float32, (2, 1, 64), (2, 192, 64), (2, 192, 64))
    keys[0, ::64] = torch.nan
    out, total, read = decode.decode_attention(queries, keys, values, 0.3, activity=True)
    for found in (out, total, read):
        assert found[0].isnan().all()
        assert not found[1].isnan().any()


def test_activity_is_kept_logits_and_adds_up_to_the_rows(device: torch.device) -> None:
    queries, keys, values = drawn(device, torch.bfloat16, (20, 1, 64), (2, 300, 64), (2, 300, 32))
    _, _, read = decode.decode_attention(queries, keys, values, 0.125, activity=True)
    torch.testing.assert_close(read.sum(1), torch.full((2,), 10.0, device=device), rtol=1e-5, atol=0)
    torch.testing.assert_close(read.double(), truth(queries, keys, values, 0.125)[2], rtol=2e-5, atol=1e-7)


def test_what_a_kernel_would_read_wrongly_is_refused(device: torch.device) -> None:
    one = torch.ones(1, 16, 16, device=device)
    with pytest.raises(ValueError, match="scaling must be positive"):
        decode.decode_attention(one, one, one, 0.0)
    with pytest.raises(ValueError, match="values must be contiguous in its last dimension"):
        decode.decode_attention(one, one, one.transpose(1, 2), 1.0)
    far = torch.empty(1, 2, 1 << 24, device="meta")[..., :16]
    with pytest.raises(ValueError, match="queries has rows 16777216 numbers apart, and kernels reach 16776192"):
        attend.attend(far, far, far, 1.0, dtype=torch.float32)
    many = torch.empty(65_536, 1, 16, device="meta")
    with pytest.raises(ValueError, match="queries has 65536 heads, and kernels take 65535"):
        attend.attend(many, many, many, 1.0, dtype=torch.float32)
