"""Trajectories and requests as rows of the store's tables, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .record import dump
from .trajectory import Message, Request, Trajectory, Usage

_NO_USAGE = Usage()


def characters(messages: Sequence[Message]) -> int:
    """Characters of content, thinking and raw arguments."""
    said = 0
    for message in messages:
        said += len(message.content) + len(message.reasoning or "")
        for call in message.tool_calls:
            said += len(call.arguments)
    return said


def trajectory_row(trajectory: Trajectory, line: bytes | None = None) -> dict[str, Any]:
    """One row of `trajectories`; `line` is its JSON where it was written already."""
    return {
        "trajectory_id": trajectory.id,
        "source": trajectory.source,
        "family": trajectory.family,
        "turns": len(trajectory.turns),
        "characters": characters(trajectory.messages()),
        "tool_calls": sum(len(turn.assistant.tool_calls) for turn in trajectory.turns),
        "probes": len(trajectory.probes),
        "label_scorer": trajectory.label.scorer if trajectory.label else None,
        "already_compacted": trajectory.already_compacted,
        "losses": list(trajectory.losses),
        "model": trajectory.model,
        "record": dump(trajectory) if line is None else line,
    }


def turn_rows(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    """Its rows of `turns`."""
    for n, turn in enumerate(trajectory.turns):
        usage = turn.usage or _NO_USAGE
        yield {
            "trajectory_id": trajectory.id,
            "turn": n,
            "assistant_characters": characters([turn.assistant]),
            "tool_characters": characters(turn.tools),
            "user_characters": characters(turn.user),
            "tool_calls": len(turn.assistant.tool_calls),
            "started_s": turn.started_s,
            "duration_s": turn.duration_s,
            "tool_wait_s": turn.tool_wait_s,
            "fresh_input_tokens": usage.fresh_input_tokens,
            "cache_read_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
            "output_tokens": usage.output_tokens,
        }


def request_row(request: Request) -> dict[str, Any]:
    """One row of `requests`."""
    return {
        "request_id": request.id,
        "source": request.source,
        "session": request.session,
        "turn": request.turn,
        "arrival_s": request.arrival_s,
        "input_tokens": request.input_tokens,
        "output_tokens": request.output_tokens,
        "prefix_blocks": None if request.prefix_blocks is None else list(request.prefix_blocks),
        "block_tokens": request.block_tokens,
        "tool_wait_s": request.tool_wait_s,
    }


def request_of(row: Mapping[str, Any]) -> Request:
    """The request of a row of `requests`."""
    blocks = row["prefix_blocks"]
    values = {key: row[key] for key in ("source", "session", "turn", "arrival_s", "input_tokens", "output_tokens")}
    return Request(
        id=row["request_id"],
        prefix_blocks=None if blocks is None else tuple(blocks),
        block_tokens=row["block_tokens"],
        tool_wait_s=row["tool_wait_s"],
        **values,
    )
