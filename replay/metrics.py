"""Quality of a branch against the full-cache branch of the same pass: likelihood, divergence, agreement, probes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..traces.tokens import ProbeTokens, TokenSegment
from .branch import Branch, Lane
from .forward import Forward
from .policies.states import Chunk

PROBE_TOKENS = 512  # tokens of one probe pass


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


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """Log-likelihood of each candidate (nats), the choice, and the margin of the right one over the best other."""

    likelihoods: tuple[float, ...]
    choice: int
    correct: bool
    answer_ll: float
    answer_margin: float | None


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


def answer_probes(
    forward: Forward, branches: Sequence[Branch], probes: Sequence[ProbeTokens]
) -> dict[int, list[ProbeAnswer]]:
    """Answers by id(branch). Every probe starts from the same cache, which is as it was afterwards."""
    lanes = list({id(branch.lane): branch.lane for branch in branches}.values())
    answers: dict[int, list[ProbeAnswer]] = {id(lane): [] for lane in lanes}
    for batch in _batches(probes):
        for lane, found in zip(lanes, _answer_batch(forward, lanes, batch), strict=True):
            answers[id(lane)] += found
    return {id(branch): answers[id(branch.lane)] for branch in branches}


def _batches(probes: Sequence[ProbeTokens]) -> list[list[ProbeTokens]]:
    out: list[list[ProbeTokens]] = []
    used = PROBE_TOKENS
    for probe in probes:
        size = len(probe.stem) + sum(len(c) - 1 for c in probe.candidates)
        if used + size > PROBE_TOKENS:
            out.append([])
            used = 0
        out[-1].append(probe)
        used += size
    return out


@dataclass
class Forest:
    """Several probes as trees in one pass: tokens, depth of each, parent of each (−1 for a root)."""

    ids: list[int]
    depth: list[int]
    parent: list[int]

    def add(self, tokens: Sequence[int], parent: int) -> int:
        """A path of tokens under `parent`; returns its last node."""
        for token in tokens:
            self.depth.append(self.depth[parent] + 1 if parent >= 0 else 0)
            self.ids.append(token)
            self.parent.append(parent)
            parent = len(self.ids) - 1
        return parent

    def visible(self, device: torch.device) -> Tensor:
        """(L, L) bool: a token sees itself and its ancestors."""
        out = torch.eye(len(self.ids), dtype=torch.bool)
        for node, parent in enumerate(self.parent):
            if parent >= 0:
                out[node] |= out[parent]
        return out.to(device)


def _answer_batch(forward: Forward, lanes: Sequence[Lane], probes: Sequence[ProbeTokens]) -> list[list[ProbeAnswer]]:
    forest = Forest([], [], [])
    wanted: list[tuple[int, int]] = []  # (node that predicts, token predicted)
    spans: list[list[range]] = []
    for probe in probes:
        stem = forest.add(probe.stem, -1)
        spans.append([])
        for candidate in probe.candidates:
            start, node = len(wanted), stem
            for token, following in zip(candidate, [*candidate[1:], None], strict=True):
                wanted.append((node, token))
                if following is not None:
                    node = forest.add([token], node)
            spans[-1].append(range(start, len(wanted)))
    rows = [lane.cache.rows for lane in lanes]
    visible = forest.visible(forward.model.device)
    hidden = forward.feed(lanes, forest.ids, visible=visible, depth=forest.depth)
    for lane, before in zip(lanes, rows, strict=True):
        lane.cache.roll_back(before)
    nodes = torch.tensor([node for node, _ in wanted], device=hidden.device)
    unique, place = nodes.unique(return_inverse=True)
    tokens = torch.tensor([token for _, token in wanted], device=hidden.device)
    out: list[list[ProbeAnswer]] = []
    for number in range(len(lanes)):
        logp = forward.log_probabilities(hidden[number][unique])[place, tokens].tolist()
        out.append(
            [
                judge([sum(logp[i] for i in span) for span in candidate_spans], probe.answer)
                for candidate_spans, probe in zip(spans, probes, strict=True)
            ]
        )
    return out


def judge(likelihoods: Sequence[float], answer: int) -> ProbeAnswer:
    """The likeliest candidate is the choice; ties go to the first."""
    choice = max(range(len(likelihoods)), key=lambda i: likelihoods[i])
    others = [value for i, value in enumerate(likelihoods) if i != answer]
    margin = likelihoods[answer] - max(others) if others else None
    return ProbeAnswer(tuple(likelihoods), choice, choice == answer, likelihoods[answer], margin)
