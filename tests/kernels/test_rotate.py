import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmill.kernels import reference


def turned(keys: torch.Tensor, offsets: list[float], frequencies: list[float]) -> torch.Tensor:
    """Each pair (i, F + i) as a complex number times e^{i·offset·frequency}."""
    rows = keys.double().tolist()
    half = len(frequencies)
    for row, offset in zip(rows, offsets, strict=True):
        for i, frequency in enumerate(frequencies):
            z = complex(row[i], row[half + i]) * complex(math.cos(offset * frequency), math.sin(offset * frequency))
            row[i], row[half + i] = z.real, z.imag
    return torch.tensor(rows, dtype=torch.float64)


@settings(max_examples=60)
@given(
    st.sampled_from([(64, 32), (64, 8), (80, 40), (128, 64), (8, 0), (6, 2)]),
    st.lists(st.floats(-2e6, 2e6), min_size=1, max_size=5),
    st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16]),
)
def test_turning_is_multiplication_by_a_complex_number(
    size: tuple[int, int], offsets: list[float], dtype: torch.dtype
) -> None:
    dim, half = size
    torch.manual_seed(len(offsets))
    keys = torch.randn(len(offsets), dim, dtype=torch.float64).to(dtype)
    frequencies = 10_000.0 ** -(torch.arange(half, dtype=torch.float64) / max(half, 1))
    got = reference.rotate_keys(keys, torch.tensor(offsets, dtype=torch.float64), frequencies)
    want = turned(keys, offsets, frequencies.tolist())
    assert got.dtype == dtype
    bound = {torch.float64: 1e-9, torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(got.double(), want, atol=bound, rtol=bound)


def test_turning_back_undoes_turning_and_turns_add_up() -> None:
    torch.manual_seed(3)
    keys = torch.randn(2, 3, 5, 64)
    frequencies = 1e6 ** -(torch.arange(32) / 32)
    offsets = torch.tensor([0, 1, -77, 100_003, 1_000_000])
    there = reference.rotate_keys(keys, offsets, frequencies)
    torch.testing.assert_close(reference.rotate_keys(there, -offsets, frequencies), keys, atol=1e-5, rtol=0)
    twice = reference.rotate_keys(there, 2 * offsets, frequencies)
    torch.testing.assert_close(twice, reference.rotate_keys(keys, 3 * offsets, frequencies), atol=1e-5, rtol=0)
    assert torch.equal(there[..., 0, :], keys[..., 0, :])


def test_each_leading_row_may_have_its_own_offsets() -> None:
    torch.manual_seed(4)
    keys, frequencies = torch.randn(2, 3, 16, dtype=torch.float64), torch.tensor([1.0, 0.1, 0.0], dtype=torch.float64)
    offsets = torch.tensor([[1.0, -2.5, 3.0], [0.5, 9.0, -4.0]], dtype=torch.float64)
    want = torch.stack([turned(k, o, frequencies.tolist()) for k, o in zip(keys, offsets.tolist(), strict=True)])
    torch.testing.assert_close(reference.rotate_keys(keys, offsets, frequencies), want)


def test_scores_depend_on_the_distance_only() -> None:
    """What rotary embedding is for: turning query and key by the same amount leaves their product alone."""
    torch.manual_seed(5)
    query, key = torch.randn(1, 64, dtype=torch.float64), torch.randn(1, 64, dtype=torch.float64)
    frequencies = 1e4 ** -(torch.arange(32, dtype=torch.float64) / 32)

    def at(x: torch.Tensor, position: float) -> torch.Tensor:
        return reference.rotate_keys(x, torch.tensor([position]), frequencies)

    near, far = at(query, 12) @ at(key, 5).T, at(query, 1e6 + 12) @ at(key, 1e6 + 5).T
    torch.testing.assert_close(near, far, atol=1e-7, rtol=0)


def test_more_frequencies_than_pairs_is_an_error() -> None:
    with pytest.raises(ValueError, match="5 frequencies turn 10 dimensions, and keys have 8"):
        reference.rotate_keys(torch.zeros(1, 8), torch.zeros(1), torch.ones(5))
