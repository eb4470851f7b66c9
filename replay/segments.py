"""From tokenised trajectories to the lengths a footprint knows, and the turns the engine feeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..traces.tokens import TokenSegment, TokenTrajectory
from .policies.base import SegmentSize


def size_of(segment: TokenSegment) -> SegmentSize:
    """The lengths of one segment, structural tokens by offset."""
    return SegmentSize(
        segment.kind,
        len(segment.ids),
        len(segment.structural),
        tuple(segment.structural),
        segment.closing,
        len(segment.frame),
        frame_lead=sum(at == offset for at, offset in enumerate(segment.frame)),
    )


def sizes_of(trajectory: TokenTrajectory) -> list[SegmentSize]:
    """The lengths of every segment, in order."""
    asked = {name: len(ids) for name, ids in trajectory.prompts.items()}
    recalls = (asked.get("recall", 0), asked.get("recall_on", 0))
    first, later = (count + asked.get("recall_reply", 0) for count in recalls)
    prompts = {"repeat_prompt": asked.get("repeat", 0), "recall_prompts": (first, later)}
    return [replace(size_of(segment), **prompts) for segment in trajectory.segments]


def turns_of(trajectory: TokenTrajectory) -> list[list[TokenSegment]]:
    """Segments grouped by turn: prefix or user segments, then assistant, then tool."""
    turns: list[list[TokenSegment]] = []
    for segment in trajectory.segments:
        while len(turns) <= segment.turn:
            turns.append([])
        turns[segment.turn].append(segment)
    return turns


def chunk_ends(tokens: int, checks: Sequence[int], every: int) -> list[int]:
    """Where a segment is cut: every `every` tokens from its start, at `checks`, and at its end."""
    cuts = {*range(every, tokens, every), *(c for c in checks if 0 < c < tokens), tokens}
    return sorted(cuts - {0})
