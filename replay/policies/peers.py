"""Peers: scoring rules of other authors, each as its authors' public code computes it.

Shared conventions. A rule sees one segment of n tokens by itself, raw and with its original rotation, and keeps the
⌊keep·n⌋ best keys of every layer and KV head (at least one; ties to the lower index). Those codes protect nothing
else; replay protects structural tokens in peers too (`protect=structure`), so that a comparison with `te` compares
the scores. `protect=none` is the authors' own form. Logits are float32 and carry the model's own scaling.
Notation: i query, j key, w window, G query heads per KV head; softmax_j normalises over the keys it names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar, Literal

from .base import KvShape, SegmentSize, TurnSizes, Work, usage
from .options import choice, decimal_in, integer, option
from .segment import SegmentPolicy


def odd(text: str) -> int:
    """An odd whole number: the width of a pooling that keeps the length."""
    value = integer(1)(text)
    if value % 2 == 0:
        raise ValueError("an odd whole number")
    return value


def flag(default: bool, doc: str) -> bool:
    """A yes-or-no option."""
    parse: Callable[[str], bool] = lambda text: choice("true", "false")(text) == "true"  # noqa: E731
    return option(default, doc, parse=parse, show="true | false")


class Peer(SegmentPolicy):
    """A segment policy with the peers' rounding."""

    rounding: ClassVar[Literal["ceil", "floor"]] = "floor"

    def scoring_rows(self, segment: SegmentSize, later: Sequence[TurnSizes], group: int) -> int:
        """All captured rows of the segment: peers have no cap."""
        return group * (self.own_queries(segment) + self.copy_queries(segment))


@dataclass(frozen=True)
class SnapKv(Peer):
    """SnapKV (arXiv 2404.14469, its listing of the method) as in kvpress 0.5.4 with its defaults.

    The last w = min(window, n − 1) queries of the segment, each softmaxed over the keys it may see (causal inside the
    window, float32). Their weights on the n − w keys before the window are averaged over the w queries, then smoothed
    by a centred mean of `kernel` keys that counts zeros beyond both ends (and always divides by `kernel`), then
    averaged over the G heads. The window itself has top priority; when fewer than w may stay, its latest tokens do.
    """

    name = "snapkv"
    summary = "keys that the last queries of the segment read, smoothed over neighbours"
    formula = "s_j = mean_g pool_5(mean_{i in last w} softmax_j(q_i·k_j)), w = 64; the window is kept"
    source = "SnapKV, arXiv 2404.14469; kvpress 0.5.4"

    window: int = option(64, "last queries that score; fewer in shorter segments", parse=integer(1), show="int ≥ 1")
    kernel: int = option(5, "neighbours averaged, odd", parse=odd, show="odd int ≥ 1")

    def own_queries(self, segment: SegmentSize) -> int:
        """The window."""
        return min(self.window, segment.tokens - 1) if self.compacts(segment) and segment.tokens else 0


@dataclass(frozen=True)
class RKv(Peer):
    """R-KV (arXiv 2505.24133, joint score of importance and redundancy) as in its authors' code.

    λ = `mix` is 0.07 there, and 0.1 in the paper.

    I: logits of the last w = min(window, n − 1) queries, maximum over the G heads first, then softmax over the n − w
    keys before the window (the window's own keys are left out), mean over the w queries, centred maximum of `kernel`
    keys. R: cosines of all n keys (norm + 1e-8) with a zero diagonal; in each row the latest column above `threshold`
    is zeroed, or column 0 where there is none; mean over rows, softmax over all n keys.
    s = mix·I − (1 − mix)·R. The window has top priority; when fewer than w may stay, its latest tokens do (the
    authors' code demands a larger budget).
    """

    name = "rkv"
    summary = "keys that the last queries read and that no other key repeats"
    formula = "s_j = λ·maxpool_7(mean_i softmax_j(max_g q_i·k_j)) − (1−λ)·softmax_j(mean_i cos(k_i, k_j)), λ = 0.07"
    source = "R-KV, arXiv 2505.24133; github.com/Zefan-Cai/R-KV"

    window: int = option(8, "last queries that score; fewer in shorter segments", parse=integer(1), show="int ≥ 1")
    kernel: int = option(7, "neighbours whose maximum counts, odd", parse=odd, show="odd int ≥ 1")
    mix: Decimal = option(
        Decimal("0.07"),
        "λ: weight of attention against redundancy",
        parse=decimal_in("0", "1"),
        show="0 to 1",
    )
    threshold: Decimal = option(
        Decimal("0.5"),
        "cosine above which a key is a near duplicate",
        parse=decimal_in("0", "1"),
        show="0 to 1",
    )

    def own_queries(self, segment: SegmentSize) -> int:
        """The window."""
        return min(self.window, segment.tokens - 1) if self.compacts(segment) and segment.tokens else 0

    def segment_work(self, segment: SegmentSize, kept: int, rows: int, shape: KvShape) -> Work:
        """Attention of the window, and the cosines of all pairs of keys."""
        heads, n = shape.layers * shape.kv_heads, segment.tokens
        pairs = Work(heads * (2.0 * n * n * shape.head_dim + 5.0 * n * n), 0.0)
        return SegmentPolicy.segment_work(self, segment, kept, rows, shape) + pairs


@dataclass(frozen=True)
class ExpectedAttention(Peer):
    """Expected Attention (arXiv 2510.00636, its closed form of E[exp(q·k)]) as in kvpress 0.5.4 with its defaults.

    μ and Σ (divided by the count) of the segment's queries per query head, rotation removed, the first `sinks` tokens
    left out. R̄ = mean RoPE rotation over the `n_future` positions after the segment's last token. With scale the
    model's own (1/√d): z_j = scale·k_jᵀR̄μ + ½·scale²·k_jᵀR̄ΣR̄ᵀk_j, keys rotated as cached; softmax over the keys
    after the sinks; mean over the G heads; s_j = (softmax_j + epsilon)·‖v_j‖₂. The first min(sinks, n − 1) tokens have
    top priority (the authors' code demands more tokens than sinks).
    """

    name = "expected_attention"
    needs_rotation = True
    summary = "keys that normally distributed future queries would read, weighted by the size of their values"
    formula = "s_j = (mean_g softmax_j(k_jᵀR̄μ/√d + k_jᵀR̄ΣR̄ᵀk_j/2d) + ε)·‖v_j‖; 4 sinks are kept"
    source = "Expected Attention, arXiv 2510.00636; kvpress 0.5.4"

    n_future: int = option(512, "next positions over which the rotation is averaged", parse=integer(1), show="int ≥ 1")
    sinks: int = option(4, "first tokens kept, and left out of the statistics", parse=integer(0), show="int ≥ 0")
    covariance: bool = flag(True, "whether the spread of the queries counts")
    vnorm: bool = flag(True, "whether scores are multiplied by the norm of the value")
    epsilon: Decimal = option(
        Decimal(0), "added to the softmax before the norm", parse=decimal_in("0", "1"), show="0 to 1"
    )

    def __post_init__(self) -> None:
        if self.epsilon and not self.vnorm:
            raise usage(str(self), "epsilon counts only with vnorm=true")

    def own_queries(self, segment: SegmentSize) -> int:
        """Everything after the sinks."""
        if not segment.tokens or not self.compacts(segment):
            return 0
        return segment.tokens - min(self.sinks, segment.tokens - 1)

    def segment_work(self, segment: SegmentSize, kept: int, rows: int, shape: KvShape) -> Work:
        """Covariance of the query rows, then a quadratic form per key and query head."""
        per_row = 2.0 * shape.head_dim**2 if self.covariance else 2.0 * shape.head_dim
        heads, group = shape.layers * shape.kv_heads, shape.group
        flops = heads * per_row * (rows + group * segment.tokens)
        return Work(flops, heads * (2 * segment.tokens + rows) * shape.head_dim * shape.dtype_bytes)


@dataclass(frozen=True)
class KeyDiff(Peer):
    """KeyDiff (arXiv 2504.15364, cosine to the mean unit key) on the whole segment at once, as in kvpress 0.5.4.

    s_j = −cos(k_j, mean_i k_i/‖k_i‖₂) over the segment's cached (rotated) keys. No window and no sinks; the paper's
    block-wise form is not built.
    """

    name = "keydiff"
    summary = "keys least like the mean direction of the segment's keys"
    formula = "s_j = −cos(k_j, mean_i k_i/‖k_i‖)"
    source = "KeyDiff, arXiv 2504.15364; kvpress 0.5.4"

    def segment_work(self, segment: SegmentSize, kept: int, rows: int, shape: KvShape) -> Work:
        """Norms, mean and one product per key."""
        return _keys_only(segment, 6.0, shape)


@dataclass(frozen=True)
class KNorm(Peer):
    """The L2-norm rule (arXiv 2406.11430): s_j = −‖k_j‖₂ of the cached keys. No window and no sinks."""

    name = "knorm"
    summary = "keys with the smallest norm"
    formula = "s_j = −‖k_j‖₂"
    source = "arXiv 2406.11430; kvpress 0.5.4"

    def segment_work(self, segment: SegmentSize, kept: int, rows: int, shape: KvShape) -> Work:
        """One norm per key."""
        return _keys_only(segment, 2.0, shape)


def _keys_only(segment: SegmentSize, flops_per_number: float, shape: KvShape) -> Work:
    numbers = shape.layers * shape.kv_heads * segment.tokens * shape.head_dim
    return Work(flops_per_number * numbers, float(numbers * shape.dtype_bytes))
