"""Trajectories as AIPerf's `mooncake_trace` (ai-dynamo/aiperf, docs/benchmark-modes/trace-replay.md): a row per call.

Every row holds the whole conversation before its call, so that the recorded replies are replayed and not live ones.
The file grows with the square of a run's length. The reply to the last call has no place in the format. The models of
aiperf 0.13.0 accept what is written here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..trajectory import Message, Trajectory, Turn

LOSES = (
    "source",
    "family",
    "prefix",
    "turns",
    "words",
    "reasoning",
    "usage",
    "times",
    "prompt_ids",
    "output_ids",
    "model",
    "label",
    "probes",
    "meta",
    "losses",
    "already_compacted",
)


def rows(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    """The rows of one session, in order. A wait between calls is the time until the next row, in ms."""
    said = list(map(_message, trajectory.prefix))
    before: Turn | None = None
    for turn in trajectory.turns:
        said += map(_message, turn.user)
        row: dict[str, Any] = {"session_id": trajectory.id, "message_mode": "history", "messages": list(said)}
        if trajectory.tools:
            row["tools"] = list(trajectory.tools)
        if (tokens := _output_tokens(turn)) is not None:
            row["output_length"] = tokens
        if before is not None and before.tool_wait_s is not None:
            row["delay"] = before.tool_wait_s * 1000
        yield row
        said += map(_message, (turn.assistant, *turn.tools))
        before = turn


def _output_tokens(turn: Turn) -> int | None:
    if turn.usage is not None and turn.usage.output_tokens:
        return turn.usage.output_tokens
    return len(turn.ids.output) or None if turn.ids is not None else None


def _message(message: Message) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    for name, value in (
        ("reasoning_content", message.reasoning),
        ("tool_call_id", message.tool_call_id),
        ("name", message.name),
    ):
        if value is not None:
            made[name] = value
    return made
