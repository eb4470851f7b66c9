"""The built-in model shapes.

Layers, heads and constant state of the Qwen3.5 and Gemma-4 rows follow their public configurations; parameter
counts of all rows are the sums of the matrices that the configuration implies.
"""

from __future__ import annotations

from .geometry import Geometry

MIB = 2.0**20


def dense(
    name: str,
    layers: int,
    hidden: int,
    heads: tuple[int, int, int],
    inner: int,
    vocabulary: int,
    positions: int,
    *,
    tied: bool = False,
    source: str = "public model configuration",
) -> Geometry:
    """A plain decoder: grouped-query attention and a gated MLP in every layer.

    `heads` = (query heads, KV heads, head size); parameters per layer: hidden · size · 2(q + kv) + 3 · hidden · inner.
    """
    q, kv, size = heads
    body = layers * (hidden * size * (2.0 * q + 2.0 * kv) + 3.0 * hidden * inner + 2.0 * hidden)
    table = float(vocabulary * hidden)
    return Geometry(
        name, layers, layers, layers, hidden, q, kv, size, body, table, 0.0 if tied else table, positions, source=source
    )


def gated_delta(
    name: str, layers: int, hidden: int, heads: tuple[int, int, int], inner: int, value_heads: int, *, tied: bool
) -> Geometry:
    """Qwen3.5: every 4th layer full attention with an output gate, the others Gated DeltaNet (float32 state).

    The 128 × 128 state of every value head is read and written at each step; the convolution keeps four columns.
    """
    q, kv, size = heads
    full = layers // 4
    linear = layers - full
    keys, values = 2048.0, 128.0 * value_heads
    attention = hidden * size * (3.0 * q + 2.0 * kv)
    delta = hidden * (2 * keys + 2 * values) + values * hidden
    table = 248_320.0 * hidden
    state = linear * (value_heads * 128.0 * 128.0 * 4.0 + (2 * keys + values) * 4.0 * 2.0)
    return Geometry(
        name,
        layers,
        full,
        full,
        hidden,
        q,
        kv,
        size,
        body_parameters=full * attention + linear * delta + layers * 3.0 * hidden * inner,
        head_parameters=table,
        table_parameters=0.0 if tied else table,
        max_positions=262_144,
        state_bytes=state,
        state_traffic_bytes=2.0 * state,
    )


def _gemma_31b() -> Geometry:
    """60 layers: 10 full (4 KV heads of 512), 50 sliding over 1,024 tokens (16 KV heads of 256); tied embedding."""
    hidden, sliding = 5376.0, 50
    mlp = 60 * 3 * hidden * 21_504
    local = sliding * hidden * 256 * (32 * 2 + 16 * 2)
    full = 10 * hidden * 512 * (32 * 2 + 4)
    state = sliding * 1023 * 16 * 256 * 2 * 2.0
    return Geometry(
        "gemma-4-31b",
        60,
        10,
        10,
        5376,
        32,
        4,
        512,
        body_parameters=mlp + local + full,
        head_parameters=262_144 * hidden,
        table_parameters=0.0,
        max_positions=262_144,
        state_bytes=state,
        state_traffic_bytes=state,
        local_flops=4.0 * 32 * 256 * 1024 * sliding,
    )


def _gemma_e4b() -> Geometry:
    """42 layers, 7 of them full; 18 borrow their cache, so 4 full and 20 sliding layers (window 512) own one."""
    state = 20 * 512 * 2 * 256 * 2 * 2.0
    return Geometry(
        "gemma-4-e4b",
        42,
        4,
        7,
        2560,
        8,
        2,
        512,
        body_parameters=3.9e9,
        head_parameters=262_144 * 2560.0,
        table_parameters=3.43e9,
        max_positions=131_072,
        state_bytes=state,
        state_traffic_bytes=state * 35 / 20,
        local_flops=4.0 * 8 * 256 * 512 * 35,
        source="public model card: 8.0e9 parameters, of which about 4.5e9 take part in a token",
    )


CATALOGUE: dict[str, Geometry] = {
    shape.name: shape
    for shape in (
        gated_delta("qwen3.5-27b", 64, 5120, (24, 4, 256), 17_408, 48, tied=False),
        gated_delta("qwen3.5-4b", 32, 2560, (16, 4, 256), 9_216, 32, tied=True),
        _gemma_31b(),
        _gemma_e4b(),
        dense("qwen3-0.6b", 28, 1024, (16, 8, 128), 3_072, 151_936, 40_960, tied=True),
        dense("qwen3-8b", 36, 4096, (32, 8, 128), 12_288, 151_936, 40_960),
        dense("qwen3-32b", 64, 5120, (64, 8, 128), 25_600, 151_936, 40_960),
        dense("llama-3.1-8b", 32, 4096, (32, 8, 128), 14_336, 128_256, 131_072),
        dense("llama-3.1-70b", 80, 8192, (64, 8, 128), 28_672, 128_256, 131_072),
        dense("smollm2-135m", 30, 576, (9, 3, 64), 1_536, 49_152, 8_192, tied=True),
    )
}
