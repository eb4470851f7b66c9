"""Quality of a branch against the full-cache branch of the same pass: likelihood, divergence, agreement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..traces.tokens import TokenSegment
from .branch import Lane
from .forward import Forward
from .policies.states import Chunk


@dataclass
class TurnQuality:
    """Sums over the scored tokens of one turn: −log p (nats), KL(full ‖ policy), equal argmax."""

    tokens: int = 0
    nll: float = 0.0
    kl: float = 0.0
    agreed: int = 0

    def add(self, other: TurnQuality) -> None:
        """Add the sums of another piece."""
        self.tokens += other.tokens
        self.nll += other.nll
        self.kl += other.kl
        self.agreed += other.agreed


def scored_rows(segment: TokenSegment, begin: int, end: int) -> range:
    """Offsets in [begin, end) whose next token the model generated: the rows that predict scored tokens."""
    first, last = segment.scored
    return range(max(begin, first - 1), min(end, last - 1)) if last > first else range(0)


def score_chunk(
    forward: Forward, chunk: Chunk, lanes: Sequence[Lane], hidden: Tensor, full: Lane
) -> dict[int, TurnQuality]:
    """Quality of every lane on the chunk's scored tokens, by id(lane). `full` is the uncompacted lane."""
    rows = scored_rows(chunk.segment, chunk.begin, chunk.end)
    if not rows:
        return {}
    targets = torch.tensor([chunk.segment.ids[row + 1] for row in rows], device=hidden.device)
    picked = hidden[:, rows.start - chunk.begin : rows.stop - chunk.begin]
    order = sorted(range(len(lanes)), key=lambda i: lanes[i] is not full)
    reference: Tensor | None = None
    out: dict[int, TurnQuality] = {}
    for number in order:
        logp = forward.log_probabilities(picked[number])
        reference = logp if reference is None else reference
        right = logp.gather(1, targets[:, None])
        same = lanes[number] is full
        kl = 0.0 if same else float((reference.exp() * (reference - logp)).sum())
        agreed = len(rows) if same else int((reference.argmax(-1) == logp.argmax(-1)).sum())
        out[id(lanes[number])] = TurnQuality(len(rows), -float(right.sum()), kl, agreed)
    return out
