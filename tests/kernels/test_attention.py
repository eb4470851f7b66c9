import pytest
import torch

from kvmill.kernels import attention, reference


@pytest.mark.parametrize("group", [1, 3, 8])
@pytest.mark.parametrize(("length", "rows", "dim"), [(1, 1, 64), (1, 63, 80), (5, 5, 64), (7, 129, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_equals_reference(group: int, length: int, rows: int, dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(length + rows)
    queries = torch.randn(2 * group, length, dim).to(dtype)
    keys, values = torch.randn(2, rows, dim).to(dtype), torch.randn(2, rows, dim).to(dtype)
    mask = attention.causal_mask(length, rows, group, queries)
    got = attention.chunk_attention(queries, keys, values, dim**-0.5, mask)
    exact = reference.chunk_attention(queries.double(), keys.double(), values.double(), dim**-0.5, mask)
    tolerance = {torch.float32: 2e-6, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(got.double(), exact.double(), atol=tolerance, rtol=tolerance)


def test_causal_mask_aligns_the_new_tokens_with_the_last_rows() -> None:
    mask = attention.causal_mask(3, 5, 2, torch.zeros(1))
    assert mask is not None
    assert (mask == 0).int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]] * 2
    assert attention.causal_mask(1, 5, 2, torch.zeros(1)) is None


def test_tree_mask_lets_branches_see_the_stem_only() -> None:
    visible = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    mask = attention.tree_mask(visible, 4, 1, torch.zeros(1))
    assert (mask == 0).int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]
