import math

import pytest
import torch
from tiny import segment, tiny_model

from kvmill.replay.branch import Lane
from kvmill.replay.cache import KvCache
from kvmill.replay.forward import Forward
from kvmill.replay.metrics import score_chunk, scored_rows
from kvmill.replay.policies.states import Chunk
from kvmill.replay.probes import Forest, judge


def test_scored_rows_are_those_that_predict_generated_tokens() -> None:
    s = segment("assistant", 0, list(range(10)))  # header of 3, scored 3…8
    assert s.scored == (3, 9)
    assert list(scored_rows(s, 0, 10)) == [2, 3, 4, 5, 6, 7]
    assert list(scored_rows(s, 0, 4)) + list(scored_rows(s, 4, 10)) == [2, 3, 4, 5, 6, 7]
    assert not scored_rows(segment("tool", 0, list(range(10))), 0, 10)


def test_chunk_scores_are_the_textbook_sums() -> None:
    forward = Forward(tiny_model())
    lanes = [Lane(KvCache(forward.shape, torch.float32, torch.device("cpu"))) for _ in range(2)]
    forward.feed([lanes[0]], [1, 2, 3])
    forward.feed([lanes[1]], [7, 8])
    s = segment("assistant", 0, [5, 6, 7, 8, 9, 10, 11, 12])
    hidden = forward.feed(lanes, s.ids)
    got = score_chunk(forward, Chunk(s, 0, 8, 3), lanes, hidden, lanes[0])
    full, other = (forward.log_probabilities(h).double() for h in hidden)
    rows = list(scored_rows(s, 0, 8))
    nll = -sum(float(other[r, s.ids[r + 1]]) for r in rows)
    kl = sum(float(full[r, v].exp() * (full[r, v] - other[r, v])) for r in rows for v in range(full.shape[1]))
    agreed = sum(int(full[r].argmax()) == int(other[r].argmax()) for r in rows)
    mine = got[id(lanes[1])]
    assert mine.tokens == len(rows)
    assert mine.nll == pytest.approx(nll, rel=1e-5)
    assert mine.kl == pytest.approx(kl, rel=1e-4)
    assert kl > 0
    assert mine.agreed == agreed
    assert got[id(lanes[0])].kl == 0.0


def test_forest_nodes_see_themselves_and_their_ancestors() -> None:
    forest = Forest([], [], [])
    stem = forest.add([10, 11], -1)
    forest.add([12, 13], stem)
    forest.add([14], stem)
    assert forest.depth == [0, 1, 2, 3, 2]
    assert forest.visible(torch.device("cpu")).int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 0, 1],
    ]


def test_judge() -> None:
    right = judge([-3.0, -1.0, -2.0], 1)
    assert (right.choice, right.correct, right.answer_ll, right.answer_margin) == (1, True, -1.0, 1.0)
    wrong = judge([-3.0, -1.0, -2.0], 0)
    assert not wrong.correct
    assert math.isclose(wrong.answer_margin or 0, -2.0)
    assert judge([-1.0, -1.0], 1).choice == 0
    assert judge([-1.0], 0).answer_margin is None
