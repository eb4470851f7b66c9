"""What is timed against what: per operation a shape, the bytes and operations it cannot do without, and its rivals.

`naive` is the operation as its formula reads, `torch` the best that torch offers for it, `compiled` the naive form
under `torch.compile`, `copy` a plain copy of the same bytes. kvmill's own forms bear their `impl`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot, scaled_dot_product_attention

from .kernel_cases import Draw, operation
from .kernel_shapes import Shape, shapes

Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Contest:
    """One operation at one shape. `inputs(seed)` draws arguments and options; every form takes both.

    `products` are the operations of the matrix products that no form can do without, `moved` the bytes of every input
    and output once. `passes` says of a form how often it computes the products.
    """

    op: str
    shape: Shape
    inputs: Callable[[int], Call]
    forms: Mapping[str, Callable[..., Any]]
    moved: int
    products: int = 0
    passes: Mapping[str, int] = field(default_factory=dict)


def contests(op: str, device: torch.device, *, size: str = "default") -> Iterator[Contest]:
    """The contests of an operation on a device; `size` quick takes the first shape, toy one that an interpreter can."""
    for shape in shapes(op, device, size):
        inputs, forms, moved, products = BUILD[op](shape, device)
        own = [impl for impl in ("torch", "triton") if impl == "torch" or device.type == "cuda" or size == "toy"]
        mine = {f"kvmill {impl}": _own(op, impl) for impl in own}
        yield Contest(op, shape, inputs, {**forms, **mine}, moved, products, PASSES.get(op, {}))


def _own(op: str, impl: str) -> Callable[..., Any]:
    def run(*args: Any, **options: Any) -> Any:
        return operation(op)(*args, **options, impl=impl)

    return run


Built = tuple[Callable[[int], Call], dict[str, Callable[..., Any]], int, int]


def _mass(s: Shape, device: torch.device) -> Built:
    def inputs(seed: int) -> Call:
        draw = Draw(seed, s.torch_dtype, device, there=True)
        return (draw.normal(s.heads, s.rows, s.dim), draw.normal(s.heads, s.count, s.dim), s.dim**-0.5), {}

    def naive(queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
        return (queries @ keys.transpose(1, 2) * scaling).float().softmax(-1).square().mean(1).sqrt()

    def best(queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
        """A head at a time, the scaling on the queries, and no more temporaries than torch needs."""
        out = torch.empty(keys.shape[:2], device=keys.device)
        for head in range(keys.shape[0]):
            weights = ((queries[head] * scaling) @ keys[head].T).float().softmax(-1)
            torch.linalg.vector_norm(weights, dim=0, out=out[head])
        return out.div_(math.sqrt(queries.shape[1]))

    moved = s.bytes(s.heads * (s.rows + s.count) * s.dim) + 4 * s.heads * s.count
    return inputs, _rivals(naive, best), moved, 2 * s.heads * s.rows * s.count * s.dim


def _totals(s: Shape, device: torch.device) -> Built:
    def naive(queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
        return (queries @ keys.transpose(1, 2) * scaling).float().logsumexp(-1)

    inputs, _, moved, products = _mass(s, device)
    return inputs, _rivals(naive), moved + 4 * s.heads * (s.rows - s.count), products


def _decode(s: Shape, device: torch.device) -> Built:
    def inputs(seed: int) -> Call:
        draw = Draw(seed, s.torch_dtype, device, there=True)
        keys, values = (draw.normal(s.heads, s.count, s.dim) for _ in range(2))
        return (draw.normal(s.heads * s.group, 1, s.dim), keys, values, s.dim**-0.5), {}

    def naive(queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        keys, values = (x.repeat_interleave(s.group, 0) for x in (keys, values))
        return (queries @ keys.transpose(1, 2) * scaling).softmax(-1) @ values

    def repeated(queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        keys, values = (x.repeat_interleave(s.group, 0) for x in (keys, values))
        return scaled_dot_product_attention(queries[None], keys[None], values[None], scale=scaling)

    def grouped(queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        return scaled_dot_product_attention(queries[None], keys[None], values[None], scale=scaling, enable_gqa=True)

    def folded(queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        rows = queries.view(1, s.heads, s.group, s.dim)
        return scaled_dot_product_attention(rows, keys[None], values[None], scale=scaling)

    forms = {"naive": naive, "sdpa repeated": repeated, "sdpa grouped": grouped, "torch": folded}
    moved = s.bytes(2 * s.heads * s.count * s.dim + 2 * s.heads * s.group * s.dim)
    return inputs, forms, moved, 4 * s.heads * s.group * s.count * s.dim


def _compact(s: Shape, device: torch.device) -> Built:
    layers = s.layers

    def inputs(seed: int) -> Call:
        draw = Draw(seed, s.torch_dtype, device, there=True)
        keys, values = ([draw.normal(s.heads, s.count, s.dim) for _ in range(layers)] for _ in range(2))
        index = draw.ascending(1 if s.shared else layers * s.heads, s.count, s.keep)
        return (keys, values, index[0] if s.shared else index.view(layers, s.heads, s.keep)), {}

    def naive(keys: list[Tensor], values: list[Tensor], index: Tensor) -> list[Tensor]:
        rows = index.expand(layers, s.heads, s.keep)[..., None].expand(-1, -1, -1, s.dim)
        return [x.gather(1, at) for part in (keys, values) for x, at in zip(part, rows, strict=True)]

    def best(keys: list[Tensor], values: list[Tensor], index: Tensor) -> list[Tensor]:
        if s.shared:
            return [x.index_select(1, index) for part in (keys, values) for x in part]
        flat = (index + torch.arange(s.heads, device=device)[:, None] * s.count).view(layers, -1)
        lines = [x.view(-1, s.dim) for part in (keys, values) for x in part]
        return [x.index_select(0, at) for x, at in zip(lines, (*flat, *flat), strict=True)]

    size = s.heads * s.keep * s.dim
    room = [torch.empty(size, dtype=s.torch_dtype, device=device) for _ in range(2 * layers)]

    def copy(keys: list[Tensor], values: list[Tensor], _: Tensor) -> None:
        """As many bytes from the same buffers, in one piece each."""
        for x, to in zip((*keys, *values), room, strict=True):
            to.copy_(x.view(-1)[:size])

    moved = s.bytes(4 * layers * size)
    return inputs, {"naive": naive, "torch": best, "copy": copy}, moved, 0


def _blocks(s: Shape, device: torch.device) -> Built:
    block = 16
    used = s.count // block

    def inputs(seed: int) -> Call:
        draw = Draw(seed, s.torch_dtype, device, there=True)
        keys, values = (draw.normal(used, s.heads, block, s.dim) for _ in range(2))
        table = draw.ascending(1, used, used)[0].flip(0)
        return (keys, values, table, s.count, draw.ascending(1, s.count, s.keep)[0]), {}

    def naive(keys: Tensor, values: Tensor, table: Tensor, rows: int, index: Tensor) -> None:
        to = torch.arange(s.keep, device=device)
        for x in (keys, values):
            x[table[to // block], :, to % block] = x[table[index // block], :, index % block]

    return inputs, {"naive": naive}, s.bytes(4 * s.heads * s.keep * s.dim), 0


def _fit(s: Shape, device: torch.device) -> Built:
    def inputs(seed: int) -> Call:
        draw = Draw(seed, s.torch_dtype, device, there=True)
        queries, keys, values = (draw.normal(s.heads, r, s.dim) for r in (s.rows, s.count, s.count))
        return (queries, keys, values, draw.ascending(s.heads, s.count, s.keep), s.dim**-0.5), {}

    def naive(*args: Any) -> Any:
        return operation("ridge_fit")(*args, impl="reference")

    moved = s.bytes(s.heads * (s.rows + 2 * s.count + s.keep) * s.dim)
    logits, grams = 4 * s.rows * s.count * s.dim, 2 * s.rows * s.keep * (2 * s.keep + s.dim)
    return inputs, {"naive": naive}, moved, s.heads * (logits + grams)


def _merge(s: Shape, device: torch.device) -> Built:
    def inputs(seed: int) -> Call:
        draw = Draw(seed, s.torch_dtype, device, there=True)
        keys, values = (draw.normal(s.heads, s.count, s.dim) for _ in range(2))
        return (keys, values, draw.integers(0, s.keep, s.heads, s.count), s.keep), {}

    def naive(keys: Tensor, values: Tensor, labels: Tensor, clusters: int) -> list[Tensor]:
        member = one_hot(labels, clusters).transpose(1, 2).float()
        weights = member / member.sum(-1, keepdim=True).clamp_min(1)
        return [(weights @ x.float()).to(x.dtype) for x in (keys, values)]

    def best(keys: Tensor, values: Tensor, labels: Tensor, clusters: int) -> list[Tensor]:
        """In an order that varies, on a GPU: index_add_ adds as threads come."""
        flat = (labels + torch.arange(s.heads, device=device)[:, None] * clusters).view(-1)
        counts = torch.bincount(flat, minlength=s.heads * clusters).clamp_min(1)[:, None]
        sums = [keys.new_zeros(s.heads * clusters, s.dim, dtype=torch.float32) for _ in range(2)]
        both = zip(sums, (keys, values), strict=True)
        return [t.index_add_(0, flat, x.view(-1, s.dim).float()).div_(counts).to(x.dtype) for t, x in both]

    moved = s.bytes(2 * s.heads * (s.count + s.keep) * s.dim) + 8 * s.heads * s.count
    return inputs, {"naive": naive, "torch": best}, moved, 0


def _clusters(s: Shape, device: torch.device) -> Built:
    def inputs(seed: int) -> Call:
        draw = Draw(seed, s.torch_dtype, device, there=True)
        start, batches = draw.ascending(s.heads, s.count, s.keep), draw.integers(0, s.count, 8, 256)
        return (draw.normal(s.heads, s.count, s.dim), s.keep), {"start": start, "batches": batches}

    def naive(*args: Any, **options: Any) -> Any:
        return operation("k_means")(*args, **options, impl="reference")

    points = 8 * 256 + s.count
    return inputs, {"naive": naive}, s.bytes(s.heads * points * s.dim), 2 * s.heads * points * s.keep * s.dim


def _rotate(s: Shape, device: torch.device) -> Built:
    def inputs(seed: int) -> Call:
        draw = Draw(seed, s.torch_dtype, device, there=True)
        frequencies = 10_000.0 ** (-torch.arange(s.dim // 2, device=device) / (s.dim // 2))
        return (draw.normal(s.heads, s.count, s.dim), draw.integers(0, 32_768, s.count), frequencies), {}

    def naive(keys: Tensor, offsets: Tensor, frequencies: Tensor) -> Tensor:
        angles = (offsets.double()[:, None] * frequencies.double()).repeat(1, 2)
        half = keys.shape[-1] // 2
        turned = torch.cat([-keys[..., half:], keys[..., :half]], dim=-1)
        return (keys.float() * angles.cos().float() + turned.float() * angles.sin().float()).to(keys.dtype)

    return inputs, _rivals(naive), s.bytes(2 * s.heads * s.count * s.dim) + 8 * s.count, 0


def _topk(s: Shape, device: torch.device) -> Built:
    def inputs(seed: int) -> Call:
        draw = Draw(seed, s.torch_dtype, device, there=True)
        return (draw.floats(s.heads, s.count), s.keep), {"kernel": 5}

    def pooled(scores: Tensor, kernel: int) -> Tensor:
        return torch.nn.functional.avg_pool1d(scores[:, None], kernel, 1, kernel // 2)[:, 0]

    def naive(scores: Tensor, keep: int, *, kernel: int) -> Tensor:
        order = pooled(scores, kernel).sort(dim=-1, descending=True, stable=True).indices
        return order[:, :keep].sort(dim=-1).values

    def best(scores: Tensor, keep: int, *, kernel: int) -> Tensor:
        """Without a promise about ties."""
        return pooled(scores, kernel).topk(keep, dim=-1).indices.sort(dim=-1).values

    return inputs, {"naive": naive, "torch": best}, 4 * s.heads * s.count + 8 * s.heads * s.keep, 0


def _rivals(naive: Callable[..., Any], best: Callable[..., Any] | None = None) -> dict[str, Callable[..., Any]]:
    compiled = partial(_compiled, naive, {})
    return {"naive": naive, **({"torch": best} if best else {}), "compiled": compiled}


def _compiled(naive: Callable[..., Any], held: dict[str, Any], *args: Any) -> Any:
    """Compiled on its first call, so that what fails there is the row of this form alone."""
    if not held:
        held["it"] = torch.compile(naive, dynamic=False)
    return held["it"](*args)


PASSES = {"attention_mass": {"kvmill triton": 2}}
"""Without a row's total no weight is known: the totals are a pass of their own where no matrix is kept."""
BUILD: dict[str, Callable[[Shape, torch.device], Built]] = {
    "attention_mass": _mass,
    "log_totals": _totals,
    "decode_attention": _decode,
    "compact_kv": _compact,
    "compact_blocks": _blocks,
    "ridge_fit": _fit,
    "merge_kv": _merge,
    "k_means": _clusters,
    "rotate_keys": _rotate,
    "pool_topk": _topk,
}
