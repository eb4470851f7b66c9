"""The activation peak that an engine reserves: the most memory beside weights and cache in its profiling run.

It is the larger of two things that never happen at once: the sampler over the most sequences, and the products of a
full token budget. In vLLM's own reports (H100, 1,024 sequences) the sampler decides: five models from 0.6 to 120
billion parameters take 38 to 40 bytes per sequence and word of the vocabulary, whatever their size. A report of
Mistral-Small-24B, 2.12 GiB, is that of an engine with fewer sequences, where the token budget decides.
"""

from __future__ import annotations

from typing import NamedTuple

from .geometry import Geometry

GIB = 2.0**30
LOGIT_BYTES = 38.5  # bf16 and float32 logits, their sorted copy with 8-byte indices, probabilities and sums
PROFILED_SEQUENCES = 1024
# GiB per GPU in those reports, at 1,024 sequences and a budget of 8,192 tokens.
MEASURED: dict[str, float] = {
    "llama-3.1-8b": 4.76,
    "llama-3.1-70b": 4.84,
    "qwen3-0.6b": 5.56,
    "qwen3-32b": 5.64,
    "gpt-oss-20b": 7.38,
    "gpt-oss-120b": 7.38,
}


class Activation(NamedTuple):
    """GiB per GPU, and where the figure is from."""

    gib: float
    source: str


def activation_peak(geometry: Geometry, max_sequences: int, token_budget: int, tp: int = 1) -> Activation:
    """The peak for an engine that admits `max_sequences` and feeds `token_budget` tokens a step.

    As vLLM reported it for this model, where its report is of these sequences; otherwise *estimated*.
    """
    if max_sequences == PROFILED_SEQUENCES and geometry.name in MEASURED:
        return Activation(MEASURED[geometry.name], "measured: vLLM's own report, 1,024 sequences")
    vocabulary = geometry.head_parameters / geometry.hidden
    sampler = LOGIT_BYTES * vocabulary * max_sequences
    products = 2.0 * token_budget * (_widest(geometry) / tp + 4.0 * geometry.hidden)
    what = "sampler" if sampler > products else "token budget"
    return Activation(max(sampler, products) / GIB, f"estimated: the {what} decides")


def _widest(geometry: Geometry) -> float:
    """Values of a token that the products of one layer put out, all of them held at once at most."""
    active = geometry.body_parameters + geometry.active_experts * geometry.expert_parameters
    return active / geometry.layers / geometry.hidden
