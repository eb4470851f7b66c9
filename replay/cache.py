"""The KV cache of one branch: contiguous rows per layer, held in blocks of 256, evicted physically.

A fork shares the buffers and copies a layer only when one side writes to it. Rolling back is resetting a
counter. `kv_bytes` is what is allocated: at most the rows in use plus one block per layer.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..kernels.reference import compact_kv
from .policies.base import KvShape

BLOCK_ROWS = 256


class Buffer:
    """K and V of one layer, (H_kv, capacity, D), and how many caches hold it."""

    __slots__ = ("keys", "owners", "values")

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values, self.owners = keys, values, 1

    @property
    def capacity(self) -> int:
        """Allocated rows."""
        return self.keys.shape[1]

    @property
    def nbytes(self) -> int:
        """Allocated bytes."""
        return self.keys.nbytes + self.values.nbytes


def whole_blocks(rows: int) -> int:
    """Rows rounded up to whole blocks."""
    return -(-rows // BLOCK_ROWS) * BLOCK_ROWS


class KvCache:
    """Rows of every compactable layer. All layers have the same number of rows between forward passes."""

    def __init__(self, shape: KvShape, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device
        self._buffers = [self._allocate(0) for _ in range(shape.layers)]
        self._rows = [0] * shape.layers

    @property
    def rows(self) -> int:
        """Rows in use."""
        return self._rows[0]

    @property
    def ragged(self) -> bool:
        """Whether layers differ in length: only inside a forward pass."""
        return len(set(self._rows)) > 1

    @property
    def nbytes(self) -> int:
        """Bytes allocated, shared buffers counted in full."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def buffers(self) -> list[Buffer]:
        """The buffers, layer by layer."""
        return list(self._buffers)

    def view(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values in use, (H_kv, rows, D): views, never to be written."""
        buffer, rows = self._buffers[layer], self._rows[layer]
        return buffer.keys[:, :rows], buffer.values[:, :rows]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Add (H_kv, L, D) rows to one layer."""
        start = self._rows[layer]
        end = start + keys.shape[1]
        buffer = self._writable(layer, end)
        buffer.keys[:, start:end] = keys
        buffer.values[:, start:end] = values
        self._rows[layer] = end

    def roll_back(self, rows: int) -> None:
        """Forget everything after the first `rows` rows, and release the blocks that held nothing else."""
        self._rows = [min(rows, used) for used in self._rows]
        for layer, buffer in enumerate(self._buffers):
            if buffer.capacity > whole_blocks(rows):
                self._move(layer, rows, whole_blocks(rows))

    def evict(self, start: int, index: Tensor) -> None:
        """Keep the first `start` rows and, of the rest, `index` (layers, H_kv, m), ascending absolute rows."""
        for layer in range(self.shape.layers):
            self._evict_layer(layer, start, index[layer])

    def fork(self) -> KvCache:
        """A second cache with the same rows; buffers are shared until one side writes."""
        twin = KvCache.__new__(KvCache)
        twin.shape, twin.dtype, twin.device = self.shape, self.dtype, self.device
        twin._buffers, twin._rows = list(self._buffers), list(self._rows)
        for buffer in self._buffers:
            buffer.owners += 1
        return twin

    def release(self) -> None:
        """Give the buffers up; the cache is empty afterwards."""
        for layer in range(self.shape.layers):
            self._replace(layer, self._allocate(0))
        self._rows = [0] * self.shape.layers

    def _evict_layer(self, layer: int, start: int, index: Tensor) -> None:
        buffer = self._buffers[layer]
        keys, values = compact_kv(buffer.keys, buffer.values, index)
        rows = start + index.shape[1]
        if buffer.owners > 1 or buffer.capacity != whole_blocks(rows):
            self._move(layer, start, whole_blocks(rows))
            buffer = self._buffers[layer]
        buffer.keys[:, start:rows] = keys
        buffer.values[:, start:rows] = values
        self._rows[layer] = rows

    def _writable(self, layer: int, rows: int) -> Buffer:
        buffer = self._buffers[layer]
        if buffer.owners > 1 or rows > buffer.capacity:
            self._move(layer, self._rows[layer], whole_blocks(rows))
        return self._buffers[layer]

    def _move(self, layer: int, rows: int, capacity: int) -> None:
        """The first `rows` rows into a new buffer of `capacity`."""
        old, new = self._buffers[layer], self._allocate(capacity)
        new.keys[:, :rows] = old.keys[:, :rows]
        new.values[:, :rows] = old.values[:, :rows]
        self._replace(layer, new)

    def _replace(self, layer: int, new: Buffer) -> None:
        self._buffers[layer].owners -= 1
        self._buffers[layer] = new

    def _allocate(self, capacity: int) -> Buffer:
        size = (self.shape.kv_heads, capacity, self.shape.head_dim)
        return Buffer(
            torch.empty(size, dtype=self.dtype, device=self.device),
            torch.empty(size, dtype=self.dtype, device=self.device),
        )


def process_bytes(caches: Iterable[KvCache]) -> int:
    """Bytes allocated by several caches, shared buffers counted once."""
    unique = {id(buffer): buffer.nbytes for cache in caches for buffer in cache.buffers()}
    return sum(unique.values())
