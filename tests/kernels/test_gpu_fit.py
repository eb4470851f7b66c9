"""The fits in Triton: their sums, what stays exactly as it is, and that no matrix of rows and keys exists."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kvmill.kernels import reference

gpu = pytest.importorskip("kvmill.kernels.gpu.fit", reason="triton is not installed")
normal = pytest.importorskip("kvmill.kernels.gpu.normal", reason="triton is not installed")


def drawn(heads: int, rows: int, count: int, keep: int, device: torch.device, dim: int = 64) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(rows + count)
    queries, keys, values = (torch.randn(heads, n, dim, generator=generator).to(device) for n in (rows, count, count))
    index = torch.rand(heads, count, generator=generator).argsort(1)[:, :keep].sort(1).values.to(device)
    return {"queries": queries, "keys": keys, "values": values, "index": index, "scaling": dim**-0.5}


def wide(problem: dict[str, Any]) -> dict[str, Any]:
    return {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in problem.items()}


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("dtype", "dim"), [(torch.float32, 80), (torch.float16, 64)], ids=str)
def test_sums_are_those_of_the_matrix(
    dtype: torch.dtype, dim: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over several tiles and pieces, with columns that are hidden and rows that do not count."""
    monkeypatch.setattr(normal, "slots", lambda *_: 8)
    generator = torch.Generator().manual_seed(3)
    queries, keys = (torch.randn(1, n, dim, generator=generator).to(device, dtype) for n in (70, 73))
    bias, shift, gains = (torch.randn(1, n, generator=generator).to(device) for n in (73, 70, 70))
    bias[:, 7], gains[:, 5] = -torch.inf, 0.0
    residual = torch.randn(1, 70, 20, generator=generator).to(device)
    logits = reference.attention_logits(queries.double(), keys.double(), 0.1, bias.double())
    matrix = (logits - shift.double()[:, :, None]).exp() * gains.double()[:, :, None]
    gram = normal.normal_sums(queries, keys, 0.1, bias, shift, gains, None)
    right = normal.normal_sums(queries, keys, 0.1, bias, shift, gains, residual)
    torch.testing.assert_close(gram.double(), matrix.transpose(1, 2) @ matrix, rtol=2e-5, atol=1e-4)
    want = matrix.transpose(1, 2) @ (residual * gains[:, :, None]).double()
    torch.testing.assert_close(right.double(), want, rtol=2e-5, atol=1e-4)
    assert torch.equal(gram.tril(-1), gram.transpose(1, 2).tril(-1))
    assert not gram[:, 7].any()


@pytest.mark.usefixtures("poisoned")
def test_each_fit_alone_is_the_reference(device: torch.device) -> None:
    problem = drawn(2, 60, 40, 12, device)
    generator = torch.Generator().manual_seed(5)
    weights = torch.rand(60, generator=generator).to(device) * 1e-12
    fixed = (torch.rand(2, 12, generator=generator) < 0.3).to(device)
    options: dict[str, Any] = {"row_weights": weights, "fixed": fixed, "ridge": 1e-2}
    keyed = {name: x for name, x in problem.items() if name != "values"}
    bias = gpu.fit_mass(**keyed, **options)
    want = reference.fit_mass(**wide(keyed), **wide(options))
    torch.testing.assert_close(bias.double(), want, rtol=0, atol=1e-3)
    assert not bias[fixed].any()
    values = gpu.fit_values(**problem, bias=bias, **options)
    want = reference.fit_values(**wide(problem), bias=bias.double(), **wide(options))
    torch.testing.assert_close(values.double(), want, rtol=0, atol=1e-3)
    kept = problem["values"].gather(1, problem["index"].unsqueeze(-1).expand(-1, -1, 64))
    assert torch.equal(values[fixed], kept[fixed])


def test_with_nothing_dropped_not_a_bit_changes(device: torch.device) -> None:
    problem = drawn(1, 70, 50, 50, device)
    held = torch.arange(70, device=device) % 3 == 0
    bias, values, worse = gpu.heldout_fit(**problem, held=held)
    assert not bias.any()
    assert torch.equal(values, problem["values"])
    assert not worse.any()


def test_rows_held_out_of_a_trial_do_not_shape_it(device: torch.device) -> None:
    """Weights of 0 are as good as leaving the rows away."""
    problem = drawn(1, 60, 40, 10, device)
    held = torch.arange(60, device=device) % 4 == 1
    fewer = problem | {"queries": problem["queries"][:, ~held]}
    without = gpu.ridge_fit(**fewer)
    weighed = gpu.ridge_fit(**problem, row_weights=(~held).float())
    for a, b in zip(without, weighed, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)


def test_no_matrix_of_rows_and_keys_is_made(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    fresh = torch.empty

    def counted(*size: Any, **options: Any) -> Tensor:
        out = fresh(*size, **options)
        made.append(out.numel())
        return out

    monkeypatch.setattr(torch, "empty", counted)
    monkeypatch.setattr(reference, "ridge_fit", None)
    rows, count, keep, dim = 130, 120, 100, 16
    gpu.ridge_fit(**drawn(1, rows, count, keep, device, dim))
    assert made
    assert max(made) < rows * keep < rows * count


def test_what_the_sums_cannot_carry_is_left_to_the_reference(device: torch.device) -> None:
    """Fewer rows than unknowns, a ridge below the rounding of float32, nothing kept."""
    for problem, ridge in ((drawn(1, 9, 30, 12, device), 1e-3), (drawn(1, 40, 30, 12, device), 1e-7)):
        for got, want in zip(
            gpu.ridge_fit(**problem, ridge=ridge), reference.ridge_fit(**problem, ridge=ridge), strict=True
        ):
            assert torch.equal(got, want)
    problem = drawn(1, 40, 30, 12, device)
    bias, values = gpu.ridge_fit(**problem | {"index": problem["index"][:, :0]})
    assert (bias.shape, values.shape) == ((1, 0), (1, 0, 64))
    with pytest.raises(ValueError, match="ridge must be positive"):
        gpu.ridge_fit(**problem, ridge=0.0)
