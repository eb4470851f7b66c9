"""The fits in blocks of rows say what the float64 reference says, whatever the blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kvmill.kernels import fit, reference

ON_GPU = torch.cuda.is_available()
SHAPES = [
    # (H_kv, R, n, m, D)
    (3, 200, 129, 26, 64),
    (1, 700, 1000, 64, 80),
    (2, 90, 63, 40, 128),
]
CASES = [("torch", shape) for shape in SHAPES] + [("triton", shape) for shape in (SHAPES if ON_GPU else SHAPES[:1])]


def drawn(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    heads, rows, count, keep, dim = shape
    generator = torch.Generator().manual_seed(sum(shape))
    queries, keys, values = (
        torch.randn(heads, size, dim, generator=generator).to(device, dtype) for size in (rows, count, count)
    )
    index = torch.rand(heads, count, generator=generator).argsort(1)[:, :keep].sort(1).values.to(device)
    return {"queries": queries, "keys": keys, "values": values, "index": index, "scaling": dim**-0.5}


def wide(problem: dict[str, Any]) -> dict[str, Any]:
    return {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in problem.items()}


def extras(problem: dict[str, Any]) -> dict[str, Tensor]:
    """Weights over ten orders of magnitude, and some rows that stand as they are."""
    generator = torch.Generator().manual_seed(9)
    queries, index = problem["queries"], problem["index"]
    weights = 10 ** (torch.rand(queries.shape[:2], generator=generator) * 10 - 10)
    fixed = torch.rand(index.shape, generator=generator) < 0.2
    return {"row_weights": weights.to(queries.device), "fixed": fixed.to(queries.device)}


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize(("impl", "shape"), CASES, ids=str)
def test_fits_are_the_reference(impl: Any, shape: tuple[int, ...], weighed: bool, device: torch.device) -> None:
    problem = drawn(shape, torch.float32, device)
    options: dict[str, Any] = extras(problem) if weighed else {}
    held = torch.arange(shape[1], device=device) % 5 == 0
    bias, values = fit.ridge_fit(**problem, **options, impl=impl)
    want = reference.ridge_fit(**wide(problem), **wide(options))
    torch.testing.assert_close(bias.double(), want[0], rtol=0, atol=5e-3)
    torch.testing.assert_close(values.double(), want[1], rtol=0, atol=5e-3)
    bias, values, worse = fit.heldout_fit(**problem, held=held, **options, impl=impl)
    want = reference.heldout_fit(**wide(problem), held=held, **wide(options))
    torch.testing.assert_close(bias.double(), want[0], rtol=0, atol=5e-3)
    torch.testing.assert_close(values.double(), want[1], rtol=0, atol=5e-3)
    assert torch.equal(worse, want[2])


@pytest.mark.parametrize("entries", [1 << 20, 5000, 1])
def test_blocks_change_nothing_in_float64(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "BLOCK_ENTRIES", entries)
    problem = drawn((2, 150, 100, 30, 64), torch.float64, torch.device("cpu"))
    held = torch.arange(150) % 4 == 1
    options: dict[str, Any] = extras(problem)
    got = fit.heldout_fit(**problem, held=held, **options)
    want = reference.heldout_fit(**problem, held=held, **options)
    torch.testing.assert_close(got[0], want[0], rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(got[1], want[1], rtol=1e-7, atol=1e-9)
    assert torch.equal(got[2], want[2])


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_with_nothing_dropped_nothing_changes(impl: Any, device: torch.device) -> None:
    problem = drawn((2, 90, 63, 63, 64), torch.float32, device)
    bias, values = fit.ridge_fit(**problem, impl=impl)
    assert not bias.any()
    torch.testing.assert_close(values, problem["values"], rtol=0, atol=2e-6)


def test_half_precision_inputs_are_fitted_in_float32() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        problem = drawn((1, 200, 100, 20, 64), dtype, torch.device("cpu"))
        bias, values = fit.ridge_fit(**problem)
        want = reference.ridge_fit(**wide(problem))
        assert values.dtype == dtype
        torch.testing.assert_close(bias.double(), want[0], rtol=0, atol=5e-3)
        torch.testing.assert_close(values.double(), want[1], rtol=0, atol=2e-2)


def test_faint_columns_are_fitted_as_well() -> None:
    """Almost all of what is read stays fixed: the others' weights are so small that their squares vanish in float32."""
    problem = drawn((1, 120, 60, 20, 64), torch.float32, torch.device("cpu"))
    loud = problem["index"][:, :5]
    pull = problem["queries"].mean(1, keepdim=True).sign() * 3
    problem["queries"] = problem["queries"].abs() * pull.sign()
    problem["keys"].scatter_(1, loud.unsqueeze(-1).expand(-1, -1, 64), 16.0 * pull.sign().expand(-1, 5, -1))
    fixed = torch.zeros(1, 20, dtype=torch.bool)
    fixed[:, :5] = True
    bias, values = fit.ridge_fit(**problem, fixed=fixed)
    want = reference.ridge_fit(**wide(problem), fixed=fixed)
    torch.testing.assert_close(bias.double(), want[0], rtol=0, atol=1e-2)
    torch.testing.assert_close(values.double(), want[1], rtol=0, atol=2e-2)


def test_misuse_is_said_in_words() -> None:
    problem = drawn((2, 90, 63, 20, 64), torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match="ridge must be positive"):
        fit.ridge_fit(**problem, ridge=0.0)
    with pytest.raises(ValueError, match="index must be int64"):
        fit.ridge_fit(**problem | {"index": problem["index"].int()})
    with pytest.raises(ValueError, match=r"held must be \(90\)"):
        fit.heldout_fit(**problem, held=torch.ones(3, dtype=torch.bool))


@pytest.mark.parametrize("impl", ["reference", "torch", "triton"])
def test_rows_held_out_say_which_heads_are_fitted_worse(impl: Any, device: torch.device) -> None:
    """Few rows, little in common: fitted on all of them, no head would seem worse on the rows held out."""
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(3, n, 16, generator=generator, dtype=torch.float64) for n in (24, 40, 40))
    queries *= 2
    index = torch.stack([torch.randperm(40, generator=generator)[:14].sort().values for _ in range(3)])
    held = torch.arange(24) % 4 == 3
    seen = reference.ridge_fit(queries, keys, values, index, 0.25)
    errors = [
        reference.output_error(queries, keys, values, index, 0.25, *fitted, held) for fitted in (seen, (None, None))
    ]
    assert bool((errors[0] < 0.9 * errors[1]).all())
    given = (x.float().to(device) for x in (queries, keys, values))
    worse = fit.heldout_fit(*given, index.to(device), 0.25, held.to(device), impl=impl)[2]
    assert worse.tolist() == [True, True, False]
