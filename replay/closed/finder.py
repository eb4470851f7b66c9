"""A search over recorded tool results: BM25 (Robertson et al.; the form of Lucene) over words, by `bm25s`."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable

_EACH = "\u3040-\u30ff\u3400-\u9fff"  # written without blanks: every character is a word
_WORD = re.compile(rf"[{_EACH}]|[^\W{_EACH}]+")
K1, B = 1.5, 0.75
LEAST = 0.25  # of the query's weight that a result must hold, else it is none


def words(text: str) -> list[str]:
    """The words of a text, case folded."""
    return _WORD.findall(text.casefold())


class Finder:
    """Finds texts by the words of a query. Equal texts are one; texts without a word are never found."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = [text for text in dict.fromkeys(texts) if words(text)]
        split = [words(text) for text in self._texts]
        self._holding = Counter(word for each in split for word in set(each))
        if split:
            import bm25s

            self._index = bm25s.BM25(k1=K1, b=B, method="lucene", dtype="float64")
            self._index.index(split, show_progress=False)

    def find(self, query: str, most: int = 1) -> list[str]:
        """The best `most` texts, best first, of equals the earlier one; [] where none comes near the query.

        A text counts if its score reaches LEAST · Σ idf / (1 + k1) over the query's words: what a text of average
        length has that holds each of a quarter of them, by weight, once. Words that stand nowhere weigh as the rarest.
        """
        asked = words(query)
        known = [word for word in asked if word in self._holding]
        if not known:
            return []
        floor = LEAST * sum(map(self._idf, asked)) / (1 + K1)
        scores = self._index.get_scores(known)
        order = sorted(range(len(self._texts)), key=lambda place: -scores[place])
        return [self._texts[place] for place in order[:most] if scores[place] >= floor]

    def _idf(self, word: str) -> float:
        """log(1 + (N − n + ½) / (n + ½)) for a word that n of N texts hold."""
        holding = self._holding[word]
        return math.log(1 + (len(self._texts) - holding + 0.5) / (holding + 0.5))
