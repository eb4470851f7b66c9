"""Harbor's export for fine-tuning: one row per episode, which repeats the conversation so far; the longest stays.

`{conversations: [{role, content}], agent, model, task, episode, trial_name, tool_definitions, result}`. The export
writes calls as text into the assistant's message, and what the system and the tools said as the user's. An episode
that does not go on from the one before it was begun after the agent summarised its context.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..items import each
from ..reading import Bad, Format, Item, Record, Reject, Source
from ..trajectory import Label, Trajectory
from .chat import is_messages, tools_of, trajectory_of
from .counts import finite

NAME = "harbor"
_KEPT = ("task", "trial_name", "run_id", "original_source")


def sniff(record: Any) -> bool:
    """Whether the record is an episode: a conversation in roles, of an agent at a task."""
    return (
        isinstance(record, Mapping)
        and is_messages(record.get("conversations"))
        and not {"agent", "trial_name", "episode"}.isdisjoint(record)
    )


def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
    """The episodes in order; those of one call chain are reduced to one run when they are stored."""
    return each(_Episodes().read, records)


class _Episodes:
    """Reads episodes, and knows the one before."""

    def __init__(self) -> None:
        self._trial: Any = None
        self._said: list[Any] = []
        self._compacted = False

    def read(self, record: Any) -> Trajectory:
        if not isinstance(record, Mapping):
            raise Reject("not an object")
        said = record.get("conversations")
        if not isinstance(said, list) or not said:
            raise Reject("no conversations")
        goes_on = said[: len(self._said)] == self._said
        same = record.get("trial_name") is not None and record.get("trial_name") == self._trial
        self._compacted = same and (self._compacted or not goes_on)
        self._trial, self._said = record.get("trial_name"), said
        return _episode(record, said, self._compacted)


def _episode(record: Mapping[str, Any], said: list[Any], compacted: bool) -> Trajectory:
    agent, model, result = record.get("agent"), record.get("model"), finite(record.get("result"))
    losses = {"already_compacted"} if compacted else set()
    if result is None:
        losses.add("no_reward")
    if all(message.get("role") in ("user", "assistant") for message in said if isinstance(message, Mapping)):
        losses.add("roles_as_user")
    if any("<tool_call>" in str(message.get("content")) for message in said if isinstance(message, Mapping)):
        losses.add("calls_as_text")
    return trajectory_of(
        NAME,
        agent.lower() if isinstance(agent, str) and agent else NAME,
        said,
        tools=tools_of(record.get("tool_definitions")),
        losses=losses,
        label=None if result is None else Label("reward", result),
        model=model if isinstance(model, str) else None,
        already_compacted=compacted,
        meta={"one_call": True} | {key: record[key] for key in _KEPT if isinstance(record.get(key), str)},
    )


FORMAT = Format(
    NAME,
    "Harbor export: conversations of roles and content, one row an episode, with agent and task",
    "trajectories",
    sniff,
    gather=gather,
    verified=True,
)
