"""`merge`: tokens with like keys become one row (compaction.md 12, semantic merging).

Every 50 tokens, per layer and KV head, the compactable rows that are not forced are put into exactly as many clusters
as rows may stay, by mini-batch k-means on their keys. A cluster becomes one row:

    value = Σ a_j·v_j / Σ a_j          (a = activity: attention received so far, averaged over the KV head's queries)
    key   = the centroid Σ c_j·k_j / Σ c_j over the c_j tokens in row j, or the medoid: the member nearest to it,
            the most active one of those equally near (of two tokens, always the more active)

`space=pre` takes the rotation off the keys first and turns the centroid to the activity-weighted mean position; `post`
clusters keys as they are cached. A medoid keeps its own key and position. Counts and activities of merged rows are
carried on, so that a row merged twice stands for all its tokens. `mass_bias` adds β = ln c to a row's logits: c like
keys gave c times the mass of one (the first-order form of attention matching's β, compaction.md 2.1).

Forced rows (user messages, protected tokens) never merge. Layers outside `layers` (counted over the compactable
layers, from 0) evict their least active rows instead, down to the same budget, since all layers must stay equally
long. Rows stay in order of their position, that of a merged row being the mean, and are named in reports after the
member with the largest activity. Memory beside K and V: activity, count and position of every compactable row, 4
bytes each, and β of every row, P included, from the first merge on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .base import KvShape, SegmentSize, Work
from .options import choice, option, true_false
from .protect import protect_option
from .running import TRIGGER_SHOW, Cut, RunningPolicy, parse_trigger, protected_or_user, watch_work

KMEANS_BATCH = 256
KMEANS_STEPS = 3


def parse_layers(text: str) -> str:
    """`all`, one layer or a range of layers, as `all` or `a-b`."""
    if text == "all":
        return text
    match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", text)
    first, last = (int(match.group(1)), int(match.group(2) or match.group(1))) if match else (1, 0)
    if first > last:
        raise ValueError("all, or the layers a-b with a ≤ b, counted from 0")
    return f"{first}-{last}"


@dataclass(frozen=True)
class Merge(RunningPolicy):
    """k-means on keys, one row per cluster."""

    name = "merge"
    summary = "semantic merging: like keys become one row, with the activity-weighted mean of their values"
    formula = "k-means of the keys into m clusters; value = Σ a·v / Σ a, key = centroid or medoid, β = ln count"
    source = "compaction.md 12 (semantic merging)"

    trigger: str = option("tokens:50", "when the budget is enforced", parse=parse_trigger, show=TRIGGER_SHOW)
    representative: str = option(
        "centroid", "the key of a cluster", parse=choice("centroid", "medoid"), show="centroid | medoid"
    )
    space: str = option(
        "pre", "keys are compared before or after their rotation", parse=choice("pre", "post"), show="pre | post"
    )
    layers: str = option(
        "all", "which layers merge; the others evict their least active rows", parse=parse_layers, show="all | a-b"
    )
    mass_bias: bool = option(False, "add ln count to the logits of merged rows", parse=true_false, show="true | false")
    protect: str = protect_option()

    @property
    def needs_rotation(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """To take the rotation off."""
        return self.space == "pre"

    @property
    def scalars(self) -> int:
        """Activity, count and position."""
        return 3

    @property
    def biased(self) -> bool:
        """With mass_bias every eviction gives β."""
        return self.mass_bias

    def forced_in(self, segment: SegmentSize, offset: int) -> int:
        """User tokens whole, protected tokens elsewhere."""
        return protected_or_user(segment, offset, self.protect)

    def merging(self, layers: int) -> range:
        """Which of `layers` compactable layers merge."""
        if self.layers == "all":
            return range(layers)
        first, last = map(int, self.layers.split("-"))
        return range(min(first, layers), min(last + 1, layers))

    def work(self, segments: Sequence[SegmentSize], shape: KvShape) -> list[Work]:
        """Watching the attention (`watch_work`), clustering and averaging, and moving rows.

        Clustering of n rows into m: n²/2 distances to begin with, then each batch and at the end every row against m
        centres, 2·D operations per distance; centres, means of keys and values 2·D per row; turning keys back and
        forth 3·D each. Bytes are the float32 keys and centres, read once per step.
        """
        return [
            sum((self._merge_work(cut, shape) for cut in step.cuts), watch_work(step, shape, self.scalars))
            for step in self.walk(segments)
        ]

    def _merge_work(self, cut: Cut, shape: KvShape) -> Work:
        points, clusters = cut.rows - cut.forced, cut.allowed - cut.forced
        heads = len(self.merging(shape.layers)) * shape.kv_heads
        batched = KMEANS_STEPS * min(points, KMEANS_BATCH)
        compared = points * points / 2 + (batched + points) * clusters
        turned = 3.0 * (points + clusters) * (self.space == "pre")
        flops = shape.head_dim * (2.0 * compared + 2.0 * batched + 4.0 * points + turned)
        read = 4.0 * shape.head_dim * (2 * points + batched + (KMEANS_STEPS + 1) * clusters)
        return Work(heads * flops, heads * read)
