"""The KV cache of one branch: contiguous rows per layer, held in blocks of 256, evicted physically.

A fork shares the buffers and copies a layer only when one side writes to it. Rolling back is resetting a
counter. `kv_bytes` is what is allocated: at most the rows in use plus one block per layer.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..kernels.compact import compact_kv
from .policies.base import KvShape

BLOCK_ROWS = 256


class Buffer:
    """K and V of one layer, (H_kv, capacity, D), their β (H_kv, capacity) if any, and how many caches hold it."""

    __slots__ = ("bias", "keys", "owners", "values")

    def __init__(self, keys: Tensor, values: Tensor, bias: Tensor | None = None) -> None:
        self.keys, self.values, self.bias, self.owners = keys, values, bias, 1

    @property
    def capacity(self) -> int:
        """Allocated rows."""
        return self.keys.shape[1]

    @property
    def nbytes(self) -> int:
        """Allocated bytes of K and V."""
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
        """Bytes of K and V allocated, shared buffers counted in full."""
        return sum(buffer.nbytes for buffer in self._buffers)

    @property
    def bias_bytes(self) -> int:
        """Bytes of the β of the rows in use; 0 where rows have none."""
        return sum(
            4 * self.shape.kv_heads * rows
            for rows, b in zip(self._rows, self._buffers, strict=True)
            if b.bias is not None
        )

    def buffers(self) -> list[Buffer]:
        """The buffers, layer by layer."""
        return list(self._buffers)

    def view(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values in use, (H_kv, rows, D): views, never to be written."""
        buffer, rows = self._buffers[layer], self._rows[layer]
        return buffer.keys[:, :rows], buffer.values[:, :rows]

    def bias(self, layer: int) -> Tensor | None:
        """The β added to the logits of the rows in use, (H_kv, rows) float32; None where no row has one."""
        bias = self._buffers[layer].bias
        return None if bias is None else bias[:, : self._rows[layer]]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Add (H_kv, L, D) rows to one layer."""
        start = self._rows[layer]
        end = start + keys.shape[1]
        buffer = self._writable(layer, end)
        buffer.keys[:, start:end] = keys
        buffer.values[:, start:end] = values
        if buffer.bias is not None:
            buffer.bias[:, start:end] = 0
        self._rows[layer] = end

    def roll_back(self, rows: int) -> None:
        """Forget everything after the first `rows` rows, and release the blocks that held nothing else."""
        self._rows = [min(rows, used) for used in self._rows]
        for layer, buffer in enumerate(self._buffers):
            if buffer.capacity > whole_blocks(rows):
                self._move(layer, rows, whole_blocks(rows))

    def evict(
        self,
        start: int,
        index: Tensor,
        keys: Tensor | None = None,
        values: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> None:
        """Keep the first `start` rows and, of the rest, `index` (layers, H_kv, m), ascending absolute rows.

        `keys` and `values` (layers, H_kv, m, D), where given, replace those of the rows that stay; `bias` (layers,
        H_kv, m) is their β from now on.
        """
        for layer in range(self.shape.layers):
            new = [None if part is None else part[layer] for part in (keys, values, bias)]
            self._evict_layer(layer, start, index[layer], *new)

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

    def _evict_layer(
        self, layer: int, start: int, index: Tensor, keys: Tensor | None, values: Tensor | None, bias: Tensor | None
    ) -> None:
        buffer = self._buffers[layer]
        old_keys, old_values = compact_kv(buffer.keys, buffer.values, index)
        keys, values = old_keys if keys is None else keys, old_values if values is None else values
        if bias is None and buffer.bias is not None:
            bias = buffer.bias.gather(1, index)
        rows = start + index.shape[1]
        if buffer.owners > 1 or buffer.capacity != whole_blocks(rows):
            self._move(layer, start, whole_blocks(rows))
            buffer = self._buffers[layer]
        buffer.keys[:, start:rows] = keys
        buffer.values[:, start:rows] = values
        if bias is not None:
            if buffer.bias is None:
                buffer.bias = torch.zeros(self.shape.kv_heads, buffer.capacity, device=self.device)
            buffer.bias[:, start:rows] = bias
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
        if old.bias is not None:
            new.bias = torch.zeros(self.shape.kv_heads, capacity, device=self.device)
            new.bias[:, :rows] = old.bias[:, :rows]
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
