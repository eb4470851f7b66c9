"""`Gpu`: what one accelerator holds, computes and moves, as measured, and what an hour of it costs.

Peaks are dense data-sheet figures; efficiencies are the share of a peak that an operation was seen to reach. Every
figure says where it is from: a `*_source` that holds the word *assumed* or *estimated* was not measured on this part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..errors import UserError

PRICE_SOURCE = "CoreWeave on demand, February 2026"
TABLES = "measured: fitted to operator tables under vLLM 0.24.0"
PCIE_SHARE = 0.8  # of the link's data-sheet rate that large copies reach
PCIE_5, PCIE_4 = 63.0e9 * PCIE_SHARE, 31.5e9 * PCIE_SHARE
LAYER_S = 10e-6  # 8.5 to 11 µs at up to 64 tokens, on an RTX 4090 and an RTX PRO 6000
HOST_STEP_S = 0.33e-3
HOST_SEQUENCE_S = 28e-6
HOST_SOURCE = "assumed: fitted on half of 177 closed-loop H100 points of another engine"
STEP_ERROR = 0.095  # mean absolute error of the time per output token
ERROR_SOURCE = "assumed: as measured on h100"

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `usable_gib` is what an engine sees, not the label; rates per second; times in seconds.

    By dtype: `flops` the dense peak; `matmul` and `streaming` the shares of it and of the memory bandwidth that
    products approach; `matmul_floor_s` what one product costs whatever its size; `overlap` how well its operations
    hide its bytes, the p of (operationsᵖ + bytesᵖ)^(1/p): 1 not at all, infinite wholly.
    Attention: `decode_attention` the share of bandwidth at which caches are read, `prefill_attention` the share of
    peak, `attention_io` the share of bandwidth at which inputs and outputs move, `attention_floor_s` per layer.
    Experts: `expert_matmul` the share of the bf16 peak that a fused mixture approaches, in whatever dtype,
    `expert_floor_s` what it costs per layer beside (routing, sorting, more kernels).
    `all_reduce_s` maps a tensor-parallel size to points (message bytes, seconds), ascending. `link_bandwidth` is the
    link to the host, one direction. `host_step_s` and `host_sequence_s` are what the engine's host adds to a step,
    `layer_s` what each layer's small kernels do (norms, rotation, activation) whatever the batch.
    `step_error` is the mean relative error of a step's seconds on servers that nothing was fitted on.
    """

    name: str
    usable_gib: float
    bandwidth: float
    flops: Mapping[str, float]
    matmul: Mapping[str, float]
    streaming: Mapping[str, float]
    decode_attention: float
    prefill_attention: float
    attention_floor_s: float
    matmul_floor_s: Mapping[str, float]
    all_reduce_s: Mapping[int, Points]
    price_per_hour: float | None
    price_source: str = PRICE_SOURCE
    usable_source: str = "measured: device total as an engine reports it"
    overlap: Mapping[str, float] = field(default_factory=lambda: {"bf16": 3.0, "fp8": 1.25})
    attention_io: float = 0.45
    expert_matmul: float = 0.476
    expert_floor_s: float = 35.4e-6
    layer_s: float = LAYER_S
    link_bandwidth: float = PCIE_5
    link_source: str = "assumed: 80 % of PCIe 5 × 16"
    efficiency_source: str = TABLES
    all_reduce_source: str = "measured: vLLM's custom all-reduce in a graph"
    host_step_s: float = HOST_STEP_S
    host_sequence_s: float = HOST_SEQUENCE_S
    host_source: str = HOST_SOURCE
    step_error: float = STEP_ERROR
    error_source: str = ERROR_SOURCE

    def all_reduce(self, tp: int) -> Points:
        """Measured points (message bytes, seconds) of an all-reduce over `tp` GPUs; none for one GPU.

        UserError where nothing was measured at that size.
        """
        if tp == 1:
            return ()
        if tp not in self.all_reduce_s:
            known = ", ".join(map(str, sorted(self.all_reduce_s))) or "none"
            raise UserError(f"{self.name} has no all-reduce times for --tp {tp} (known: {known}); give all_reduce_us")
        return self.all_reduce_s[tp]

    def priced(self, price_per_hour: float | None) -> Gpu:
        """With the user's own price."""
        if price_per_hour is None:
            return self
        if not 0 < price_per_hour < float("inf"):
            raise UserError(f"--price {price_per_hour}: USD per GPU-hour must be above 0, and finite")
        return replace(self, price_per_hour=price_per_hour, price_source="--price")
