"""A mid-size model with random weights through the replay engine: quality lockstep once, then latency by forced decode.

Its words mean nothing; its tensors are those of a real model, and every turn's cache is checked against the policy's
footprint. Needs torch, transformers and the engine only: no store, no tokenizer, no download.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from typing import Any, cast

import torch

from ..replay import model as stack
from ..replay.engine import replay
from ..replay.forward import Forward
from ..replay.latency import measure_latency
from ..replay.policies.registry import parse_policies
from ..traces.tokens import TokenSegment, TokenTrajectory

POLICIES = ("full", "te(proxy=assistant,delay=1,keep=0.2)")
MIDDLE = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32_768,
    "max_position_embeddings": 131_072,
}
"""About 1.1e9 parameters, a Llama of the one-billion class."""
TINY = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 4096,
}
Row = dict[str, Any]


class _NoWords:
    """Stands for a tokenizer where only ids matter."""

    fingerprint = "none"
    control_ids: frozenset[int] = frozenset()


def replays(device: torch.device, *, toy: bool = False) -> Iterator[Row]:
    """A row per policy of the lockstep replay, and one per policy of its latency."""
    loaded = random_model(TINY if toy else MIDDLE, device)
    forward, policies = Forward(loaded), parse_policies(list(POLICIES))
    vocabulary = loaded.module.config.vocab_size
    text = trajectory(vocabulary, turns=3, tool=40) if toy else trajectory(vocabulary, turns=8, tool=1_500, said=48)
    replay(forward, trajectory(vocabulary, turns=2, tool=40), policies)  # what is slow only once
    begin, end = _events(device)
    start = time.perf_counter()
    begin()
    runs = replay(forward, text, policies)
    seconds, wall_s = end(), time.perf_counter() - start
    for run in runs:
        yield {
            "measure": "quality",
            "policy": str(run.policy),
            "tokens": text.tokens,
            "error": run.error,
            "kv_rows": run.turns[-1].kv_rows if run.turns else None,
            "kv_bytes_peak": max((turn.counters.kv_bytes_peak for turn in run.turns), default=None),
            "both_policies_s": seconds,
            "both_policies_wall_s": wall_s,
            "model": loaded.name,
        }
    for policy in policies:
        begin, end = _events(device)
        begin()
        calls = measure_latency(forward, text, policy, repeats=1, last_turns=2)
        yield {
            "measure": "latency",
            "policy": str(policy),
            "tokens": text.tokens,
            "error": None,
            "prefill_s": statistics.median(call.prefill_s for call in calls),
            "compaction_s": statistics.median(call.compaction_s for call in calls),
            "tpot_s": statistics.median(s for call in calls if (s := call.tpot_s) is not None),
            "run_s": end(),
            "model": loaded.name,
        }


def random_model(settings: dict[str, int], device: torch.device) -> stack.LoadedModel:
    """A Llama of these sizes with random weights: bfloat16 on a GPU, float32 on a CPU."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    config = stack.transformers.AutoConfig.for_model("llama", **settings)
    torch.manual_seed(0)
    with device:
        module: Any = stack.AutoModelForCausalLM.from_config(config, dtype=dtype)
    module = module.eval().requires_grad_(False)
    count = sum(weight.numel() for weight in module.parameters())
    return stack.LoadedModel(
        f"random llama, {count / 1e9:.2g}e9 parameters",
        module,
        cast(Any, _NoWords()),
        stack.describe_layers(config),
        dtype,
        device,
        torch.get_num_threads(),
        settings["max_position_embeddings"],
        "random",
    )


def trajectory(vocabulary: int, *, turns: int, tool: int, said: int = 12, seed: int = 0) -> TokenTrajectory:
    """Random tokens: a prefix as long as a tool response, then turns of an assistant's words and a tool's."""
    draw = random.Random(seed)

    def segment(kind: Any, turn: int, count: int) -> TokenSegment:
        ids = tuple(draw.randrange(vocabulary) for _ in range(count))
        scored = (3, count - 1) if kind == "assistant" else (0, 0)
        return TokenSegment(kind, turn, ids, (0, count - 2), scored, closing=2)

    parts = [segment("prefix", 0, tool)]
    for turn in range(turns):
        parts += [segment("assistant", turn, said), segment("tool", turn, tool)]
    return TokenTrajectory("random", "random", "random", tuple(parts))


def _events(device: torch.device) -> tuple[Any, Any]:
    """Two functions: the first begins, the second waits and returns the seconds in between, by CUDA events."""
    if device.type != "cuda":
        clock = [0.0]

        def tick() -> None:
            clock[0] = time.perf_counter()

        return tick, lambda: time.perf_counter() - clock[0]
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def stop() -> float:
        last.record()
        torch.cuda.synchronize(device)
        return first.elapsed_time(last) / 1e3

    return first.record, stop
