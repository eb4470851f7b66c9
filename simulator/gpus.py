"""The built-in GPUs.

Efficiencies of the A100, H100, H200 and L40S are fitted to operator tables measured under vLLM 0.24.0 (A100: 0.14.0),
those of the RTX parts to a profile of Llama-3.1-8B's layers under vLLM 0.19.0; `calibration/operators` finds them
again. Fused mixtures of experts were measured on the A100 and the H100: the other parts borrow the latter's figures.
Parts without any table borrow those of the nearest that has one. fp8 never reaches twice bf16. Peaks are dense: data
sheets like to print twice as much, with sparsity.
"""

from __future__ import annotations

from dataclasses import replace

from .gpu import PCIE_4, Gpu, Points

KIB = 2.0**10
# The tables count elements of two bytes: NCCL's int8 rows take as long as its half rows of half the count.
SIZES = (64 * KIB, 256 * KIB, 1024 * KIB, 4096 * KIB, 16_384 * KIB, 65_536 * KIB, 262_144 * KIB)
NO_PRICE = "unknown: give --price"
BY_SERVERS = "measured: {} closed-loop rows of vLLM servers, nothing fitted on them"
ON_PCIE_4 = "assumed: 80 % of PCIe 4 × 16"
PROFILE = "measured: fitted to a profile of Llama-3.1-8B's layers under vLLM 0.19.0; fp8 assumed from l40s"


def _us(by_tp: dict[int, tuple[float, ...]], sizes: tuple[float, ...] = SIZES) -> dict[int, Points]:
    """Microseconds at `sizes` bytes → points in seconds. The first size stands for all smaller messages."""
    return {tp: tuple((size, t * 1e-6) for size, t in zip(sizes, times, strict=True)) for tp, times in by_tp.items()}


def _borrowed(part: str) -> str:
    return f"assumed: as measured on {part}"


A100 = Gpu(
    name="a100-80",
    usable_gib=79.15,
    bandwidth=2.039e12,
    flops={"bf16": 312e12},
    matmul={"bf16": 0.857},
    streaming={"bf16": 0.769},
    overlap={"bf16": 1.62},
    matmul_floor_s={"bf16": 5.9e-6},
    decode_attention=0.74,
    prefill_attention=0.576,
    attention_io=0.445,
    attention_floor_s=17.4e-6,
    expert_matmul=0.34,
    expert_floor_s=24.6e-6,
    all_reduce_s=_us(
        {
            2: (5.0, 6.6, 10.7, 25.2, 126.3, 388.5, 1427.6),
            4: (5.3, 9.9, 18.3, 41.5, 182.5, 540.0, 1920.7),
            8: (6.3, 17.1, 21.7, 45.4, 214.2, 594.2, 2170.2),
        }
    ),
    price_per_hour=2.70,
    link_bandwidth=PCIE_4,
    link_source=ON_PCIE_4,
    efficiency_source="measured: fitted to operator tables under vLLM 0.14.0",
)

H100 = Gpu(
    name="h100",
    usable_gib=79.18,
    bandwidth=3.35e12,
    flops={"bf16": 989e12, "fp8": 1979e12},
    matmul={"bf16": 0.811, "fp8": 0.487},
    streaming={"bf16": 0.875, "fp8": 0.875},
    overlap={"bf16": 3.07, "fp8": 1.22},
    matmul_floor_s={"bf16": 3.8e-6, "fp8": 6.9e-6},
    decode_attention=0.873,
    prefill_attention=0.692,
    attention_io=0.441,
    attention_floor_s=12.3e-6,
    all_reduce_s=_us(
        {
            2: (4.3, 5.2, 8.3, 20.2, 81.4, 306.7, 885.4),
            4: (4.7, 7.2, 12.8, 30.2, 98.8, 329.9, 1180.4),
            8: (5.1, 10.8, 15.0, 30.8, 92.4, 344.0, 1091.0),
        }
    ),
    price_per_hour=6.16,
    usable_source="measured: 79.18 GiB in vLLM's own reports",
    step_error=0.095,
    error_source=BY_SERVERS.format(106),
)

H200 = Gpu(
    name="h200",
    usable_gib=139.5,
    bandwidth=4.8e12,
    flops={"bf16": 989e12, "fp8": 1979e12},
    matmul={"bf16": 0.807, "fp8": 0.543},
    streaming={"bf16": 0.841, "fp8": 0.857},
    overlap={"bf16": 3.34, "fp8": 1.0},
    matmul_floor_s={"bf16": 4.1e-6, "fp8": 7.2e-6},
    decode_attention=0.835,
    prefill_attention=0.683,
    attention_io=0.318,
    attention_floor_s=12.1e-6,
    all_reduce_s=_us(
        {
            2: (4.5, 5.2, 8.4, 20.5, 76.6, 280.6, 887.3),
            4: (4.6, 7.0, 12.1, 29.8, 93.8, 320.2, 1181.6),
            8: (4.8, 10.1, 14.1, 28.4, 87.2, 323.3, 1052.4),
        }
    ),
    price_per_hour=6.31,
    usable_source="measured: 139 to 140 GiB in public reports",
    step_error=0.068,
    error_source=BY_SERVERS.format(74),
)

# Published medians of its tables, carried over to the forms of the cost model as those of the H200 carry over.
B200 = Gpu(
    name="b200",
    usable_gib=179.0,
    bandwidth=8.0e12,
    flops={"bf16": 2250e12, "fp8": 4500e12},
    matmul={"bf16": 0.72, "fp8": 0.43},
    streaming={"bf16": 0.79, "fp8": 0.69},
    overlap={"bf16": 3.34, "fp8": 1.0},
    matmul_floor_s={"bf16": 3.3e-6, "fp8": 5.8e-6},
    decode_attention=0.88,
    prefill_attention=0.58,
    attention_io=0.32,
    attention_floor_s=9e-6,
    expert_floor_s=15e-6,
    all_reduce_s=_us({2: (7.0, 57.0), 4: (7.1, 68.0), 8: (7.8, 63.0)}, (SIZES[0], SIZES[4])),
    price_per_hour=8.60,
    usable_source="estimated: about 179 GiB in public reports",
    efficiency_source="estimated: from published medians of operator tables under vLLM 0.24.0",
    all_reduce_source="measured at 64 KiB and 16 MiB, a line between and beyond",
    step_error=0.192,
    error_source=BY_SERVERS.format(89),
)
# What is known of a part whose efficiencies no table says: they were not fitted for the B200 either.
GUESSED = "assumed: as on b200, whose efficiencies were not fitted either"

L40S = Gpu(
    name="l40s",
    usable_gib=44.42,
    bandwidth=0.864e12,
    flops={"bf16": 362e12, "fp8": 733e12},
    matmul={"bf16": 0.642, "fp8": 0.53},
    streaming={"bf16": 0.787, "fp8": 0.77},
    overlap={"bf16": 2.17, "fp8": 1.15},
    matmul_floor_s={"bf16": 0.0, "fp8": 2.7e-6},
    decode_attention=0.787,
    prefill_attention=0.536,
    attention_io=1.28,
    attention_floor_s=11.2e-6,
    all_reduce_s=_us(
        {
            2: (5.6, 18.1, 60.2, 229.4, 891.9, 3541.6, 14_061.7),
            4: (14.1, 115.6, 360.6, 1648.7, 6676.2, 27_241.5, 108_478.4),
            8: (26.7, 207.1, 582.6, 4014.5, 15_805.9, 60_073.0, 240_073.7),
        }
    ),
    price_per_hour=2.25,
    usable_source="measured: 44.4 to 44.5 GiB in public reports, error correction on",
    link_bandwidth=PCIE_4,
    link_source=ON_PCIE_4,
)

A100_40 = replace(
    A100,
    name="a100-40",
    usable_gib=39.5,
    bandwidth=1.555e12,
    price_per_hour=1.84,
    price_source="AWS capacity block, 2026",
    usable_source="measured: 39.4 to 39.6 GiB in public reports",
    efficiency_source=_borrowed("a100-80, the same chip"),
)

MI300X = replace(
    H200,
    name="mi300x",
    usable_gib=191.5,
    bandwidth=5.3e12,
    flops={"bf16": 1307e12, "fp8": 2615e12},
    price_per_hour=1.85,
    price_source="Vultr on demand, 2026",
    usable_source="estimated: the 192 GiB of the label less what the driver keeps",
    efficiency_source=_borrowed("h200; no table of this part was at hand"),
    step_error=B200.step_error,
    error_source=GUESSED,
    all_reduce_source=_borrowed("h200, a link of the same rate"),
)

L4 = replace(
    L40S,
    name="l4",
    usable_gib=22.0,
    bandwidth=0.300e12,
    flops={"bf16": 121e12, "fp8": 242e12},
    price_per_hour=0.80,
    price_source="AWS g6, from a planner's catalogue of 2026",
    usable_source="estimated: about 22 GiB in public reports, error correction on",
    efficiency_source=_borrowed("l40s, the same generation"),
    step_error=B200.step_error,
    error_source=GUESSED,
    all_reduce_source=_borrowed("l40s, the same link"),
)

A10G = replace(
    L40S,
    name="a10g",
    usable_gib=22.2,
    bandwidth=0.600e12,
    flops={"bf16": 70e12},
    matmul={"bf16": L40S.matmul["bf16"]},
    streaming={"bf16": L40S.streaming["bf16"]},
    price_per_hour=1.006,
    price_source="AWS g5.xlarge, June 2026",
    usable_source="measured: 22.2 GiB in public reports, error correction on",
    efficiency_source=_borrowed("l40s, memory of the same kind"),
    step_error=B200.step_error,
    error_source=GUESSED,
    all_reduce_source=_borrowed("l40s, the same link"),
)

RTX_4090 = replace(
    L40S,
    name="rtx-4090",
    usable_gib=23.52,
    bandwidth=1.008e12,
    flops={"bf16": 165.2e12, "fp8": 330.3e12},
    matmul={"bf16": 0.971, "fp8": 0.53},
    streaming={"bf16": 0.937, "fp8": 0.77},
    overlap={"bf16": 2.32, "fp8": 1.15},
    matmul_floor_s={"bf16": 6.8e-6, "fp8": 6.8e-6},
    decode_attention=0.905,
    prefill_attention=0.818,
    attention_io=0.59,
    attention_floor_s=10.8e-6,
    price_per_hour=None,
    price_source=NO_PRICE,
    usable_source="measured: 25,250,627,584 bytes in the record of a vLLM run",
    efficiency_source=PROFILE,
    all_reduce_source=_borrowed("l40s, the same link"),
)

RTX_PRO_6000 = replace(
    RTX_4090,
    name="rtx-pro-6000",
    usable_gib=94.97,
    bandwidth=1.792e12,
    flops={"bf16": 503.8e12, "fp8": 1007.6e12},
    matmul={"bf16": 0.794, "fp8": 0.53},
    streaming={"bf16": 0.891, "fp8": 0.77},
    overlap={"bf16": 1.59, "fp8": 1.15},
    matmul_floor_s={"bf16": 6.9e-6, "fp8": 6.9e-6},
    decode_attention=0.803,
    prefill_attention=0.431,
    attention_io=1.39,
    attention_floor_s=10.2e-6,
    usable_source="estimated: about 95 GiB in public reports",
    all_reduce_s={tp: tuple((size, t / 2) for size, t in points) for tp, points in L40S.all_reduce_s.items()},
    all_reduce_source="estimated: half of l40s' times, for twice the link's rate",
    link_bandwidth=H100.link_bandwidth,
    link_source=H100.link_source,
)

GPUS: dict[str, Gpu] = {
    gpu.name: gpu for gpu in (A100_40, A100, H100, H200, B200, MI300X, L40S, L4, A10G, RTX_4090, RTX_PRO_6000)
}
