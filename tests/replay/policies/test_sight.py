"""A single token's activity is the same whether its attention tells it, or its queries are looked at again."""

from __future__ import annotations

import pytest
import torch

from kvmill.kernels.decode import decode_attention
from kvmill.replay.policies.sight import Sight


@pytest.mark.parametrize("biased", [False, True])
def test_what_attention_leaves_behind_is_what_a_second_look_finds(biased: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    queries, keys, values = (
        torch.randn(size, generator=generator) * 2 for size in ((6, 1, 64), (2, 70, 64), (2, 70, 64))
    )
    bias = torch.randn(2, 70, generator=generator) if biased else None
    read = decode_attention(queries, keys, values, 0.125, bias=bias, activity=True)[2]
    told, looked = Sight(queries, keys, 0.125, bias, read), Sight(queries, keys, 0.125, bias)
    gains, places = torch.tensor([0.3]), (torch.tensor([90]), torch.arange(20, 90).expand(2, -1))
    for options in ({}, {"gains": gains}, {"gains": gains, "positions": places, "distance": 7}):
        torch.testing.assert_close(told.activity(**options), looked.activity(**options), rtol=1e-5, atol=1e-7)
    far = told.activity(positions=places, distance=7)
    assert not far[:, -6:].any()
    assert (far[:, :-6] > 0).all()
    for mine, again in zip(told.use(5, torch.tensor([90])), looked.use(5, torch.tensor([90])), strict=True):
        torch.testing.assert_close(mine, again, rtol=1e-5, atol=1e-7)
    assert set(told.use(5, torch.tensor([90]))[1].unique().tolist()) == {-1.0, 90.0}
