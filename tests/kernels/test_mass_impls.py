"""The fast forms of `attention_mass` and its kin say what the float64 reference says, on ragged shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kvmill.kernels import mass, reference

ON_GPU = torch.cuda.is_available()
SHAPES = [
    # (H_kv, G, L, n, D)
    (3, 3, 21, 63, 64),
    (1, 8, 5, 129, 80),
    (2, 4, 40, 1000, 128),
    (1, 1, 3, 129, 256),
    (1, 2, 9, 63, 512),
]
SMALL = [(1, 3, 7, 63, 64), (2, 2, 5, 129, 80)]
CASES = [("torch", shape) for shape in SHAPES] + [("triton", shape) for shape in (SHAPES if ON_GPU else SMALL)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def drawn(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, float]:
    """Queries (H_kv, G·L, D) and keys with logits of a few units, rounded to `dtype`."""
    heads, group, length, count, dim = shape
    generator = torch.Generator().manual_seed(sum(shape))
    queries = torch.randn(heads, group * length, dim, generator=generator) * 2
    keys = torch.randn(heads, count, dim, generator=generator)
    return queries.to(device, dtype), keys.to(device, dtype), dim**-0.5


def truth(name: str, queries: Tensor, keys: Tensor, scaling: float, **options: Any) -> Tensor:
    """The reference on the rounded inputs, in float64."""
    exact = {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in options.items()}
    return getattr(reference, name)(queries.double(), keys.double(), scaling, **exact)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("impl", "shape"), CASES, ids=str)
def test_mass_is_the_reference(impl: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    queries, keys, scaling = drawn(shape, dtype, device)
    reductions = reference.REDUCTIONS if impl == "torch" or ON_GPU or dtype == torch.float32 else ("rms",)
    for reduction in reductions:
        got = mass.attention_mass(queries, keys, scaling, reduction=reduction, impl=impl)
        want = truth("attention_mass", queries, keys, scaling, reduction=reduction)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=1e-7 * float(want.max()) + 1e-9)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("impl", "shape"), [("torch", SHAPES[0]), ("torch", SHAPES[2]), ("triton", SMALL[0])], ids=str)
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
def test_every_option_at_once(impl: Any, shape: tuple[int, ...], reduction: str, device: torch.device) -> None:
    queries, keys, scaling = drawn(shape, torch.float32, device)
    heads, rows, _ = queries.shape
    count = keys.shape[1]
    generator = torch.Generator().manual_seed(1)
    limits = torch.randint(0, count + 1, (rows,), generator=generator).to(device)
    bias = torch.randn(heads, count, generator=generator).to(device)
    bias[:, 3] = -torch.inf
    asked = torch.randint(0, 2 * count, (rows,), generator=generator).to(device)
    held = torch.randint(0, 2 * count, (heads, count), generator=generator).sort(1).values.to(device)
    weights = torch.rand(heads, rows, generator=generator).to(device) if reduction == "sum" else None
    options = {"reduction": reduction, "limits": limits, "bias": bias, "positions": (asked, held), "distance": 5}
    got = mass.attention_mass(queries, keys, scaling, row_weights=weights, impl=impl, **options)
    want = truth("attention_mass", queries, keys, scaling, row_weights=weights, **options)
    torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=1e-8)
    totals = mass.log_totals(queries, keys, scaling, limits=limits, bias=bias, impl=impl)
    want = truth("log_totals", queries, keys, scaling, limits=limits, bias=bias)
    torch.testing.assert_close(totals.double(), want, rtol=1e-6, atol=1e-5)
    part = keys[:, 5:40].contiguous()
    got = mass.attention_mass(queries, part, scaling, reduction=reduction, log_total=totals, impl=impl)
    want = truth("attention_mass", queries, part, scaling, reduction=reduction, log_total=totals)
    torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=1e-8)


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_rows_that_see_nothing_read_nothing_and_no_rows_are_no_error(impl: Any, device: torch.device) -> None:
    queries, keys, scaling = drawn((2, 1, 4, 20, 64), torch.float32, device)
    none = torch.zeros(4, dtype=torch.long, device=device)
    hidden = torch.full((2, 20), -torch.inf, device=device)
    for reduction in reference.REDUCTIONS:
        for options in ({"limits": none}, {"bias": hidden}, {"log_total": torch.full((2, 4), -torch.inf).to(device)}):
            assert not mass.attention_mass(queries, keys, scaling, reduction=reduction, impl=impl, **options).any()
        empty = mass.attention_mass(queries[:, :0], keys, scaling, reduction=reduction, impl=impl)
        assert empty.shape == (2, 20)
        assert not empty.any()
    assert (mass.log_totals(queries, keys, scaling, limits=none, impl=impl) == -torch.inf).all()
    assert (mass.log_totals(queries, keys[:, :0], scaling, impl=impl) == -torch.inf).all()


@pytest.mark.parametrize("blocks", [1 << 20, 3000, 1])
def test_use_is_the_reference_whatever_the_blocks(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mass, "BLOCK_ENTRIES", blocks)
    generator = torch.Generator().manual_seed(5)
    queries, keys = torch.randn(6, 37, 64, generator=generator) * 2, torch.randn(2, 90, 64, generator=generator)
    limits, positions = torch.arange(54, 91), torch.arange(200, 237)
    bias = torch.randn(2, 90, generator=generator)
    options: dict[str, Any] = {"limits": limits, "positions": positions, "first": 11, "bias": bias}
    activity, last = mass.attention_use(queries, keys, 0.125, **options)
    want, want_last = reference.attention_use(queries, keys, 0.125, **options)
    torch.testing.assert_close(activity, want, rtol=1e-5, atol=1e-6)
    assert torch.equal(last, want_last)


def test_extra_memory_is_a_block_of_rows_not_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest tensor ever made is the block, the widened keys or the output."""
    made: list[int] = []
    fresh = Tensor.new_empty

    def counted(like: Tensor, *size: Any, **options: Any) -> Tensor:
        out = fresh(like, *size, **options)
        made.append(out.numel())
        return out

    monkeypatch.setattr(Tensor, "new_empty", counted)
    monkeypatch.setattr(mass, "BLOCK_ENTRIES", 1 << 14)
    queries, keys, scaling = drawn((2, 4, 200, 1000, 64), torch.float32, torch.device("cpu"))
    mass.attention_mass(queries, keys, scaling)
    assert max(made) <= 2 * 16 * 1000 < 2 * 800 * 1000


def test_misuse_is_said_in_words(device: torch.device) -> None:
    queries, keys, scaling = drawn((2, 1, 4, 20, 64), torch.float32, device)
    for words, call in (
        ("unknown impl 'cuda': auto, reference, torch, triton", {"impl": "cuda"}),
        ("unknown reduction", {"reduction": "median"}),
        ("row_weights belong to the reduction sum", {"row_weights": torch.ones(4)}),
        (r"limits must be \(4\)", {"limits": torch.ones(3)}),
        (r"bias must be \(2, 20\)", {"bias": torch.ones(2, 19)}),
    ):
        with pytest.raises(ValueError, match=words):
            mass.attention_mass(queries, keys, scaling, **call)
    with pytest.raises(ValueError, match=r"keys must be \(2, any, 64\), not \(2, 20, 63\)"):
        mass.attention_mass(queries, keys[..., :63], scaling)
    with pytest.raises(ValueError, match=r"keys is torch\.float16, queries torch\.float32"):
        mass.attention_mass(queries, keys.half(), scaling)
