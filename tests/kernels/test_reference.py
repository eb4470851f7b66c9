import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmill.kernels import reference


@st.composite
def problems(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, int]:
    heads, rows, keys, dim = draw(st.tuples(*[st.integers(1, n) for n in (3, 9, 17, 8)]))
    torch.manual_seed(draw(st.integers(0, 999)))
    return torch.randn(heads, rows, dim) * 3, torch.randn(heads, keys, dim), draw(st.integers(1, keys))


def by_hand(queries: torch.Tensor, keys: torch.Tensor, scaling: float, limits: list[int] | None = None) -> list:
    """Softmax weights by definition, in Python floats."""
    out = []
    for h in range(queries.shape[0]):
        out.append([])
        for i, q in enumerate(queries[h].double()):
            logits = [float(q @ k) * scaling for k in keys[h].double()][: limits[i] if limits else None]
            top = max(logits)
            weights = [math.exp(x - top) for x in logits]
            out[-1].append([w / sum(weights) for w in weights] + [0.0] * (keys.shape[1] - len(weights)))
    return out


@settings(max_examples=40, deadline=None)
@given(problems())
def test_mass_is_the_formula_of_the_paper(problem: tuple) -> None:
    queries, keys, _ = problem
    weights = by_hand(queries, keys, 0.37)
    rows = queries.shape[1]
    want = {
        "rms": [[math.sqrt(sum(r[j] ** 2 for r in h) / rows) for j in range(keys.shape[1])] for h in weights],
        "mean": [[sum(r[j] for r in h) / rows for j in range(keys.shape[1])] for h in weights],
        "max": [[max(r[j] for r in h) for j in range(keys.shape[1])] for h in weights],
        "sum": [[sum(r[j] for r in h) for j in range(keys.shape[1])] for h in weights],
    }
    for reduction, expected in want.items():
        got = reference.attention_mass(queries, keys, 0.37, reduction=reduction)
        torch.testing.assert_close(got.double(), torch.tensor(expected, dtype=torch.float64), atol=2e-6, rtol=2e-5)


def test_limits_hide_later_keys_and_row_weights_scale_rows() -> None:
    torch.manual_seed(1)
    queries, keys = torch.randn(2, 4, 8, dtype=torch.float64), torch.randn(2, 6, 8, dtype=torch.float64)
    limits, scale = [3, 4, 5, 6], [0.5, 0.0, 2.0, 1.0]
    weights = torch.tensor(by_hand(queries, keys, 1.0, limits), dtype=torch.float64)
    got = reference.attention_mass(
        queries, keys, 1.0, reduction="sum", limits=torch.tensor(limits), row_weights=torch.tensor(scale)
    )
    torch.testing.assert_close(got, (weights * torch.tensor(scale)[None, :, None]).sum(1))


def test_bfloat16_inputs_are_computed_in_float32() -> None:
    torch.manual_seed(2)
    queries, keys = (torch.randn(1, 3, 64) * 12).bfloat16(), (torch.randn(1, 9, 64) * 12).bfloat16()
    got = reference.attention_mass(queries, keys, 0.125)
    want = reference.attention_mass(queries.double(), keys.double(), 0.125)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-4)


def test_group_rows_puts_the_heads_of_a_kv_head_together() -> None:
    queries = torch.arange(6)[:, None, None].expand(6, 2, 1)
    assert reference.group_rows(queries, 2)[:, :, 0].tolist() == [[0, 0, 1, 1, 2, 2], [3, 3, 4, 4, 5, 5]]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.data())
def test_topk_keeps_forced_then_best_with_ties_to_the_lower_index(values: list[int], data: st.DataObject) -> None:
    keep = data.draw(st.integers(1, len(values)))
    forced = sorted(data.draw(st.sets(st.integers(0, len(values) - 1), max_size=keep)))
    mask = torch.zeros(len(values), dtype=torch.bool)
    mask[forced] = True
    got = reference.pool_topk(torch.tensor([values], dtype=torch.float32), keep, mask)[0].tolist()
    rest = sorted((i for i in range(len(values)) if i not in forced), key=lambda i: (-values[i], i))
    assert got == sorted(forced + rest[: keep - len(forced)])


def test_topk_refuses_to_drop_forced_tokens() -> None:
    with pytest.raises(ValueError, match="2 forced tokens do not fit into 1"):
        reference.pool_topk(torch.zeros(1, 3), 1, torch.tensor([True, False, True]))


def test_unknown_reduction_is_an_error() -> None:
    with pytest.raises(ValueError, match="rms, mean, max or sum"):
        reference.attention_mass(torch.zeros(1, 1, 2), torch.zeros(1, 1, 2), 1.0, reduction="median")


def test_compact_gathers_rows_of_each_head() -> None:
    keys = torch.arange(2 * 5 * 3).view(2, 5, 3).float()
    k, v = reference.compact_kv(keys, -keys, torch.tensor([[0, 4], [2, 3]]))
    assert torch.equal(k, torch.stack([keys[0, [0, 4]], keys[1, [2, 3]]]))
    assert torch.equal(v, -k)
