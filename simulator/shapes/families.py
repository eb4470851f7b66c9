"""Which family reads which `model_type`, what is refused and why, and `geometry_of`, the one way to a shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..geometry import Geometry
from .hybrid import gated_delta
from .latent import deepseek
from .mixture import glm, gpt_oss, mixtral, qwen_moe
from .plain import FAMILIES, plain
from .towers import towers
from .values import Values
from .windowed import gemma2, gemma3, gemma4

READERS: dict[str, Callable[[Values], Geometry]] = {
    **dict.fromkeys(FAMILIES, plain),
    "mixtral": mixtral,
    "minimax_m2": mixtral,
    "glm4_moe": glm,
    "qwen2_moe": qwen_moe,
    "qwen3_moe": qwen_moe,
    "gpt_oss": gpt_oss,
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "kimi_k2": deepseek,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "gemma4_text": gemma4,
    "qwen3_5_text": gated_delta,
    "qwen3_5_moe_text": gated_delta,
    "qwen3_next": gated_delta,
}
# Multimodal wrappers: the text model lies under `text_config`, of this type unless it says another.
WRAPPERS = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "mistral3": "mistral",
}
_STATE_SPACE = "it has state-space layers, whose state per session is not known here"
_INDEXER = "it attends to rows that an indexer selects, which keeps a cache of its own"
REFUSED = {
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "rwkv", "recurrent_gemma", "xlstm"), _STATE_SPACE),
    **dict.fromkeys(("jamba", "bamba", "zamba", "zamba2", "falcon_h1", "nemotron_h", "granitemoehybrid"), _STATE_SPACE),
    **dict.fromkeys(("deepseek_v32", "deepseek_v4", "glm_moe_dsa"), _INDEXER),
    **dict.fromkeys(
        ("llama4", "llama4_text"), "it attends in chunks; what engines keep of a finished one is not settled"
    ),
    **dict.fromkeys(
        ("gemma3n", "gemma3n_text"), "it has several residual streams, whose matrices are not counted here"
    ),
    **dict.fromkeys(
        ("minimax", "kimi_linear", "lfm2", "lfm2_moe"), "it has linear layers whose state is not known here"
    ),
    **dict.fromkeys(("t5", "mt5", "bart", "bert", "whisper"), "it has an encoder, which is not simulated"),
}
QUANTISED = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4 experts"}


def geometry_of(config: Mapping[str, Any], where: str, name: str, source: str) -> Geometry:
    """The geometry of a configuration's values.

    UserError when a needed key is missing or wrong, or when `model_type` is one whose cache is not understood: the
    standard formula is never applied to it.
    """
    outer = Values(config, where)
    kind = str(outer.raw("model_type"))
    notes = _quantisation(outer)
    if kind in WRAPPERS:
        shape, extra, said = _wrapped(outer, WRAPPERS[kind])
        notes += said
    else:
        shape, extra = _reader(outer, kind)(outer), 0.0
    extra += shape.extra_parameters
    return replace(shape, name=name, source=source, extra_parameters=extra, notes=shape.notes + notes)


def _wrapped(outer: Values, usual: str) -> tuple[Geometry, float, tuple[str, ...]]:
    """The text model of a multimodal one, and the parameters of its other parts."""
    text = outer.part("text_config")
    if text is None:
        raise outer.error(f"a {outer.raw('model_type')} model needs a text_config")
    tied = outer.raw("tie_word_embeddings")
    kind = str(text.raw("model_type") or usual)
    # The wrapper's word on the shared embedding goes before the text part's, and that before the family's default.
    text = text.under({"model_type": kind} | ({} if tied is None else {"tie_word_embeddings": tied}))
    shape = _reader(text, kind)(text)
    extra, notes = towers(outer, shape.hidden)
    if kind in FAMILIES and text.raw("tie_word_embeddings") is None:
        notes += ("the file does not say tie_word_embeddings: an output projection of its own is counted",)
    return shape, extra, notes


def _reader(values: Values, kind: str) -> Callable[[Values], Geometry]:
    if kind in READERS:
        return READERS[kind]
    reason = f" ({REFUSED[kind]})" if kind in REFUSED else ""
    known = ", ".join(sorted({*READERS, *WRAPPERS}))
    raise values.error(f"model_type {kind!r} is not understood{reason}. Known: {known}; or give a catalogue name")


def _quantisation(values: Values) -> tuple[str, ...]:
    """What the checkpoint's own quantisation means for the plan; UserError for one that no --dtype stands for."""
    part = values.part("quantization_config")
    if part is None:
        return ()
    method = str(part.raw("quant_method"))
    if method not in QUANTISED:
        raise values.error(
            f"weights quantised by {method!r} are not understood ({', '.join(QUANTISED)} are); give the configuration "
            "of the unquantised model and plan with --dtype fp8 or bf16"
        )
    return ("the checkpoint is fp8: --dtype fp8 holds it as it is",) if QUANTISED[method] == "fp8" else ()
