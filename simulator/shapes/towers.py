"""Vision and audio parts of multimodal models: parameters that are held and that no text token multiplies."""

from __future__ import annotations

from collections.abc import Callable

from .layers import gated_mlp
from .values import Values

DEFAULTS = {
    "siglip_vision_model": {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "image_size": 224, "patch_size": 16,
        "vision_use_head": True,
    },
    "pixtral": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "patch_size": 16},
    "qwen3_5_vision": {
        "hidden_size": 1152, "intermediate_size": 4304, "depth": 27, "patch_size": 16, "temporal_patch_size": 2,
        "spatial_merge_size": 2, "out_hidden_size": 3584, "num_position_embeddings": 2304,
    },
    "gemma4_vision": {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "num_attention_heads": 12,
        "num_key_value_heads": 12, "head_dim": 64, "patch_size": 16, "position_embedding_size": 10_240,
    },
    "gemma4_audio": {
        "hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 8, "conv_kernel_size": 5,
        "subsampling_conv_channels": [128, 32], "output_proj_dims": 1536,
    },
}  # fmt: skip


def towers(outer: Values, hidden: int) -> tuple[float, tuple[str, ...]]:
    """Parameters of the vision and audio parts that `outer` has, and a note for each that could not be counted.

    `hidden` is the width of the text model, into which they are projected.
    """
    total, notes = 0.0, []
    for key in ("vision_config", "audio_config"):
        tower = outer.part(key)
        if tower is None:
            continue
        kind = _kind(outer, tower)
        count = COUNTS.get(kind)
        if count is None or (kind == "siglip_vision_model" and tower.over(DEFAULTS[kind]).flag("vision_use_head")):
            notes.append(f"the weights of {key} ({kind or 'of no stated kind'}) are not counted")
        else:
            total += count(tower.over(DEFAULTS[kind]), outer, hidden)
    return total, tuple(notes)


def _kind(outer: Values, tower: Values) -> str:
    """What the tower calls itself; older Qwen files repeat the name of the whole model."""
    kind = str(tower.raw("model_type") or "")
    if kind in ("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_vision") or (
        not kind and "qwen3_5" in str(outer.raw("model_type"))
    ):
        return "qwen3_5_vision"
    return kind


def _siglip(tower: Values, _: Values, text: int) -> float:
    width, inner, patch = tower.number("hidden_size"), tower.number("intermediate_size"), tower.number("patch_size")
    layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
    patches = 3 * patch * patch * width + width + (tower.number("image_size") // patch) ** 2 * width
    return float(tower.number("num_hidden_layers") * layer + patches + 2 * width + width * text + width)


def _pixtral(tower: Values, outer: Values, text: int) -> float:
    width, patch = tower.number("hidden_size"), tower.number("patch_size")
    layer = 4 * width * width + gated_mlp(width, tower.number("intermediate_size")) + 2 * width
    merge = (outer.maybe("spatial_merge_size") or 2) ** 2
    projector = width + merge * width * width + width * text + text * text
    return tower.number("num_hidden_layers") * layer + 3 * patch * patch * width + width + projector


def _qwen(tower: Values, _: Values, __: int) -> float:
    out = tower.number("out_hidden_size")
    width, inner, patch = tower.number("hidden_size"), tower.number("intermediate_size"), tower.number("patch_size")
    merged = width * tower.number("spatial_merge_size") ** 2
    layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
    patches = 3 * tower.number("temporal_patch_size") * patch * patch * width + width
    merger = 2 * width + merged * merged + merged + merged * out + out
    positions = tower.number("num_position_embeddings") * width
    return float(tower.number("depth") * layer + patches + positions + merger)


def _gemma_vision(tower: Values, _: Values, text: int) -> float:
    width, size, patch = tower.number("hidden_size"), tower.number("head_dim"), tower.number("patch_size")
    heads = 2 * tower.number("num_attention_heads") + 2 * tower.number("num_key_value_heads")
    layer = width * size * heads + 2 * size + gated_mlp(width, tower.number("intermediate_size")) + 4 * width
    patches = 3 * patch * patch * width + 2 * tower.number("position_embedding_size") * width
    return tower.number("num_hidden_layers") * layer + patches + width * text


def _gemma_audio(tower: Values, _: Values, text: int) -> float:
    """Conformer layers: two feed-forward parts, attention with relative positions, a light convolution."""
    width, out = tower.number("hidden_size"), tower.number("output_proj_dims")
    first, second = tower.numbers("subsampling_conv_channels")
    feed = 2 * (8 * width * width + 2 * width)
    attention = 5 * width * width + width // tower.number("num_attention_heads")
    convolution = 3 * width * width + tower.number("conv_kernel_size") * width + 2 * width
    layers = tower.number("num_hidden_layers") * (feed + attention + convolution + 3 * width)
    subsampling = 9 * first + first + 9 * first * second + second + first // 4 * second * width
    return float(layers + subsampling + width * out + out + out * text)


COUNTS: dict[str, Callable[[Values, Values, int], float]] = {
    "siglip_vision_model": _siglip,
    "pixtral": _pixtral,
    "qwen3_5_vision": _qwen,
    "gemma4_vision": _gemma_vision,
    "gemma4_audio": _gemma_audio,
}
