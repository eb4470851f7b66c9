"""A `Geometry` from a Hugging Face `config.json`: the plain decoders only; anything else is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import UserError
from .catalogue import dense
from .geometry import Geometry

# Decoders whose every layer is grouped-query attention with a full cache and a gated MLP.
PLAIN_DECODERS = ("llama", "qwen3", "smollm3")


def read_config(path: Path) -> Geometry:
    """The geometry that `path` describes.

    UserError when the file is not JSON, lacks a needed key, or names a `model_type` whose cache is not understood:
    the standard formula is never applied to it.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"model configuration {path}: cannot be read as JSON ({error})") from None
    if not isinstance(config, dict):
        raise UserError(f"model configuration {path}: not a JSON object")
    kind = config.get("model_type")
    if kind not in PLAIN_DECODERS:
        raise UserError(
            f"model configuration {path}: model_type {kind!r} is not understood. "
            f"Known: {', '.join(PLAIN_DECODERS)}; other shapes by catalogue name"
        )
    layers = _number(config, "num_hidden_layers", path)
    _refuse_windows(config, path)
    hidden = _number(config, "hidden_size", path)
    q = _number(config, "num_attention_heads", path)
    kv = _number(config, "num_key_value_heads", path) if config.get("num_key_value_heads") is not None else q
    size = _number(config, "head_dim", path) if config.get("head_dim") is not None else hidden // q
    return dense(
        str(config.get("_name_or_path") or path.parent.name or kind),
        layers,
        hidden,
        (q, kv, size),
        _number(config, "intermediate_size", path),
        _number(config, "vocab_size", path),
        _number(config, "max_position_embeddings", path),
        tied=bool(config.get("tie_word_embeddings", False)),
        source=str(path),
    )


def _refuse_windows(config: dict[str, Any], path: Path) -> None:
    kinds = set(config.get("layer_types") or ["full_attention"])
    if kinds != {"full_attention"} or (config.get("use_sliding_window") and config.get("sliding_window")):
        raise UserError(
            f"model configuration {path}: layers other than full attention are not understood "
            f"({', '.join(sorted(map(str, kinds)))})"
        )


def _number(config: dict[str, Any], key: str, path: Path) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"model configuration {path}: {key} must be a whole number of at least 1, not {value!r}")
    return value
