"""What a trajectory loses on the way into a format and back, found by reading again what was written."""

from __future__ import annotations

from dataclasses import replace

from ..trajectory import Message, RecordedIds, Trajectory

LOST = {
    "source": "the name of the format it was first read from",
    "family": "the family",
    "prefix": "where the prompt ends and the first turn begins",
    "turns": "turns at the end, or what was said in them",
    "words": "the words of a message",
    "reasoning": "thinking",
    "arguments": "the recorded spelling of a call's arguments",
    "call_ids": "the ids that join calls and results",
    "names": "names of speakers and tools",
    "tools": "tool schemas",
    "usage": "tokens of each call",
    "times": "when calls began, how long they took, how long the tools took",
    "prompt_ids": "recorded token ids of prompts",
    "output_ids": "recorded token ids of replies",
    "model": "the model",
    "label": "the ground truth",
    "probes": "the questions asked after the last turn",
    "meta": "what else the source said",
    "losses": "what the source had lost before",
    "already_compacted": "the mark of a run whose context was compacted while it was recorded",
}
_WHOLE = ("source", "family", "tools", "model", "label", "probes", "already_compacted")


def lost(before: Trajectory, after: Trajectory) -> tuple[str, ...]:
    """The codes of `LOST` by which `after` differs from `before`, in the order of that table."""
    found = {name for name in _WHOLE if getattr(before, name) != getattr(after, name)}
    if any(after.meta.get(key) != value for key, value in before.meta.items()):
        found.add("meta")
    if not set(before.losses) <= set(after.losses):
        found.add("losses")
    if len(before.prefix) != len(after.prefix):
        found.add("prefix")
    if len(before.turns) != len(after.turns):
        found.add("turns")
    for one, other in zip(before.messages(), after.messages(), strict=False):
        found |= _differs(one, other)
    for turn, again in zip(before.turns, after.turns, strict=False):
        if turn.usage != again.usage:
            found.add("usage")
        if any(getattr(turn, name) != getattr(again, name) for name in ("started_s", "duration_s", "tool_wait_s")):
            found.add("times")
        ids, same = turn.ids or RecordedIds(), again.ids or RecordedIds()
        found |= {"prompt_ids"} if ids.prompt != same.prompt else set()
        found |= {"output_ids"} if ids.output != same.output else set()
    if len(before.messages()) != len(after.messages()):
        found.add("turns")
    if not found and replace(after, id=before.id, meta=before.meta, losses=before.losses) != before:
        found.add("turns")
    return tuple(code for code in LOST if code in found)


def _differs(one: Message, other: Message) -> set[str]:
    found = set()
    if (one.role, one.content, len(one.tool_calls)) != (other.role, other.content, len(other.tool_calls)):
        found.add("words")
    if one.reasoning != other.reasoning:
        found.add("reasoning")
    if one.name != other.name:
        found.add("names")
    if one.tool_call_id != other.tool_call_id:
        found.add("call_ids")
    for call, again in zip(one.tool_calls, other.tool_calls, strict=False):
        found |= {"arguments"} if call.arguments != again.arguments else set()
        found |= {"names"} if call.name != again.name else set()
        found |= {"call_ids"} if call.id != again.id else set()
    return found
