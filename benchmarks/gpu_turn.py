"""Is a compaction quicker than a decode step? One turn of a Qwen3.5-27B-shaped cache against one token at batch 1.

The compaction is what `te` does when a turn closes: score the segment's keys in every full-attention layer, choose,
move the rows that stay. The decode step is its floor on this machine: every weight matrix read once by a product with
one row, attention over the whole context, and the recurrent state read and written. Norms, convolutions and the host's
own time are left out of it; the compaction is taken as it is called, its launches included.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from .kernel_cases import Draw, operation
from .timing import Times, compared

Row = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """Sizes of a decoder in which every fourth layer has full attention and the others a gated delta rule.

    The defaults are Qwen3.5-27B's; `turn` and `rows` are the tokens of the compacted turn and the query rows per KV
    head (the cap of the policies), `context` the rows in the cache.
    """

    hidden: int = 5120
    inner: int = 17_408
    groups: int = 16
    q_heads: int = 24
    kv_heads: int = 4
    dim: int = 256
    delta_keys: int = 2048
    delta_values: int = 6144
    vocabulary: int = 248_320
    state_bytes: int = 48 * (48 * 128 * 128 * 4 + (2 * 2048 + 6144) * 4 * 2)
    context: int = 32_768
    turn: int = 2_560
    rows: int = 4_096

    def group_matrices(self) -> list[tuple[int, int]]:
        """(out, in) of the matrices of four layers: one of full attention with an output gate, three of delta rule."""
        q, kv = self.q_heads * self.dim, self.kv_heads * self.dim
        full = [(2 * q, self.hidden), (kv, self.hidden), (kv, self.hidden), (self.hidden, q)]
        wide = 2 * self.delta_keys + 2 * self.delta_values
        delta = [(wide, self.hidden), (self.hidden, self.delta_values)]
        mlp = [(self.inner, self.hidden), (self.inner, self.hidden), (self.hidden, self.inner)]
        return full + 3 * delta + 4 * mlp


TOY = Model(64, 96, 2, 4, 2, 64, 16, 32, 128, 4096, 192, 80, 32)


def turns(device: torch.device, copy_bytes_per_s: float, *, toy: bool = False, budget_s: float = 5.0) -> Iterator[Row]:
    """One row: the seconds of both, their parts, and whether the compaction is the quicker one."""
    model = TOY if toy else Model()
    draw = Draw(0, torch.bfloat16, device, there=True)
    layers = [_Layer.drawn(model, draw) for _ in range(model.groups)]
    compact = _compaction(model, layers, device)
    spans = compared({"compaction": lambda _: compact()}, [None], device, budget_s)
    queued = _seconds(spans["compaction"])
    called_s = _called(compact, device)
    parts = {
        "weights_s": model.groups * _products(model.group_matrices(), draw, device, budget_s),
        "head_s": _products([(model.vocabulary, model.hidden)], draw, device, budget_s),
        "attention_s": _attention(model, layers, draw, device, budget_s),
        "state_s": 2 * model.state_bytes / copy_bytes_per_s,
    }
    step_s = sum(parts.values())
    yield {
        "op": "te compaction of a turn",
        "shape": f"{model.turn} of {model.context} tokens, {model.groups} layers, {model.rows} query rows",
        "compaction_s": queued.seconds,
        "compaction_called_s": called_s,
        "compaction_host_s": queued.host_s,
        "step_s": step_s,
        **parts,
        "value": step_s / called_s,
        "target": 1.0,
        "met": called_s < step_s,
        "what": "of it fit into one decode step, host time included",
    }


@dataclass(frozen=True)
class _Layer:
    """What a full-attention layer holds: cache rows, and the captured queries of the turn."""

    keys: Tensor
    values: Tensor
    queries: Tensor

    @classmethod
    def drawn(cls, model: Model, draw: Draw) -> _Layer:
        cache = (model.kv_heads, model.context, model.dim)
        return cls(draw.normal(*cache), draw.normal(*cache), draw.normal(model.kv_heads, model.rows, model.dim))


def _compaction(model: Model, layers: list[_Layer], device: torch.device) -> Callable[[], None]:
    mass, topk, compact = (operation(name) for name in ("attention_mass", "pool_topk", "compact_kv"))
    last = slice(model.context - model.turn, model.context)
    keys, values = [layer.keys[:, last] for layer in layers], [layer.values[:, last] for layer in layers]
    forced = torch.zeros(model.turn, dtype=torch.bool, device=device)
    forced[[0, -2]] = True
    keep, shape = model.turn // 5, (len(layers), model.kv_heads, -1)

    def run() -> None:
        both = zip(layers, keys, strict=True)
        scores = [mass(layer.queries, turn, model.dim**-0.5) for layer, turn in both]
        index = topk(torch.cat(scores), keep, forced)
        compact(keys, values, index.view(shape), in_place=True)

    return run


def _attention(model: Model, layers: list[_Layer], draw: Draw, device: torch.device, budget_s: float) -> float:
    queries = draw.normal(model.q_heads, 1, model.dim)
    decode = operation("decode_attention")

    def step(_: Any) -> None:
        for layer in layers:
            decode(queries, layer.keys, layer.values, model.dim**-0.5)

    return _seconds(compared({"step": step}, [None], device, budget_s)["step"]).seconds


def _products(sizes: list[tuple[int, int]], draw: Draw, device: torch.device, budget_s: float) -> float:
    """Seconds of one row through matrices of these sizes (out, in), one after the other."""
    weights = [draw.normal(*size, scale=0.02) for size in sizes]
    rows = {width: draw.normal(1, width) for _, width in sizes}

    def step(_: Any) -> None:
        for weight in weights:
            linear(rows[weight.shape[1]], weight)

    return _seconds(compared({"step": step}, [None], device, budget_s)["step"]).seconds


def _called(run: Callable[[], None], device: torch.device, repeats: int = 9) -> float:
    """Median seconds from the call to the end of its work, nothing queued before it."""
    spans = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        spans.append(time.perf_counter() - start)
    return statistics.median(spans)


def _seconds(found: Times | str) -> Times:
    if isinstance(found, str):
        raise RuntimeError(found)
    return found
