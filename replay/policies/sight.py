"""What one layer of a chunk shows a policy: queries, keys, and how much the tokens read each row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...kernels.mass import attention_mass, attention_use, log_totals
from ...kernels.reference import group_rows


@dataclass(frozen=True)
class Sight:
    """(H_q, L, D) queries of a chunk, (H_kv, rows, D) keys, their own last, the rows' β, and where a single token was
    fed, what its attention left behind: `read` (H_kv, rows), the weights summed over the query heads of a KV head.
    """

    queries: Tensor
    keys: Tensor
    scaling: float
    bias: Tensor | None = None
    read: Tensor | None = None

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.queries.shape[0] // self.keys.shape[0]

    @property
    def limits(self) -> Tensor:
        """(L,) rows that each token sees."""
        length, rows = self.queries.shape[1], self.keys.shape[1]
        return torch.arange(rows - length + 1, rows + 1, device=self.keys.device)

    def activity(
        self, gains: Tensor | None = None, positions: tuple[Tensor, Tensor] | None = None, distance: int = 0
    ) -> Tensor:
        """(H_kv, rows): Σ over the tokens of gain (L,) · weight, the weight averaged over the query heads.

        With the positions of the tokens (L,) and of the rows (H_kv, rows), only from `distance` on.
        """
        if self.read is not None:
            read = self.read / self.group if gains is None else self.read * (gains / self.group)
            return read if positions is None else read * (positions[0] - positions[1] >= distance)
        length = self.queries.shape[1]
        gains = torch.ones(length, device=self.keys.device) if gains is None else gains
        if positions is not None:
            positions = (positions[0].repeat(self.group), positions[1])
        return attention_mass(
            group_rows(self.queries, self.keys.shape[0]),
            self.keys,
            self.scaling,
            reduction="sum",
            limits=self.limits.repeat(self.group),
            row_weights=(gains / self.group).repeat(self.group),
            positions=positions,
            distance=distance,
            bias=self.bias,
        )

    def log_totals(self, part: slice = slice(None)) -> Tensor:
        """(H_q, part) float32: log-sum-exp of the logits of the queries `part` of L over all rows they see."""
        asked = self.queries[:, part]
        limits = self.limits[part].repeat(self.group)
        grouped = group_rows(asked, self.keys.shape[0])
        return log_totals(grouped, self.keys, self.scaling, limits=limits, bias=self.bias).view(asked.shape[:2])

    def use(self, first: int, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Activity and last use of the rows from `first` on, as `kernels.reference.attention_use` defines them."""
        if self.read is None:
            return attention_use(
                self.queries,
                self.keys,
                self.scaling,
                limits=self.limits,
                positions=positions,
                first=first,
                bias=self.bias,
            )
        mean = self.read[:, first:] / self.group
        return mean, torch.where(mean * self.keys.shape[1] >= 1, positions.to(mean.dtype), -1.0)
