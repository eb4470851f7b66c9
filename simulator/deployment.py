"""`Deployment`: how one replica is run, and the memory that it leaves for the cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import UserError
from .activation import Activation, activation_peak
from .geometry import DTYPE_BYTES, Geometry
from .hardware import Gpu

GIB = 2.0**30
BLOCK_TOKENS = 16
NON_TORCH_GIB = {1: 0.13}  # else 0.55
TP_SIZES = (1, 2, 4, 8)
HOST_GIB = 128.0  # host memory per GPU that offloaded sessions may fill: assumed
PREEMPTIONS = ("recompute", "swap")
COMPACTIONS = ("inline", "beside")
MOST_HOST_GIB = 1e6  # a pebibyte: more is a slip
_TTL = re.compile(r"ttl:([0-9]+(?:\.[0-9]*)?|\.[0-9]+)")


@dataclass(frozen=True, slots=True)
class Deployment:
    """How one replica is run.

    `retention` says what becomes of a session's cache between its turns: `lru` (stays until pressure evicts it),
    `ttl:SECONDS` (leaves at the latest then), `offload` (what pressure evicts goes to `host_gib` of host memory per GPU
    and is loaded again). `preemption`: a request that must make room is prefilled again later (`recompute`), or copied
    to the host and back (`swap`). `compaction`: `inline` lengthens the step it ends in, `beside` runs on a stream of
    its own and delays its own session only (*assumed* free for the batch: a bound of what overlapping can give).
    `coarse_tokens`: a cache found by hash is reused in multiples of so many tokens only (engines with linear-attention
    layers); 0: to the block.
    """

    geometry: Geometry
    gpu: Gpu
    tp: int = 1
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    utilisation: float = 0.9
    token_budget: int = 8192
    max_sequences: int = 256
    watermark: float = 0.0  # share of blocks kept free at admission; vLLM v1 keeps none, and 1 % fits its runs worse
    activation_gib: float | None = None  # the peak that the engine reserves; None: by the rule of `activation`
    retention: str = "lru"
    host_gib: float = HOST_GIB
    preemption: str = "recompute"
    compaction: str = "inline"
    coarse_tokens: int = 0

    def __post_init__(self) -> None:
        for what, dtype in (("--dtype", self.dtype), ("--kv-dtype", self.kv_dtype)):
            if dtype not in DTYPE_BYTES:
                raise UserError(f"{what} {dtype!r}: one of {', '.join(DTYPE_BYTES)}")
        if self.dtype not in self.gpu.matmul:
            raise UserError(f"--dtype {self.dtype}: {self.gpu.name} has no {self.dtype} matrix units; use bf16")
        if self.tp not in TP_SIZES:
            raise UserError(f"--tp {self.tp}: one of {', '.join(map(str, TP_SIZES))}, or auto")
        if self.tp not in sizes_of(self.geometry):
            raise UserError(
                f"--tp {self.tp}: {self.geometry.q_heads} query heads and {self.geometry.kv_heads} KV heads of "
                f"{self.geometry.name} cannot be split evenly; it runs on {_listed(sizes_of(self.geometry))}"
            )
        for what, count in (("--token-budget", self.token_budget), ("--max-sequences", self.max_sequences)):
            if count < 1:
                raise UserError(f"{what} {count}: 1 at least")
        if not 0.1 <= self.utilisation <= 1.0:
            raise UserError(f"--utilisation {self.utilisation}: a share between 0.1 and 1")
        if self.retention not in ("lru", "offload") and not _TTL.fullmatch(self.retention):
            raise UserError(f"--retention {self.retention!r}: lru, ttl:SECONDS or offload")
        for what, value, known in (
            ("--preemption", self.preemption, PREEMPTIONS),
            ("--compaction", self.compaction, COMPACTIONS),
        ):
            if value not in known:
                raise UserError(f"{what} {value!r}: one of {', '.join(known)}")
        if not 0 <= self.host_gib <= MOST_HOST_GIB:
            raise UserError(f"--host-gib {self.host_gib:g}: GiB of host memory per GPU, 0 to {MOST_HOST_GIB:,.0f}")
        if self.coarse_tokens < 0 or self.coarse_tokens % BLOCK_TOKENS:
            raise UserError(f"--coarse-tokens {self.coarse_tokens}: 0, or a multiple of {BLOCK_TOKENS}")

    @property
    def ttl_s(self) -> float:
        """Seconds after which an idle session's cache goes; infinite unless `retention` says so."""
        match = _TTL.fullmatch(self.retention)
        return float(match.group(1)) if match else float("inf")

    @property
    def offloads(self) -> bool:
        """Whether evicted caches go to host memory."""
        return self.retention == "offload"

    @property
    def activation(self) -> Activation:
        """The activation peak on each GPU, and where the figure is from."""
        if self.activation_gib is not None:
            return Activation(self.activation_gib, "given")
        return activation_peak(self.geometry, self.max_sequences, self.token_budget, self.tp)

    def row_bytes(self) -> float:
        """Bytes of one token's K and V on each GPU; KV heads beyond the tensor-parallel size are split."""
        return self.geometry.row_bytes(self.kv_dtype) / min(self.tp, self.geometry.kv_heads)

    def state_bytes(self) -> float:
        """Constant state of a session on each GPU."""
        return self.geometry.state_bytes / self.tp

    def weights_gib(self) -> float:
        """Weights on each GPU."""
        return self.geometry.weight_bytes(self.dtype) / self.tp / GIB

    def cache_gib(self) -> float:
        """usable · utilisation − weights − activation peak − non-torch, per GPU; negative when it does not fit."""
        non_torch = NON_TORCH_GIB.get(self.tp, 0.55)
        return self.gpu.usable_gib * self.utilisation - self.weights_gib() - self.activation.gib - non_torch

    def blocks(self) -> int:
        """Blocks of 16 tokens in one replica's pool."""
        return max(0, int(self.cache_gib() * GIB // (BLOCK_TOKENS * self.row_bytes())))

    def tokens(self) -> int:
        """Tokens that the pool holds."""
        return self.blocks() * BLOCK_TOKENS

    def replicas(self, gpus: int) -> int:
        """Replicas that `gpus` GPUs make. UserError when some are left over, or there are none."""
        if gpus < 1 or gpus % self.tp:
            raise UserError(f"--gpus {gpus}: above 0, and a multiple of the tensor-parallel size {self.tp}")
        return gpus // self.tp

    def rows_of(self, held_bytes: float) -> int:
        """`held_bytes` of a session beside K and V, in rows of the pool (over all GPUs of the replica)."""
        return -int(-held_bytes // self.geometry.row_bytes(self.kv_dtype))

    def state_blocks(self) -> int:
        """Blocks that the constant state of a session takes."""
        return -int(-self.state_bytes() // (BLOCK_TOKENS * self.row_bytes()))


def sizes_of(geometry: Geometry) -> tuple[int, ...]:
    """Tensor-parallel sizes that give every GPU as many query heads, and as many KV heads or a copy of one."""
    queries, kv = geometry.q_heads, geometry.kv_heads
    return tuple(tp for tp in TP_SIZES if queries % tp == 0 and (kv % tp == 0 or tp % kv == 0))


def _listed(sizes: Sequence[int]) -> str:
    return " or ".join(map(str, sizes)) + (" GPU" if sizes[-1] == 1 else " GPUs")


def fit_tp(deployment: Deployment, longest_rows: int, only: int | None = None) -> Deployment:
    """The smallest tensor-parallel size whose pool holds one session of `longest_rows`; else the largest that loads.

    `only` looks at one size. UserError when the weights fit on no size.
    """
    sizes = sizes_of(deployment.geometry) if only is None else (only,)
    tried = [replace(deployment, tp=tp) for tp in sizes]
    for candidate in tried:
        if candidate.blocks() - candidate.state_blocks() > longest_rows // BLOCK_TOKENS + 1:
            return candidate
    loads = [candidate for candidate in tried if candidate.blocks() > candidate.state_blocks()]
    if not loads:
        need = deployment.geometry.weight_bytes(deployment.dtype) / GIB
        raise UserError(
            f"{deployment.geometry.name} ({need:.0f} GiB of weights) does not fit on {sizes[-1]} × "
            f"{deployment.gpu.name} at utilisation {deployment.utilisation}, with {tried[-1].activation.gib:,.1f} GiB "
            "of activations on each; use a larger GPU, more of them, fp8, or a smaller --token-budget or "
            "--max-sequences"
        )
    return loads[-1]
