"""Inputs nobody has in mind: nothing at all, views of every kind, sentinels. All forms agree, or refuse alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kvmill.kernels import compact, decode, fit, mass, merge, rotate, topk

FORMS = ["torch", "triton"]
LONG = torch.long


def drawn(*sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def transposed(x: Tensor) -> Tensor:
    """The same numbers, in memory the other way round."""
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def listed(x: Any) -> list[Tensor]:
    return [x] if isinstance(x, Tensor) else [y for y in x if y is not None]


def moved(x: Any, device: torch.device) -> Any:
    if isinstance(x, tuple):
        return tuple(y.to(device) for y in x)
    # A copy to a GPU keeps strides only where they are dense: here it is not what is tested.
    return x.to(device) if isinstance(x, Tensor) and x.device != device else x


def agree(operation: Callable[..., Any], impl: str, device: torch.device, *given: Any, **options: Any) -> None:
    """The form gives what the reference gives: shapes, types, and numbers where there are any."""
    given, options = tuple(moved(x, device) for x in given), {k: moved(x, device) for k, x in options.items()}
    want = listed(operation(*given, **options, impl="reference"))
    got = listed(operation(*given, **options, impl=impl))
    assert [x.dtype for x in got] == [x.dtype for x in want]
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("impl", FORMS)
@pytest.mark.parametrize(
    ("heads", "rows", "count", "dim"), [(0, 6, 40, 16), (2, 0, 40, 16), (2, 6, 0, 16), (2, 6, 1, 3), (2, 6, 40, 1)]
)
def test_attention_of_nothing_or_of_one(
    impl: str, heads: int, rows: int, count: int, dim: int, device: torch.device
) -> None:
    queries, keys, values = drawn(heads, rows, dim), drawn(heads, count, dim), drawn(heads, count, 5)
    for reduction in ("rms", "max", "sum"):
        agree(mass.attention_mass, impl, device, queries, keys, 0.3, reduction=reduction)
    agree(mass.log_totals, impl, device, queries, keys, 0.3)
    agree(decode.decode_attention, impl, device, drawn(heads * 3, rows, dim), keys, values, 0.3, activity=True)


@pytest.mark.parametrize("impl", FORMS)
def test_limits_and_lengths_may_be_any_integers(impl: str, device: torch.device) -> None:
    """The largest of 64 bits is what a caller says for no limit."""
    queries, keys = drawn(2, 6, 16), drawn(2, 40, 16)
    most = torch.iinfo(LONG).max
    limits = torch.tensor([most, -most, 0, 41, 2**33, 2**32 + 1])
    for reduction in ("rms", "max"):
        agree(mass.attention_mass, impl, device, queries, keys, 0.3, limits=limits, reduction=reduction)
    agree(mass.log_totals, impl, device, queries, keys, 0.3, limits=limits)
    agree(mass.log_totals, impl, device, queries, keys, 0.3, limits=torch.arange(6, dtype=torch.int32))
    for lengths in ([most, 2**33], [-most, 2**32 + 1], [-3, 41]):
        problem = queries.view(12, 1, 16), keys, drawn(2, 40, 8), 0.3
        agree(decode.decode_attention, impl, device, *problem, lengths=torch.tensor(lengths), activity=True)


@pytest.mark.parametrize("impl", FORMS)
def test_positions_may_be_any_integers(impl: str, device: torch.device) -> None:
    """Key 1 lies 2³³ + 5 before row 0, which 32 bits would take for 5, and is far enough from it."""
    queries, keys, far = drawn(2, 3, 16), drawn(2, 3, 16), 2**33
    positions = torch.tensor([far + 5, 7, far]), torch.tensor([0, 0, far])
    for reduction in ("rms", "max"):
        agree(
            mass.attention_mass, impl, device, queries, keys, 0.3,
            positions=positions, distance=6, reduction=reduction,
        )  # fmt: skip


@pytest.mark.parametrize("impl", FORMS)
def test_what_is_no_number_is_not_hidden(impl: str, device: torch.device) -> None:
    queries, keys, values = drawn(2, 6, 16), drawn(2, 40, 16), drawn(2, 40, 8)
    keys[0, 3] = torch.nan
    assert mass.log_totals(queries.to(device), keys.to(device), 0.3, impl=impl)[0].isnan().all()  # type: ignore[arg-type]
    said = decode.decode_attention(*(x.to(device) for x in (queries, keys, values)), 0.3, impl=impl)  # type: ignore[arg-type]
    assert said[0][0].isnan().all()
    assert said[1][0].isnan().all()
    assert not said[0][1].isnan().any()
    for reduction in ("rms", "mean", "sum", "max"):
        read = mass.attention_mass(queries.to(device), keys.to(device), 0.3, reduction=reduction, impl=impl)  # type: ignore[arg-type]
        assert read[0].isnan().all()
        assert not read[1].isnan().any()


@pytest.mark.parametrize("impl", FORMS)
def test_a_wider_bias_or_total_widens_nothing(impl: str, device: torch.device) -> None:
    queries, keys, bias, total = drawn(2, 6, 16), drawn(2, 40, 16), drawn(2, 40).double(), drawn(2, 6).double() + 5
    agree(mass.attention_mass, impl, device, queries, keys, 0.3, bias=bias, log_total=total)
    agree(decode.decode_attention, impl, device, queries, keys, drawn(2, 40, 8), 0.3, bias=bias, activity=True)


@pytest.mark.parametrize("impl", FORMS)
def test_lists_and_tables_may_be_views(impl: str, device: torch.device) -> None:
    keys, values, index = drawn(3, 20, 8), drawn(3, 20, 8), transposed(torch.arange(15).view(3, 5))
    agree(compact.compact_kv, impl, device, keys, values, index)
    agree(merge.merge_kv, impl, device, keys, values, transposed(torch.arange(60).view(3, 20) % 5), 5)
    # Solving multiplies rounding by the condition of the system, on each processor otherwise: a strong ridge tames it.
    agree(fit.ridge_fit, impl, device, drawn(3, 30, 8), keys, values, index, 0.3, ridge=1.0)
    table = torch.tensor([2, 9, 0, 9, 3, 9], device=device)[::2]
    given = [drawn(4, 2, 3, 8).to(device) for _ in range(4)]
    for form, (one, other) in (("reference", given[:2]), (impl, given[2:])):
        compact.compact_blocks(one, other, table, 8, torch.tensor([1, 4, 7], device=device), impl=form)  # type: ignore[arg-type]
    assert torch.equal(given[0], given[2])
    assert torch.equal(given[1], given[3])


@pytest.mark.parametrize("impl", FORMS)
def test_groups_and_turns_of_nothing(impl: str, device: torch.device) -> None:
    for heads, count, dim in ((0, 20, 8), (2, 0, 8), (2, 20, 0)):
        x, clusters = drawn(heads, count, dim), min(count, 5)
        agree(merge.merge_kv, impl, device, x, x, torch.arange(heads * count).view(heads, count) % 5, 5)
        start = torch.arange(clusters).expand(heads, -1)
        agree(merge.k_means, impl, device, x, clusters, start=start, batches=torch.zeros(2, min(count, 3), dtype=LONG))
        agree(rotate.rotate_keys, impl, device, x, torch.arange(count), torch.zeros(0))
    worse = fit.heldout_fit(
        drawn(2, 6, 8), drawn(2, 9, 8), drawn(2, 9, 8), torch.zeros(2, 0, dtype=LONG), 0.3, torch.arange(6) < 2
    )[2]
    assert not worse.any()


@pytest.mark.parametrize("impl", ["reference", *FORMS])
def test_misuse_is_the_same_error_in_every_form(impl: Any, device: torch.device) -> None:
    queries, keys = drawn(2, 6, 16).to(device), drawn(2, 40, 16).to(device)
    shared, index = keys[:1].expand(2, -1, -1), torch.tensor([[1, 3]] * 2, device=device)
    six, many = torch.ones(6, device=device), torch.ones(40, dtype=LONG, device=device)
    many2, paged = [keys.clone(), keys.clone()], keys.clone()[:, None]
    sums = {"reduction": "sum", "row_weights": six[:3], "impl": impl}
    calls: list[tuple[str, Callable[[], object]]] = [
        ("limits must be integers", lambda: mass.log_totals(queries, keys, 0.3, limits=six, impl=impl)),
        (
            "key positions must be integers",
            lambda: mass.attention_mass(queries, keys, 0.3, positions=(many[:6], many.float()), impl=impl),
        ),
        (r"row_weights must spread to \(2, 6\)", lambda: mass.attention_mass(queries, keys, 0.3, **sums)),
        (
            "lengths must be integers",
            lambda: decode.decode_attention(queries, keys, keys, 0.3, lengths=six[:2], impl=impl),
        ),
        ("is expanded", lambda: compact.compact_kv(shared, keys, index, in_place=True, impl=impl)),
        (r"values\[0\] is keys\[0\]", lambda: compact.compact_kv(keys, keys, index, in_place=True, impl=impl)),
        (r"keys\[1\] is keys\[0\]", lambda: compact.compact_kv([keys] * 2, many2, index, in_place=True, impl=impl)),
        (r"values\[0\] is keys\[0\]", lambda: compact.compact_blocks(paged, paged, many[:1], 3, many[:1], impl=impl)),
        (r"a layer must be \(any, any, any\)", lambda: compact.compact_kv(keys[0], keys[0], index[0], impl=impl)),
        ("forced must be bool", lambda: topk.pool_topk(keys[..., 0], 5, many, impl=impl)),
        (r"forced must spread to \(2, 40\)", lambda: topk.pool_topk(keys[..., 0], 5, many[:7] > 0, impl=impl)),
        ("held must be bool", lambda: fit.heldout_fit(queries, keys, keys, index, 0.3, many[:6], impl=impl)),
        ("fixed must be bool", lambda: fit.ridge_fit(queries, keys, keys, index, 0.3, fixed=index, impl=impl)),
        (r"frequencies must be \(any\)", lambda: rotate.rotate_keys(keys, many, keys[0, :2, :2], impl=impl)),
    ]
    for words, call in calls:
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize("impl", ["auto", *FORMS])
def test_a_fast_form_does_not_drop_a_gradient_silently(impl: Any, device: torch.device) -> None:
    queries, keys = drawn(2, 6, 16).to(device).requires_grad_(), drawn(2, 40, 16).to(device)
    with pytest.raises(ValueError, match="no gradient"):
        mass.attention_mass(queries, keys, 0.3, impl=impl)
    with torch.no_grad():
        mass.attention_mass(queries, keys, 0.3, impl=impl)
    assert mass.attention_mass(queries, keys, 0.3, impl="reference").requires_grad
