"""Moving rows on a GPU: one launch for the keys and values of all layers, and no wait of the host.

Rows are moved as integers of their size, so every type moves bit for bit, and a row that does not exist is all ones:
NaN in every floating format. Where layers are tensors of their own, a kernel finds them by their distances from the
first, which lie in a list on the device.
"""

# Launch options are not among a kernel's arguments.
# pyright: reportCallIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..stacks import Stack, as_layers, front
from .blocks import on_device, slots

WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
TILE_BYTES = 8192
"""Of keys and of values each, per program of four warps: every thread has eight 16-byte loads in flight."""
SLICE_BYTES, MIN_SLICE_BYTES = 128, 32
"""A forward copy runs along a head in order: heads are cut into slices, so that enough programs run side by side."""
FORWARD_BYTES = 16384


@triton.jit
def _layer(x, offsets, layer, step, LISTED: tl.constexpr, ALIGNED: tl.constexpr):
    """The pointer of one layer."""
    if LISTED:
        far = tl.multiple_of(tl.load(offsets + layer), ALIGNED)
    else:
        far = layer * step
    return x + far


@triton.jit
def _slots_of(b_row, m_row, table, blocks, block_step, row_step, SLOTS: tl.constexpr):
    """Where rows lie from the start of their head, dense (SLOTS 0) or by way of the block table; and which of them do.

    A row that does not has a place like any other: masks, not places, keep kernels from touching it.
    """
    if SLOTS == 0:
        b_place, m_place = b_row.to(tl.int64) * row_step, m_row
    else:
        b_block = tl.load(table + b_row // SLOTS, mask=m_row, other=-1)
        b_place = b_block * block_step + b_row % SLOTS * row_step
        m_place = (b_block >= 0) & (b_block < blocks)
    return b_place, m_place


@triton.jit
def _gather_kernel(
    keys,
    values,
    new_keys,
    new_values,
    key_offsets,
    value_offsets,
    index,
    lengths,
    heads,
    count,
    keep,
    stride_kl,
    stride_kh,
    stride_kn,
    stride_vl,
    stride_vh,
    stride_vn,
    stride_il,
    stride_ih,
    stride_im,
    stride_ll,
    stride_lh,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_LENGTHS: tl.constexpr,
    LISTED: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """BLOCK_M rows of one head of one layer, keys and values: the list is read once for both."""
    p_m = tl.program_id(0)
    p_lh = tl.program_id(1)
    layer, head = (p_lh // heads).to(tl.int64), (p_lh % heads).to(tl.int64)
    o_m = p_m * BLOCK_M + tl.arange(0, BLOCK_M)
    m_m = o_m < keep
    m_counts = m_m
    if HAS_LENGTHS:
        m_counts = m_m & (o_m < tl.load(lengths + layer * stride_ll + head * stride_lh))
    b_row = tl.load(index + layer * stride_il + head * stride_ih + o_m * stride_im, mask=m_counts, other=-1)
    m_row = m_counts & (b_row >= 0) & (b_row < count)
    o_d = tl.arange(0, BLOCK_D)
    keys = _layer(keys, key_offsets, layer, stride_kl, LISTED, ALIGNED) + head * stride_kh
    values = _layer(values, value_offsets, layer, stride_vl, LISTED, ALIGNED) + head * stride_vh
    # Both loads before the first store: the compiler moves no load past a store that might touch it.
    b_k = tl.load(keys + b_row[:, None] * stride_kn + o_d, mask=m_row[:, None] & (o_d < KEY_DIM), other=-1)
    b_v = tl.load(values + b_row[:, None] * stride_vn + o_d, mask=m_row[:, None] & (o_d < VALUE_DIM), other=-1)
    b_k = tl.where(m_counts[:, None], b_k, 0)
    b_v = tl.where(m_counts[:, None], b_v, 0)
    o_new = p_lh.to(tl.int64) * keep + o_m[:, None]
    tl.store(new_keys + o_new * KEY_DIM + o_d, b_k, mask=m_m[:, None] & (o_d < KEY_DIM))
    tl.store(new_values + o_new * VALUE_DIM + o_d, b_v, mask=m_m[:, None] & (o_d < VALUE_DIM))


@triton.jit
def _move_forward(
    x,
    o_d,
    lists,
    limit,
    count,
    table,
    blocks,
    stride_b,
    stride_n,
    stride_im,
    DIM: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Read BLOCK_M rows, then write them: as the list ascends, all later ones lie behind what is written.

    Nobody else writes here: a head's slice belongs to one program. Its warps wait for each other between reading and
    writing, so none overwrites a row of this step that another has yet to read; rows of the next step are out of reach,
    as row i of the result comes from row i or later.
    """
    for start in range(0, limit, BLOCK_M):
        o_m = start + tl.arange(0, BLOCK_M)
        m_m = o_m < limit
        b_row = tl.load(lists + o_m * stride_im, mask=m_m, other=-1)
        b_before = tl.load(lists + (o_m - 1) * stride_im, mask=m_m & (o_m > 0), other=-1)
        m_row = m_m & (b_row > b_before) & (b_row >= 0) & (b_row < count)
        b_from, m_from = _slots_of(b_row.to(tl.int32), m_row, table, blocks, stride_b, stride_n, SLOTS)
        b_to, m_to = _slots_of(o_m, m_m, table, blocks, stride_b, stride_n, SLOTS)
        b_x = tl.load(x + b_from[:, None] + o_d, mask=m_from[:, None] & (o_d < DIM), other=-1)
        tl.debug_barrier()
        tl.store(x + b_to[:, None] + o_d, b_x, mask=m_to[:, None] & (o_d < DIM))


@triton.jit
def _forward_kernel(
    keys,
    values,
    key_offsets,
    value_offsets,
    table,
    lists,
    lengths,
    heads,
    count,
    keep,
    blocks,
    key_slices,
    stride_kl,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_vl,
    stride_vb,
    stride_vh,
    stride_vn,
    stride_il,
    stride_ih,
    stride_im,
    stride_ll,
    stride_lh,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_LENGTHS: tl.constexpr,
    LISTED: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """One slice of one head of one layer, of the keys or of the values."""
    p_d = tl.program_id(0)
    p_lh = tl.program_id(1)
    layer, head = (p_lh // heads).to(tl.int64), (p_lh % heads).to(tl.int64)
    lists += layer * stride_il + head * stride_ih
    limit = keep
    if HAS_LENGTHS:
        limit = tl.minimum(tl.load(lengths + layer * stride_ll + head * stride_lh), keep).to(tl.int32)
    if p_d < key_slices:
        o_d = p_d * BLOCK_D + tl.arange(0, BLOCK_D)
        keys = _layer(keys, key_offsets, layer, stride_kl, LISTED, ALIGNED) + head * stride_kh
        _move_forward(
            keys, o_d, lists, limit, count, table, blocks, stride_kb, stride_kn, stride_im, KEY_DIM, SLOTS, BLOCK_M
        )
    else:
        o_d = (p_d - key_slices) * BLOCK_D + tl.arange(0, BLOCK_D)
        values = _layer(values, value_offsets, layer, stride_vl, LISTED, ALIGNED) + head * stride_vh
        _move_forward(
            values, o_d, lists, limit, count, table, blocks, stride_vb, stride_vn, stride_im, VALUE_DIM, SLOTS, BLOCK_M
        )


def compact_kv(
    keys: Stack, values: Stack, index: Tensor, *, lengths: Tensor | None = None, in_place: bool = False
) -> tuple[Stack, Stack]:
    """As the public form, for checked tensors: index (layers, H_kv, m) and lengths (layers, H_kv), of any strides."""
    k, v = _places(keys, values, 3)
    layers, heads, keep = index.shape
    if in_place:
        _copy_forward(k, v, index, lengths, k.first.shape[1])
        return front(keys, keep), front(values, keep)
    new = [as_layers(x, 3)[0].new_empty(layers, heads, keep, as_layers(x, 3)[0].shape[-1]) for x in (keys, values)]
    width = triton.next_power_of_2(max(1, k.first.shape[-1], v.first.shape[-1]))
    rows = max(1, TILE_BYTES // (width * k.first.element_size()))
    if index.numel():
        with on_device(k.first):
            _gather_kernel[(triton.cdiv(keep, rows), layers * heads)](
                k.first,
                v.first,
                *(x.view(k.first.dtype) for x in new),
                k.offsets,
                v.offsets,
                index,
                lengths,
                heads,
                k.first.shape[1],
                keep,
                k.step,
                *k.first.stride()[:2],
                v.step,
                *v.first.stride()[:2],
                *index.stride(),
                *((0, 0) if lengths is None else lengths.stride()),
                KEY_DIM=k.first.shape[-1],
                VALUE_DIM=v.first.shape[-1],
                BLOCK_M=rows,
                BLOCK_D=width,
                HAS_LENGTHS=lengths is not None,
                LISTED=k.offsets is not None,
                ALIGNED=min(k.aligned, v.aligned),
                num_warps=4,
            )
    return _as_given(keys, new[0]), _as_given(values, new[1])


def compact_blocks(keys: Stack, values: Stack, table: Tensor, rows: int, index: Tensor) -> None:
    """The copy of the public form, for checked tensors: (blocks, H_kv, block, D) per layer."""
    k, v = _places(keys, values, 4)
    lists = index.expand(len(as_layers(keys, 4)), k.first.shape[1], -1)
    _copy_forward(k, v, lists, None, rows, table.contiguous())


@dataclass(frozen=True, slots=True)
class Place:
    """Where layers lie: the first, as integers, and the elements to the next, or a list of the distances of all.

    `aligned` is a power of two that divides every distance, 16 at most.
    """

    first: Tensor
    step: int = 0
    offsets: Tensor | None = None
    aligned: int = 16


def _places(keys: Stack, values: Stack, dims: int) -> tuple[Place, Place]:
    """Of both, in one form: where either is a sequence of layers, the other is taken apart."""
    if not (isinstance(keys, Tensor) and isinstance(values, Tensor)):
        keys, values = as_layers(keys, dims), as_layers(values, dims)
    return _place(keys, dims), _place(values, dims)


def _place(stack: Stack, dims: int) -> Place:
    layers = as_layers(stack, dims)
    first = layers[0].view(WHOLE[layers[0].element_size()])
    if isinstance(stack, Tensor):
        return Place(first, step=stack.stride(0) if stack.dim() > dims else 0)
    if any(x.stride() != first.stride() for x in layers):
        raise ValueError(f"layers that move at once must have the same strides: {[x.stride() for x in layers]}")
    far = [(x.data_ptr() - first.data_ptr()) // first.element_size() for x in layers]
    offsets = torch.tensor(far, pin_memory=first.is_cuda).to(first.device, non_blocking=True)
    return Place(first, offsets=offsets, aligned=16 if all(step % 16 == 0 for step in far) else 1)


def _as_given(stack: Stack, new: Tensor) -> Stack:
    if not isinstance(stack, Tensor):
        return list(new.unbind(0))
    return new if stack.dim() == new.dim() else new[0]


def _copy_forward(
    k: Place, v: Place, lists: Tensor, lengths: Tensor | None, count: int, table: Tensor | None = None
) -> None:
    layers, heads, keep = lists.shape
    dims, size = (k.first.shape[-1], v.first.shape[-1]), k.first.element_size()
    cut = SLICE_BYTES
    while cut > MIN_SLICE_BYTES and layers * heads * sum(dims) * size // cut < slots(k.first, 2):
        cut //= 2
    width = cut // size
    slices = [triton.cdiv(dim, width) for dim in dims]
    if not lists.numel() * sum(slices):
        return
    strides = [x.first.stride()[:-1] if table is not None else (0, *x.first.stride()[:-1]) for x in (k, v)]
    with on_device(k.first):
        _forward_kernel[(sum(slices), layers * heads)](
            k.first,
            v.first,
            k.offsets,
            v.offsets,
            table,
            lists,
            lengths,
            heads,
            count,
            keep,
            k.first.shape[0],
            slices[0],
            k.step,
            *strides[0],
            v.step,
            *strides[1],
            *lists.stride(),
            *((0, 0) if lengths is None else lengths.stride()),
            KEY_DIM=dims[0],
            VALUE_DIM=dims[1],
            SLOTS=0 if table is None else k.first.shape[2],
            BLOCK_M=min(FORWARD_BYTES // cut, triton.next_power_of_2(keep)),
            BLOCK_D=width,
            HAS_LENGTHS=lengths is not None,
            LISTED=k.offsets is not None,
            ALIGNED=min(k.aligned, v.aligned),
            num_warps=8,
            num_stages=1,
        )
