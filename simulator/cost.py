"""`CostModel`: the seconds of a step, of a compaction, of a prefill, of a copy over the host link.

A step = dense work + attention + all-reduce + small kernels + host time. Products hide the shorter of operations and
bytes only in part: (operationsᵖ + bytesᵖ)^(1/p), a floor for each product beside it. Attention adds up: a floor per
layer, rows read, pairs computed. The host term, per step and per sequence, is what a pure roofline lacks. A step of n
tokens reads the experts that it is expected to touch: experts · (1 − (1 − active/experts)ⁿ).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..replay.policies.base import Work
from .deployment import Deployment
from .gpu import ERROR_SOURCE, STEP_ERROR, Points

if TYPE_CHECKING:
    from .gpu_file import Calibration

MATMULS_PER_LAYER = 4
SMALL_BYTES = 2.3  # moved by small kernels per value that a product puts out: the same on two profiled GPUs
REDUCES_PER_LAYER = 2
EXPERT_OVERLAP = 1.1  # of a fused mixture's operations and bytes: 1.0 to 1.5 in measured tables
FREE: tuple[tuple[float, float, float], ...] = ((0.0, 0.0, 0.0),)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of everything a replica does. All terms are linear in the rows: stretches of steps have closed sums.

    Names in `_s` are seconds. `weights_s` streams all weights but the experts and the output projection. `token_s` and
    `head_s` are operations of a token fed and of one sampled, `small_s` what small kernels move for a token, `local_s`
    what a prefilled token costs in attention whatever it sees; `experts_s` streams every expert, `expert_token_s` are
    a token's operations in them, `expert_miss` is the chance that it leaves one alone. `reduce_s` are pieces (from so
    many tokens, seconds there, seconds per token more). `error` is the relative error of a step's seconds on rows that
    nothing was fitted on, `error_source` where it is from.
    """

    weights_s: float = 0.0
    head_weights_s: float = 0.0
    experts_s: float = 0.0
    expert_token_s: float = 0.0
    expert_miss: float = 0.0
    token_s: float = 0.0
    head_s: float = 0.0
    small_s: float = 0.0
    dense_floor_s: float = 0.0
    overlap: float = 1.0
    head_overlap: float = 1.0
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
    error: float = STEP_ERROR
    error_source: str = ERROR_SOURCE
    _fixed: dict[int, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, deployment: Deployment, calibration: Calibration | None = None) -> CostModel:
        """The roofline of a deployment, at the GPU's measured efficiencies, or those of a calibration."""
        shape, tp, dtype = deployment.geometry, deployment.tp, deployment.dtype
        gpu = deployment.gpu if calibration is None else calibration.applied(deployment.gpu)
        dense_rate = gpu.flops[dtype] * gpu.matmul[dtype] * tp
        head_rate = gpu.flops["bf16"] * gpu.matmul["bf16"] * tp
        attention_rate = gpu.flops["bf16"] * gpu.prefill_attention * tp
        stream, head_stream = (gpu.bandwidth * gpu.streaming[name] * tp for name in (dtype, "bf16"))
        read = gpu.bandwidth * gpu.decode_attention
        borrowed = shape.reading_layers / shape.full_layers
        head_bytes = 2.0 * shape.head_parameters
        weights = shape.streamed_bytes(dtype, 0.0)
        active = shape.active_experts * shape.expert_parameters
        floor_s = MATMULS_PER_LAYER * gpu.matmul_floor_s[dtype] + gpu.layer_s + (gpu.expert_floor_s if active else 0.0)
        # Queries and outputs in bf16 beside the new rows of K and V.
        chunk_bytes = shape.reading_layers * 4.0 * shape.q_heads * shape.head_dim + shape.row_bytes("bf16")
        return cls(
            weights_s=(weights - head_bytes) / stream,
            head_weights_s=head_bytes / head_stream,
            experts_s=(shape.streamed_bytes(dtype, float("inf")) - weights) / stream,
            expert_miss=1.0 - shape.active_experts / shape.experts if shape.experts else 0.0,
            expert_token_s=2.0 * active / (gpu.flops["bf16"] * gpu.expert_matmul * tp),
            token_s=2.0 * shape.body_parameters / dense_rate,
            head_s=2.0 * shape.head_parameters / head_rate,
            small_s=SMALL_BYTES * (shape.body_parameters + active) / shape.hidden / (gpu.bandwidth * tp),
            dense_floor_s=shape.layers * floor_s,
            overlap=gpu.overlap[dtype],
            head_overlap=gpu.overlap["bf16"],
            pair_s=shape.prefill_pair_flops() / attention_rate,
            local_s=shape.local_flops / attention_rate + chunk_bytes / (gpu.bandwidth * gpu.attention_io * tp),
            # One latent row read by many query heads (MLA) takes more operations than bytes.
            row_s=max(deployment.row_bytes() * borrowed / read, shape.pair_flops() / attention_rate),
            state_s=shape.state_traffic_bytes / tp / read,
            # Windows and recurrent states have a kernel per layer too; that it costs as much is assumed.
            attention_floor_s=shape.layers * gpu.attention_floor_s,
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
            part.name: getattr(self, part.name) * factor
            for part in fields(self)
            if part.name.endswith("_s") and part.name != "reduce_s"
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
        """Reading the weights that a step of `tokens` tokens touches, the output projection among them."""
        return self.weights_s + self.head_weights_s + self._experts_s(tokens)

    def _experts_s(self, tokens: float) -> float:
        return self.experts_s * (1.0 - self.expert_miss**tokens) if self.experts_s else 0.0

    def dense_s(self, fed: float, sampled: float) -> float:
        """Products and small kernels of a step that feeds `fed` tokens and samples `sampled`."""
        body = _beside(fed * self.token_s, self.weights_s, self.overlap)
        if sampled:
            body += _beside(sampled * self.head_s, self.head_weights_s, self.head_overlap)
        if self.experts_s:
            body += _beside(fed * self.expert_token_s, self._experts_s(fed), EXPERT_OVERLAP)
        return self.dense_floor_s + body + fed * self.small_s

    def all_reduce_s(self, tokens: float) -> float:
        """The all-reduces of one step of `tokens` tokens: measured sizes, straight lines between them."""
        pieces = self.reduce_s
        if len(pieces) == 1:
            return pieces[0][1]
        start, at, more = pieces[bisect_right(pieces, tokens, key=_start) - 1]
        return at + more * (tokens - start)

    def fixed_s(self, decodes: int) -> float:
        """What every step of a pure decode stretch costs whatever the contexts: dense, all-reduce, host."""
        known = self._fixed.get(decodes)
        if known is None:
            host = self.host_s + self.host_sequence_s * decodes
            known = self._fixed[decodes] = self.dense_s(decodes, decodes) + self.all_reduce_s(decodes) + host
        return known

    def decode_attention_s(self, decodes: int, rows: float) -> float:
        """Reading `rows` of K and V and the constant state of `decodes` sequences."""
        return self.attention_floor_s + rows * self.row_s + decodes * self.state_s if decodes else 0.0

    def step_s(self, decodes: int, rows: float, prefills: int, tokens: int, pairs: float, ending: int) -> float:
        """One mixed step: `decodes` sequences over `rows`, and `prefills` chunks of `tokens` over `pairs`.

        `pairs` sums, over chunk tokens, the rows each can see; `ending` chunks sample their first token.
        """
        fed = decodes + tokens
        attention = rows * self.row_s + decodes * self.state_s + pairs * self.pair_s + tokens * self.local_s
        host = self.host_s + self.host_sequence_s * (decodes + prefills)
        dense = self.dense_s(fed, decodes + ending)
        return dense + self.attention_floor_s + attention + self.all_reduce_s(fed) + host

    def stretch_s(self, decodes: int, rows: float, steps: int) -> float:
        """`steps` pure decode steps of `decodes` sequences that start at `rows` rows in all.

        Σ_i (rows + i·decodes) is steps·rows + decodes·steps·(steps − 1)/2.
        """
        read = steps * rows + decodes * steps * (steps - 1) / 2.0
        return steps * (self.fixed_s(decodes) + self.attention_floor_s + decodes * self.state_s) + read * self.row_s


def _beside(operations_s: float, bytes_s: float, overlap: float) -> float:
    """Two times that hide each other in part: the longer alone for a large `overlap`, their sum for 1."""
    if not operations_s or not bytes_s:
        return operations_s + bytes_s
    return (operations_s**overlap + bytes_s**overlap) ** (1.0 / overlap)


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
