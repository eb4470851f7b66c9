"""`am`: attention matching. The keys that `te` keeps, with a bias and values fitted so that they stand for all keys.

The query rows Q of all sources are concatenated: where a mix has a future source (`assistant`, `tool`), every other
source is down-sampled, seeded, to at most the rows of the first one of these (arXiv 2608.00902, section 3.3), and 4,096
rows are used at most. The m kept keys S are the best under Q together, so for a single source they are `te`'s. Then
per KV head, with E = exp(QKᵀ·scale − row maximum over all n keys), in float32 (compaction.md 7):

    β:  M = E_S, y = E·1,  B = 1 + (MᵀM + λσ²I)⁻¹Mᵀ(y − M·1),  β = log B, clamped to ±`beta_limit`
    V:  X = softmax(QK_Sᵀ·scale + β), Y = softmax(QKᵀ·scale)·V,  V_C = V_S + (XᵀX + λσ²I)⁻¹Xᵀ(Y − XV_S)

λ = `ridge`, σ² the largest eigenvalue of the matrix beside it. β is added to the logits of the kept rows in every later
attention, and V_C, rounded to the cache's dtype, takes the place of V_S.

Protected tokens keep their original K and V and β = 0 (arXiv 2608.00902, section 3.2): they stay in M and X, their
columns take no part in the fit, and the others are fitted to what they leave.

Two fits per head of few query rows are worse than none (compaction.md 7.2), so under `fallback=heldout` a head keeps
`te`'s rows as they are where it has fewer than 2m query rows, or where, fitted on a seeded 80 % of the rows, its
output error on the other 20 % exceeds that of plain eviction; else the fit is repeated on all rows. `proxy=boundary`
gives one or two rows per query head, so that all but the shortest segments fall back. `weighting=share` multiplies row
i of M, y, X and Y, and of the held-out errors, by the share Z_segment / Z_cache of its attention that went to the
segment (compaction.md 7.5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from .base import QUERY_ROWS_CAP, KvShape, SegmentSize, TurnSizes, Work
from .options import choice, decimal_in, option
from .proxy import FUTURE, ProxyPolicy

HELD_OUT = 5
"""One row in this many is held out of the trial fit, rounded up."""


@dataclass(frozen=True)
class AttentionMatching(ProxyPolicy):
    """Turn t is compacted when turn t + delay closes, its assistant and tool segments separately."""

    name = "am"
    summary = "attention matching: te's keys with a bias and values fitted to stand for the whole segment"
    formula = "S as te; B = argmin ‖E_S·B − E·1‖², β = log B; V_C = argmin ‖softmax(QK_Sᵀ + β)V_C − softmax(QKᵀ)V‖²"
    source = "arXiv 2608.00902, section 3.2; arXiv 2602.16284; compaction.md 2 and 7"
    holds_bias = True

    ridge: Decimal = option(
        Decimal("0.001"),
        "λ of both fits, in units of the largest eigenvalue",
        parse=decimal_in("0.000000001", "1000"),
        show="1e-9 to 1000",
    )
    beta_limit: Decimal = option(
        Decimal(3), "largest |β|; 0 fits values only", parse=decimal_in("0", "10"), show="0 to 10"
    )
    weighting: str = option(
        "none",
        "share: query rows count as much as their attention went to the segment",
        parse=choice("none", "share"),
        show="none | share",
    )
    fallback: str = option(
        "heldout",
        "heldout: a head stays as te has it where the fit is worse on rows held out",
        parse=choice("heldout", "none"),
        show="heldout | none",
    )

    @property
    def needs_totals(self) -> bool:
        """For a global normaliser, and for shares."""
        return super().needs_totals or self.weighting == "share"

    def scoring_rows(self, segment: SegmentSize, later: Sequence[TurnSizes], group: int) -> int:
        """All sources together, down-sampled, then capped."""
        rows = self.source_rows(segment, later, group)
        most = most_rows(self.proxies, rows)
        return min(QUERY_ROWS_CAP, sum(rows if most is None else (min(r, most) for r in rows)))

    def fits(self, rows: int, kept: int) -> bool:
        """Whether so many query rows are enough to fit so many kept ones."""
        return rows > 0 and (self.fallback == "none" or rows >= 2 * kept)

    def segment_work(self, segment: SegmentSize, kept: int, rows: int, shape: KvShape) -> Work:
        """Scoring as `te`; then, where there are rows enough, per layer and KV head (compaction.md 8):

        one fit of R rows: target outputs 2·R·n·D, two Gram matrices with their right-hand sides 2·R·m·(2m + 1 + D), two
        Cholesky factors m³/3 each and the solutions 2·m²·(1 + D); under fallback=heldout a second fit of 80 % of the
        rows, and the outputs of te and of the fit on the others, 2·(R/5)·(n + 2m)·D. Not counted: eigenvalues, softmax,
        clamping, and logits computed again. Bytes: K, Q and V read once.
        """
        work = super().segment_work(segment, kept, rows, shape)
        if not self.fits(rows, kept):
            return work
        heads, tokens, dim = shape.layers * shape.kv_heads, segment.tokens, shape.head_dim
        flops = _fit(rows, tokens, kept, dim)
        if self.fallback == "heldout":
            held = held_out(rows)
            flops += _fit(rows - held, tokens, kept, dim) + 2.0 * held * (tokens + 2 * kept) * dim
        return work + Work(heads * flops, float(heads * tokens * dim * shape.dtype_bytes))


def _fit(rows: int, tokens: int, kept: int, dim: int) -> float:
    solved = 2 * kept**3 / 3 + 2.0 * kept**2 * (1 + dim)
    return 2.0 * rows * tokens * dim + 2.0 * rows * kept * (2 * kept + 1 + dim) + solved


def held_out(rows: int) -> int:
    """How many of `rows` query rows are held out."""
    return -(-rows // HELD_OUT)


def most_rows(proxies: Sequence[str], rows: Sequence[int]) -> int | None:
    """How many rows a source may give: those of the first future source that has any; None where there is no such."""
    return next((count for proxy, count in zip(proxies, rows, strict=True) if proxy in FUTURE and count), None)
