"""Searches made again: the same query, or nearly the same.

A query is near an earlier one if the cosine of their vectors is above 0.9. Vectors count the groups of three
characters, each weighted by how rare it is among the queries of the trace set (TF-IDF). The paper compares sentence
embeddings of a model: groups of characters see words spelled again, not words that mean the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

NEAR = 0.9
_GROUP = 3


class Similarity:
    """Cosine of two queries, 0 to 1. `known` are the queries that tell how rare a group of characters is."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        each = [set(_groups(query)) for query in known]
        self._count = len(each)
        self._holding = Counter(group for groups in each for group in groups)

    def __call__(self, one: str, other: str) -> float:
        """1 for queries that differ in case and white space only."""
        mine, theirs = self._vector(one), self._vector(other)
        return sum(weight * theirs.get(group, 0.0) for group, weight in mine.items())

    def _vector(self, query: str) -> dict[str, float]:
        """tf · (ln((1 + N) / (1 + n)) + 1) for a group that n of N queries hold, of length 1."""
        weights = {
            group: count * (math.log((1 + self._count) / (1 + self._holding[group])) + 1)
            for group, count in Counter(_groups(query)).items()
        }
        length = math.sqrt(sum(weight**2 for weight in weights.values()))
        return {group: weight / length for group, weight in weights.items()}


def repeats(asked: Sequence[str], before: Sequence[str], similar: Similarity) -> tuple[int, int]:
    """How many of the queries asked are an earlier one again, and how many are at least near one.

    `before` were asked by the recorded turns: they are earlier than all, and are not counted.
    """
    same = near = 0
    earlier = list(before)
    for query in asked:
        is_same = _plain(query) in map(_plain, earlier)
        same += is_same
        near += is_same or any(similar(query, other) > NEAR for other in earlier)
        earlier.append(query)
    return same, near


def _plain(query: str) -> str:
    return " ".join(query.casefold().split())


def _groups(query: str) -> list[str]:
    text = f" {_plain(query)} "
    return [text[at : at + _GROUP] for at in range(max(1, len(text) - _GROUP + 1))]
