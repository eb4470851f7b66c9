"""`CostModel`: the seconds of a step, of a compaction, of a prefill.

A step = dense work + attention + all-reduce + host time, each on its own roofline (operations against peak, bytes
against bandwidth, times the measured efficiency). The host term, 0.33 ms per step and 28 µs per sequence, is what
a pure roofline lacks; it was fitted on half of 177 closed-loop H100 points and is *assumed* elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..replay.policies.base import Work
from .deployment import Deployment

HOST_STEP_S = 0.33e-3
HOST_SEQUENCE_S = 28e-6
MATMULS_PER_LAYER = 5
HELD_OUT_ERROR = 0.081  # time per output token, the other half of those points: assumed until validate measures it


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of everything a replica does. All terms are linear, so stretches of equal steps have closed sums."""

    weights_s: float
    token_s: float
    head_s: float
    dense_floor_s: float
    pair_s: float
    local_s: float
    row_s: float
    state_s: float
    attention_floor_s: float
    reduce_s: float
    reduce_token_s: float
    host_s: float
    host_sequence_s: float
    work_flop_s: float
    work_byte_s: float
    work_floor_s: float

    @classmethod
    def of(cls, deployment: Deployment) -> CostModel:
        """The roofline of a deployment, at the GPU's measured efficiencies."""
        shape, gpu, tp = deployment.geometry, deployment.gpu, deployment.tp
        dense_rate = gpu.flops[deployment.dtype] * gpu.matmul[deployment.dtype] * tp
        head_rate = gpu.flops["bf16"] * gpu.matmul["bf16"] * tp
        attention_rate = gpu.flops["bf16"] * gpu.prefill_attention * tp
        stream = gpu.bandwidth * gpu.streaming[deployment.dtype] * tp
        read = gpu.bandwidth * gpu.decode_attention
        latency, per_byte = gpu.all_reduce(tp)
        borrowed = shape.reading_layers / shape.full_layers
        return cls(
            weights_s=shape.streamed_bytes(deployment.dtype) / stream,
            token_s=2.0 * shape.body_parameters / dense_rate,
            head_s=2.0 * shape.head_parameters / head_rate,
            dense_floor_s=MATMULS_PER_LAYER * shape.layers * gpu.matmul_floor_s,
            pair_s=shape.pair_flops() / attention_rate,
            local_s=shape.local_flops / attention_rate,
            row_s=deployment.row_bytes() * borrowed / read,
            state_s=shape.state_traffic_bytes / tp / read,
            attention_floor_s=shape.reading_layers * gpu.attention_floor_s,
            reduce_s=2 * shape.layers * latency,
            reduce_token_s=2 * shape.layers * per_byte * shape.hidden * 2.0,
            host_s=HOST_STEP_S,
            host_sequence_s=HOST_SEQUENCE_S,
            work_flop_s=1.0 / head_rate,
            work_byte_s=1.0 / (read * tp),
            work_floor_s=shape.full_layers * gpu.attention_floor_s,
        )

    def scaled(self, factor: float) -> CostModel:
        """Every second multiplied by `factor`: a machine slower or faster than the model says."""
        return CostModel(*(getattr(self, name) * factor for name in self.__slots__))

    def compaction_s(self, work: Work) -> float:
        """One compaction on the target's roofline (*estimated*), one kernel floor per layer included; 0 for none."""
        if work.flops <= 0 and work.bytes <= 0:
            return 0.0
        return max(work.flops * self.work_flop_s, work.bytes * self.work_byte_s) + self.work_floor_s

    def fixed_s(self, decodes: int) -> float:
        """What every step of a pure decode stretch costs whatever the contexts: dense, all-reduce, host."""
        dense = decodes * (self.token_s + self.head_s)
        dense = max(dense, self.weights_s, self.dense_floor_s)
        return dense + self.reduce_s + self.reduce_token_s * decodes + self.host_s + self.host_sequence_s * decodes

    def decode_attention_s(self, decodes: int, rows: float) -> float:
        """Reading `rows` of K and V and the constant state of `decodes` sequences."""
        return max(self.attention_floor_s, rows * self.row_s + decodes * self.state_s) if decodes else 0.0

    def step_s(self, decodes: int, rows: float, prefills: int, tokens: int, pairs: float, ending: int) -> float:
        """One mixed step: `decodes` sequences over `rows`, and `prefills` chunks of `tokens` over `pairs`.

        `pairs` sums, over chunk tokens, the rows each can see; `ending` chunks sample their first token.
        """
        fed = decodes + tokens
        dense = max(fed * self.token_s + (decodes + ending) * self.head_s, self.weights_s, self.dense_floor_s)
        attention = self.decode_attention_s(decodes, rows) + pairs * self.pair_s + tokens * self.local_s
        host = self.host_s + self.host_sequence_s * (decodes + prefills)
        return dense + attention + self.reduce_s + self.reduce_token_s * fed + host

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
