"""Probes asked at the end of a trajectory: the likelihood of every candidate answer, from the same cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ..traces.tokens import ProbeTokens
from .branch import Branch, Lane
from .forward import Forward

PROBE_TOKENS = 512  # tokens of one probe pass


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """Log-likelihood of each candidate (nats), the choice, and the margin of the right one over the best other."""

    likelihoods: tuple[float, ...]
    choice: int
    correct: bool
    answer_ll: float
    answer_margin: float | None


def answer_probes(
    forward: Forward, branches: Sequence[Branch], probes: Sequence[ProbeTokens]
) -> dict[int, list[ProbeAnswer]]:
    """Answers by id(branch). Every probe starts from the same cache, which is as it was afterwards."""
    lanes = list({id(branch.lane): branch.lane for branch in branches}.values())
    answers: dict[int, list[ProbeAnswer]] = {id(lane): [] for lane in lanes}
    ask = _answer_batch if forward.takes_trees else _answer_one_by_one
    for batch in _batches(probes):
        for lane, found in zip(lanes, ask(forward, lanes, batch), strict=True):
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


def _answer_one_by_one(
    forward: Forward, lanes: Sequence[Lane], probes: Sequence[ProbeTokens]
) -> list[list[ProbeAnswer]]:
    """For models whose layers know one past only: stem and candidates in passes of their own, taken back."""
    out: list[list[ProbeAnswer]] = [[] for _ in lanes]
    for probe in probes:
        with _taken_back(lanes):
            first = forward.log_probabilities(forward.feed(lanes, probe.stem)[:, -1])
            likelihoods: list[list[float]] = [[] for _ in lanes]
            for candidate in probe.candidates:
                total = first[:, candidate[0]]
                if len(candidate) > 1:
                    with _taken_back(lanes):
                        logp = forward.log_probabilities(forward.feed(lanes, candidate[:-1]))
                    following = torch.tensor(candidate[1:], device=logp.device)
                    total = total + logp.gather(2, following[None, :, None].expand(len(lanes), -1, 1)).sum((1, 2))
                for lane, value in zip(likelihoods, total.tolist(), strict=True):
                    lane.append(value)
        for answers, found in zip(out, likelihoods, strict=True):
            answers.append(judge(found, probe.answer))
    return out


@contextmanager
def _taken_back(lanes: Sequence[Lane]) -> Iterator[None]:
    with ExitStack() as stack:
        for lane in lanes:
            stack.enter_context(lane.taken_back())
        yield


def judge(likelihoods: Sequence[float], answer: int) -> ProbeAnswer:
    """The likeliest candidate is the choice; ties go to the first."""
    choice = max(range(len(likelihoods)), key=lambda i: likelihoods[i])
    others = [value for i, value in enumerate(likelihoods) if i != answer]
    margin = likelihoods[answer] - max(others) if others else None
    return ProbeAnswer(tuple(likelihoods), choice, choice == answer, likelihoods[answer], margin)
