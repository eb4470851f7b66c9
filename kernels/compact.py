"""Moving the kept rows: into new tensors, to the front of the old ones, or to the front of a paged cache.

All layers of one shape move in one call: keys and values come as one layer, as one tensor of several, or as a sequence
of one tensor per layer, and leave as they came. Rows are copied bit for bit.

On a CPU all heads are selected at once, as one list of rows: a gather along the middle dimension takes ten times as
long. A forward copy goes through a small buffer, so that it holds no second copy of the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import torch
from torch import Tensor

from . import reference
from .checks import indices, shaped, together
from .dispatch import Impl, choose
from .stacks import Stack, alike, as_layers, fresh, front, own_memory

STAGE_BYTES = 512 << 10
"""What a forward copy holds between reading and writing; it should stay in the cache of a core."""


@overload
def compact_kv(
    keys: Tensor,
    values: Tensor,
    index: Tensor,
    *,
    lengths: Tensor | None = None,
    in_place: bool = False,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]: ...
@overload
def compact_kv(
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    index: Tensor,
    *,
    lengths: Tensor | None = None,
    in_place: bool = False,
    impl: Impl = "auto",
) -> tuple[list[Tensor], list[Tensor]]: ...
def compact_kv(
    keys: Stack,
    values: Stack,
    index: Tensor,
    *,
    lengths: Tensor | None = None,
    in_place: bool = False,
    impl: Impl = "auto",
) -> tuple[Stack, Stack]:
    """Keep the rows `index`: n rows of keys and values become m. Each is (H_kv, n, D), (layers, H_kv, n, D) or a
    sequence of (H_kv, n, D); values may be of another width than keys.

    `index` is (m,), one list for all heads, (H_kv, m) or (layers, H_kv, m). `lengths` (H_kv,) or (layers, H_kv) is how
    many leading entries of a list count, where heads keep different numbers: the rows beyond are 0 in new tensors and
    as before in place. What a list holds beyond is not read.

    `in_place` moves the rows to the front of the given tensors and returns views of their first m. Every list must
    ascend: then a row moves to a lower place or stays, and a forward copy overwrites nothing that is still needed.

    ValueError for what does not fit together, rows that do not exist, lists that do not ascend, lengths beyond a list,
    and, in place, rows that share memory. Triton finds what lies in lists and lengths without making the host wait for
    the device: such a row becomes NaN, and a length beyond its list ends where that does.
    """
    stacks = as_layers(keys, 3), as_layers(values, 3)
    alike(keys=stacks[0], values=stacks[1])
    together(keys=stacks[0][0], index=index, lengths=lengths)
    layers, (heads, count) = len(stacks[0]), stacks[0][0].shape[:2]
    keep = index.shape[-1] if index.dim() else 0
    lists = _per_layer("index", index, layers, heads, keep)
    counts = None if lengths is None else _per_layer("lengths", lengths, layers, heads)
    if in_place and keep > count:
        raise ValueError(f"{keep} rows do not fit into {count}")
    if in_place:
        own_memory(keys=stacks[0], values=stacks[1])
    form = choose(impl, stacks[0][0])
    if form == "triton":
        from .gpu.compact import compact_kv as on_gpu

        return on_gpu(keys, values, lists, lengths=counts, in_place=in_place)
    beyond = None
    if counts is not None:
        beyond = torch.arange(keep, device=index.device) >= counts.unsqueeze(-1)
        if counts.numel() and not 0 <= int(counts.min()) <= int(counts.max()) <= keep:
            raise ValueError(f"lengths must lie in 0…{keep}")
        lists = lists.masked_fill(beyond, 0)
    _check_rows(index if beyond is None else lists, beyond, count, ascending=in_place)
    new = (keys, values) if in_place else (fresh(keys, keep), fresh(values, keep))
    rooms = [as_layers(room, 3) for room in new]
    for layer in range(layers):
        hidden = None if beyond is None else beyond[layer].unsqueeze(-1)
        known: dict[tuple[int, ...], Tensor] = {}
        for x, out in zip((stack[layer] for stack in stacks), (room[layer] for room in rooms), strict=True):
            if form == "reference":
                moved = reference.compact_kv(x, x[..., :0], lists[layer])[0]
                out[:, :keep] = moved if hidden is None else moved.where(~hidden, x[:, :keep] if in_place else 0)
            elif in_place:
                _to_front(x, lists[layer], [keep] * heads if counts is None else counts[layer].tolist())
            else:
                _gather(x, lists[layer], out, known)
                if hidden is not None:
                    out.masked_fill_(hidden, 0)
    return (front(keys, keep), front(values, keep)) if in_place else new


def compact_blocks(
    keys: Stack, values: Stack, table: Tensor, rows: int, index: Tensor, *, impl: Impl = "auto"
) -> tuple[Tensor, Tensor]:
    """Move the rows `index` of one sequence to its front in a paged cache, in place: the table of the blocks that hold
    them, and the freed blocks (`reference.compact_blocks`).

    Keys and values are (blocks, H_kv, block, D), (layers, blocks, H_kv, block, D) or a sequence of the former: `table`
    serves all layers, as in the engines that allocate one block for all of them. `index` (m,) ascends.

    ValueError as the reference, and for block numbers that do not exist. Triton finds an index that is none without
    making the host wait for the device: such a row becomes NaN.
    """
    stacks = as_layers(keys, 4), as_layers(values, 4)
    alike(keys=stacks[0], values=stacks[1])
    together(keys=stacks[0][0], table=table, index=index)
    own_memory(keys=stacks[0], values=stacks[1])
    for name, x in (("table", table), ("index", index)):
        indices(name, x)
        shaped(name, x, None)
    blocks, _, block = stacks[0][0].shape[:3]
    if rows > table.shape[0] * block:
        raise ValueError(f"{rows} rows do not fit into {table.shape[0]} blocks of {block}")
    form = choose(impl, stacks[0][0])
    if form == "triton":
        from .gpu.compact import compact_blocks as on_gpu

        on_gpu(keys, values, table, rows, index)
    elif form == "reference":
        for one, other in zip(*stacks, strict=True):
            reference.compact_blocks(one, other, table, rows, index)
    else:
        _check_ascending(index, rows)
        if table.numel() and not 0 <= int(table.min()) <= int(table.max()) < blocks:
            raise ValueError(f"the table must name blocks in 0…{blocks - 1}")
        to = torch.arange(index.shape[0], device=index.device)
        for x in (*stacks[0], *stacks[1]):
            _forward(x, (table[index // block], index % block), (table[to // block], to % block))
    used = -(-index.shape[0] // block)
    return table[:used], table[used:]


def _per_layer(name: str, x: Tensor, *sizes: int) -> Tensor:
    """`x` with its missing leading dimensions, as an expanded view of `sizes`. ValueError where it does not fit."""
    indices(name, x)
    shaped(name, x, *sizes[max(len(sizes) - x.dim(), 0) :])
    return x.expand(sizes)


def _check_rows(lists: Tensor, beyond: Tensor | None, count: int, *, ascending: bool) -> None:
    """ValueError unless what counts of the lists are existing rows, and ascend where they must."""
    if lists.numel() == 0 or (beyond is not None and bool(beyond.all())):
        return
    low, high = (int(x) for x in lists.aminmax())
    if low < 0 or high >= count:
        raise ValueError(f"rows must lie in 0…{count - 1}, not {low}…{high}")
    if ascending:
        stuck = lists.diff(dim=-1) <= 0
        if bool((stuck if beyond is None else stuck & ~beyond[..., 1:]).any()):
            raise ValueError("rows move in place only where every list ascends")


def _check_ascending(index: Tensor, rows: int) -> None:
    if index.numel() and (bool((index.diff() <= 0).any()) or int(index[0]) < 0 or int(index[-1]) >= rows):
        raise ValueError(f"the index must ascend and lie in 0…{rows - 1}")


def _gather(x: Tensor, lists: Tensor, out: Tensor, known: dict[tuple[int, ...], Tensor]) -> None:
    """(H_kv, n, D), (H_kv, m) → `out` (H_kv, m, D). Keys and values that lie alike share the numbers of their lines."""
    if out.numel() == 0 or x.shape[1] == 0:
        out.zero_()
        return
    lines = _lines(x)
    if lines is None:
        torch.gather(x, 1, lists.unsqueeze(-1).expand(out.shape), out=out)
        return
    flat, steps = lines
    if steps not in known:
        per_head, per_row = steps
        heads = torch.arange(x.shape[0], device=x.device).unsqueeze(-1) * per_head
        known[steps] = torch.add(heads, lists, alpha=per_row).reshape(-1)
    torch.index_select(flat, 0, known[steps], out=out.view(-1, x.shape[-1]))


def _to_front(x: Tensor, lists: Tensor, counts: list[int]) -> None:
    """Move the first `counts`[h] rows of (H_kv, m) lists to the front of (H_kv, n, D).

    A list ascends, so row i of the result comes from row i or later. Rows up to the source of the next one are free to
    be written: where they are many, a piece of that size is copied straight to its place, and the next may be larger.
    Where they are few, a piece is read into the stage first.
    """
    stage, most = _stage(x)
    for line, rows, count in zip(x, lists, counts, strict=True):
        start = 0
        while start < count:
            end = min(int(rows[start]), count)
            if end - start >= min(max(1, most // 2), count - start):
                torch.index_select(line[end:], 0, rows[start:end] - end, out=line[start:end])
            else:
                end = min(start + most, count)
                line[start:end] = torch.index_select(line, 0, rows[start:end], out=stage[: end - start])
            start = end


def _forward(x: Tensor, source: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> None:
    """Copy slots of (blocks, H_kv, block, D) forward, all heads of a token together: (m,) blocks and (m,) slots."""
    lines = _lines(x)
    if lines is None:
        x[target[0], :, target[1]] = x[source[0], :, source[1]]
        return
    flat, (per_block, per_head, per_slot) = lines
    heads = torch.arange(x.shape[1], device=x.device) * per_head
    read, write = (
        (block.unsqueeze(-1) * per_block + slot.unsqueeze(-1) * per_slot + heads).view(-1)
        for block, slot in (source, target)
    )
    stage, most = _stage(x)
    for one, other in zip(read.split(most), write.split(most), strict=True):
        flat.index_copy_(0, other, torch.index_select(flat, 0, one, out=stage[: one.shape[0]]))


def _stage(x: Tensor) -> tuple[Tensor, int]:
    """A buffer for rows of `x`, and how many it holds."""
    most = max(1, STAGE_BYTES // max(1, x.shape[-1] * x.element_size()))
    return x.new_empty(most, x.shape[-1]), most


def _lines(x: Tensor) -> tuple[Tensor, tuple[int, ...]] | None:
    """The memory of (…, D) as lines of D numbers, and the lines of one step along each other dimension.

    None where a step is no whole number of lines: then there is no such view.
    """
    dim = x.shape[-1]
    if dim == 0 or x.numel() == 0 or any(step % dim for step in x.stride()[:-1]):
        return None
    steps = tuple(step // dim for step in x.stride()[:-1])
    last = sum((size - 1) * step for size, step in zip(x.shape[:-1], steps, strict=True))
    return x.as_strided((last + 1, dim), (dim, 1)), steps
