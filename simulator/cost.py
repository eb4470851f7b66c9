"""`CostModel`: the seconds of a step, of a compaction, of a prefill, of a copy over the host link.

A step = dense work + attention + all-reduce + host time, each on its own roofline (operations against peak, bytes
against bandwidth, times the measured efficiency). The host term, per step and per sequence, is what a pure roofline
lacks. A step of n tokens reads the experts that it is expected to touch: experts · (1 − (1 − active/experts)ⁿ).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

from ..replay.policies.base import Work
from .deployment import Deployment
from .gpu import ERROR_SOURCE, HELD_OUT_ERROR, HOST_SEQUENCE_S, HOST_STEP_S, Points

__all__ = ["HELD_OUT_ERROR", "HOST_SEQUENCE_S", "HOST_STEP_S", "CostModel", "reduce_pieces"]

MATMULS_PER_LAYER = 5
REDUCES_PER_LAYER = 2
FREE: tuple[tuple[float, float, float], ...] = ((0.0, 0.0, 0.0),)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of everything a replica does. All terms are linear, so stretches of equal steps have closed sums.

    Names in `_s` are seconds. `reduce_s` are pieces (from so many tokens, seconds there, seconds per token more).
    `expert_miss` is the chance that a token leaves an expert alone. `error` is the relative error of a step's seconds
    on rows that nothing was fitted on, `error_source` where it is from.
    """

    weights_s: float = 0.0
    experts_s: float = 0.0
    expert_miss: float = 0.0
    token_s: float = 0.0
    head_s: float = 0.0
    dense_floor_s: float = 0.0
    pair_s: float = 0.0
    local_s: float = 0.0
    row_s: float = 0.0
    state_s: float = 0.0
    attention_floor_s: float = 0.0
    reduce_s: tuple[tuple[float, float, float], ...] = FREE
    host_s: float = 0.0
    host_sequence_s: float = 0.0
    work_flop_s: float = 0.0
    work_byte_s: float = 0.0
    work_floor_s: float = 0.0
    reload_byte_s: float = 0.0
    error: float = HELD_OUT_ERROR
    error_source: str = ERROR_SOURCE

    @classmethod
    def of(cls, deployment: Deployment) -> CostModel:
        """The roofline of a deployment, at the GPU's measured efficiencies."""
        shape, gpu, tp = deployment.geometry, deployment.gpu, deployment.tp
        dense_rate = gpu.flops[deployment.dtype] * gpu.matmul[deployment.dtype] * tp
        head_rate = gpu.flops["bf16"] * gpu.matmul["bf16"] * tp
        attention_rate = gpu.flops["bf16"] * gpu.prefill_attention * tp
        stream = gpu.bandwidth * gpu.streaming[deployment.dtype] * tp
        read = gpu.bandwidth * gpu.decode_attention
        borrowed = shape.reading_layers / shape.full_layers
        weights = shape.streamed_bytes(deployment.dtype, 0.0)
        return cls(
            weights_s=weights / stream,
            experts_s=(shape.streamed_bytes(deployment.dtype, float("inf")) - weights) / stream,
            expert_miss=1.0 - shape.active_experts / shape.experts if shape.experts else 0.0,
            token_s=2.0 * (shape.active_parameters - shape.head_parameters) / dense_rate,
            head_s=2.0 * shape.head_parameters / head_rate,
            dense_floor_s=MATMULS_PER_LAYER * shape.layers * gpu.matmul_floor_s,
            pair_s=shape.prefill_pair_flops() / attention_rate,
            local_s=shape.local_flops / attention_rate,
            # One latent row read by many query heads (MLA) takes more operations than bytes.
            row_s=max(deployment.row_bytes() * borrowed / read, shape.pair_flops() / attention_rate),
            state_s=shape.state_traffic_bytes / tp / read,
            attention_floor_s=shape.reading_layers * gpu.attention_floor_s,
            reduce_s=reduce_pieces(gpu.all_reduce(tp), shape.hidden * 2.0, REDUCES_PER_LAYER * shape.layers),
            host_s=gpu.host_step_s,
            host_sequence_s=gpu.host_sequence_s,
            work_flop_s=1.0 / head_rate,
            work_byte_s=1.0 / (read * tp),
            work_floor_s=shape.full_layers * gpu.attention_floor_s,
            reload_byte_s=1.0 / (gpu.link_bandwidth * tp),
            error=gpu.step_error,
            error_source=gpu.error_source,
        )

    def scaled(self, factor: float) -> CostModel:
        """Every second multiplied by `factor`: a machine slower or faster than the model says."""
        changed: dict[str, Any] = {
            field.name: getattr(self, field.name) * factor
            for field in fields(self)
            if field.name.endswith("_s") and field.name != "reduce_s"
        }
        pieces = tuple((start, at * factor, more * factor) for start, at, more in self.reduce_s)
        return replace(self, reduce_s=pieces, **changed)

    def compaction_s(self, work: Work) -> float:
        """One compaction on the target's roofline (*estimated*), one kernel floor per layer included; 0 for none."""
        if work.flops <= 0 and work.bytes <= 0:
            return 0.0
        return max(work.flops * self.work_flop_s, work.bytes * self.work_byte_s) + self.work_floor_s

    def reload_s(self, held_bytes: float) -> float:
        """Copying `held_bytes` of a session (over all GPUs of the replica) from the host, or to it (*assumed* rate)."""
        return held_bytes * self.reload_byte_s

    def streaming_s(self, tokens: float) -> float:
        """Reading the weights that a step of `tokens` tokens touches."""
        if not self.experts_s:
            return self.weights_s
        return self.weights_s + self.experts_s * (1.0 - self.expert_miss**tokens)

    def all_reduce_s(self, tokens: float) -> float:
        """The all-reduces of one step of `tokens` tokens: measured sizes, straight lines between them."""
        pieces = self.reduce_s
        if len(pieces) == 1:
            return pieces[0][1]
        start, at, more = pieces[bisect_right(pieces, tokens, key=_start) - 1]
        return at + more * (tokens - start)

    def fixed_s(self, decodes: int) -> float:
        """What every step of a pure decode stretch costs whatever the contexts: dense, all-reduce, host."""
        dense = max(decodes * (self.token_s + self.head_s), self.streaming_s(decodes), self.dense_floor_s)
        return dense + self.all_reduce_s(decodes) + self.host_s + self.host_sequence_s * decodes

    def decode_attention_s(self, decodes: int, rows: float) -> float:
        """Reading `rows` of K and V and the constant state of `decodes` sequences."""
        return max(self.attention_floor_s, rows * self.row_s + decodes * self.state_s) if decodes else 0.0

    def step_s(self, decodes: int, rows: float, prefills: int, tokens: int, pairs: float, ending: int) -> float:
        """One mixed step: `decodes` sequences over `rows`, and `prefills` chunks of `tokens` over `pairs`.

        `pairs` sums, over chunk tokens, the rows each can see; `ending` chunks sample their first token.
        """
        fed = decodes + tokens
        operations = fed * self.token_s + (decodes + ending) * self.head_s
        dense = max(operations, self.streaming_s(fed), self.dense_floor_s)
        attention = self.decode_attention_s(decodes, rows) + pairs * self.pair_s + tokens * self.local_s
        host = self.host_s + self.host_sequence_s * (decodes + prefills)
        return dense + attention + self.all_reduce_s(fed) + host

    def steps_on_floor(self, decodes: int, rows: float) -> int:
        """Decode steps until the attention term leaves its floor (1 at least); very many once it has left."""
        gap = self.attention_floor_s - rows * self.row_s - decodes * self.state_s
        growth = decodes * self.row_s
        if gap <= 0 or growth <= 0:
            return 1 << 60
        return 1 + int(gap / growth)

    def stretch_s(self, decodes: int, rows: float, steps: int) -> float:
        """`steps` pure decode steps of `decodes` sequences that start at `rows` rows in all.

        The attention term must not cross its floor inside (`steps_on_floor`): Σ_i (rows + i·decodes) is
        steps·rows + decodes·steps·(steps − 1)/2.
        """
        if rows * self.row_s + decodes * self.state_s <= self.attention_floor_s:
            return steps * (self.fixed_s(decodes) + self.attention_floor_s)
        read = steps * rows + decodes * steps * (steps - 1) / 2.0
        return steps * (self.fixed_s(decodes) + decodes * self.state_s) + read * self.row_s


def _start(piece: tuple[float, float, float]) -> float:
    return piece[0]


def reduce_pieces(points: Points, token_bytes: float, calls: int) -> tuple[tuple[float, float, float], ...]:
    """Points (message bytes, seconds) as pieces over tokens, for `calls` all-reduces in a step.

    Smaller messages than the first point cost the same; beyond the last one its line goes on.
    """
    if not points:
        return FREE
    pieces = [(0.0, calls * points[0][1], 0.0)]
    for (size, seconds), (larger, longer) in pairwise(points):
        slope = (longer - seconds) / (larger - size)
        pieces.append((size / token_bytes, calls * seconds, calls * slope * token_bytes))
    return tuple(pieces)
