import pytest
import torch
from tiny import tiny_model, trajectory

from kvmill.replay.branch import Lane
from kvmill.replay.cache import KvCache
from kvmill.replay.forward import Forward


def fresh(forward: Forward) -> Lane:
    return Lane(KvCache(forward.shape, forward.model.dtype, forward.model.device))


def library_logits(forward: Forward, ids: list[int]) -> torch.Tensor:
    """Log-probabilities of plain transformers, in one call, without our attention."""
    module = forward.model.module
    module.set_attn_implementation("sdpa")
    try:
        return module(torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
    finally:
        module.set_attn_implementation("kvmill")


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_chunked_feeding_equals_one_plain_call(chunk: int) -> None:
    forward = Forward(tiny_model())
    ids = [i for s in trajectory(turns=2).segments for i in s.ids]
    lane = fresh(forward)
    parts = [forward.feed([lane], ids[i : i + chunk]) for i in range(0, len(ids), chunk)]
    got = forward.log_probabilities(torch.cat(parts, dim=1)[0])
    torch.testing.assert_close(got, library_logits(forward, ids), atol=1e-5, rtol=0)
    assert lane.position == lane.cache.rows == len(ids)


def test_lanes_with_other_pasts_do_not_touch_each_other() -> None:
    forward = Forward(tiny_model())
    a, b = fresh(forward), fresh(forward)
    forward.feed([a], [1, 2, 3])
    forward.feed([b], [9, 8, 7, 6, 5])
    both = forward.feed([a, b], [4, 4, 2])
    alone = fresh(forward)
    forward.feed([alone], [9, 8, 7, 6, 5])
    torch.testing.assert_close(both[1], forward.feed([alone], [4, 4, 2])[0], atol=1e-5, rtol=0)
    assert (a.position, b.position) == (6, 8)


def test_a_tree_gives_each_branch_what_a_sequence_would() -> None:
    forward = Forward(tiny_model())
    lane = fresh(forward)
    forward.feed([lane], [5, 6, 7, 8])
    visible = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], dtype=torch.bool)
    tree = forward.feed([lane], [10, 11, 12, 13], visible=visible, depth=[0, 1, 1, 2])[0]
    lane.cache.roll_back(4)
    assert lane.position == 4
    for nodes in ([0, 1], [0, 2, 3]):
        twin = Lane(lane.cache.fork(), 4)
        path = forward.feed([twin], [[10, 11, 12, 13][n] for n in nodes])[0]
        torch.testing.assert_close(tree[nodes], path, atol=1e-5, rtol=0)
