"""From chat messages as APIs write them to turns. Shared by every format that holds one growing list of messages."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..checks import unmatched
from ..reading import Reject
from ..record import tool_call
from ..trajectory import Message, RecordedIds, Role, ToolCall, Trajectory, Turn, Usage
from .clock import between
from .content import text_of, thinking_of

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}

# Block types of Anthropic Messages that no OpenAI message has.
BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use", "web_search_tool_result")
CONVERSE = ("toolUse", "toolResult", "reasoningContent")  # keys of Bedrock's blocks, which have no type


def is_messages(value: Any) -> bool:
    """Whether a value looks like a list of chat messages."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in value)
        and any("content" in m or "tool_calls" in m for m in value)
    )


def has_blocks(messages: Any) -> bool:
    """Whether messages hold Anthropic's content blocks, which are no parts of a chat message."""
    return any(
        isinstance(block, Mapping) and (block.get("type") in BLOCKS or not block.keys().isdisjoint(CONVERSE))
        for message in messages
        for block in listed(message.get("content"))
    )


def has_calls(messages: Any) -> bool:
    """Whether messages call tools or answer calls as OpenAI's do."""
    return any(message.get("tool_calls") or message.get("tool_call_id") for message in messages)


@dataclass(frozen=True, slots=True)
class Told:
    """What a source tells of one model call besides its words; times in seconds on the source's own clock."""

    usage: Usage | None = None
    started_s: float | None = None
    duration_s: float | None = None
    tool_wait_s: float | None = None
    ids: RecordedIds | None = None


def listed(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def message_of(raw: Any, place: int, losses: set[str]) -> Message:
    """One message. Reject if it is none."""
    if not isinstance(raw, dict):
        raise Reject(f"message {place} is not an object")
    role = ROLES.get(str(raw.get("role")))
    if role is None:
        raise Reject(f"message {place} has the unknown role {raw.get('role')!r}")
    content = text_of(raw.get("content"), losses)
    if not content and isinstance(raw.get("refusal"), str):
        content = raw["refusal"]
    if role != "assistant":
        name, result_of = raw.get("name"), raw.get("tool_call_id")
        return Message(
            role,
            content,
            tool_call_id=str(result_of) if role == "tool" and result_of else None,
            name=name if isinstance(name, str) and name else None,
        )
    reasoning = _reasoning(raw, losses)
    said = raw.get("audio")
    if not content and isinstance(said, Mapping) and isinstance(said.get("transcript"), str):
        losses.add("non_text_content")  # the words of a spoken answer
        content = said["transcript"]
    if reasoning is None and content.lstrip().startswith("<think>") and "</think>" in content:
        thought, _, content = content.lstrip().removeprefix("<think>").partition("</think>")
        reasoning, content = thought.strip(), content.lstrip()
    return Message(role, content, calls_of(raw, place, losses), reasoning=reasoning or None)


def _reasoning(raw: Mapping[str, Any], losses: set[str]) -> str | None:
    """Thinking beside the content: as text (vLLM, DeepSeek), as parts (LiteLLM, OpenRouter), or inside the content."""
    given = raw.get("reasoning_content") or raw.get("reasoning")
    if isinstance(given, str):
        return given
    places = (given, raw.get("thinking_blocks"), raw.get("reasoning_details"), raw.get("content"))
    return next((text for place in places if (text := thinking_of(place, losses))), None)


def calls_of(raw: Mapping[str, Any], place: int, losses: set[str]) -> tuple[ToolCall, ...]:
    """The calls of an assistant message; a call without an id gets one from its place."""
    listed = raw.get("tool_calls") or []
    if not listed and isinstance(raw.get("function_call"), dict):
        listed = [{"function": raw["function_call"]}]
    if not isinstance(listed, list):
        raise Reject(f"message {place}: tool_calls is not a list")
    calls = []
    for n, call in enumerate(listed):
        function = call.get("function", call.get("custom", call)) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Reject(f"message {place}: tool call {n} has no function name")
        arguments = function.get("arguments", function.get("input"))  # of a custom tool: a text
        if not isinstance(arguments, str):
            if arguments is not None:
                losses.add("arguments_were_objects")
            arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
        calls.append(tool_call(str(call.get("id") or f"call_{place}_{n}"), function["name"], arguments))
    return tuple(calls)


def tools_of(value: Any) -> tuple[Mapping[str, Any], ...]:
    """Tool schemas: a list, or the JSON of one; bare functions are wrapped."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise Reject("tools is a string, but not the JSON of a list") from None
    if value in (None, {}):
        return ()
    if not isinstance(value, list) or not all(isinstance(tool, Mapping) for tool in value):
        raise Reject("tools is not a list of objects")
    return tuple(
        tool if "function" in tool else {"type": "function", "function": tool.get("custom", tool)} for tool in value
    )


def conversation(raw: Sequence[Any], losses: set[str], shown: int = 0) -> tuple[tuple[Message, ...], tuple[Turn, ...]]:
    """Prefix and turns of a message list.

    The prefix ends with the first user message and what the caller said right after it; a greeting of the assistant
    before it belongs to the prefix, and so do the first `shown` messages (a demonstration), whoever says them.
    A turn is one assistant message and the tool results until the next one; user messages in between go before the
    assistant message that answers them, the last unanswered ones are dropped.
    """
    messages = [message_of(item, place, losses) for place, item in enumerate(raw)]
    answered = 0 < shown < len(messages) and messages[shown].role == "assistant"
    split = shown if answered else shown + _prefix_length(messages[shown:])
    turns = turns_of(messages[split:], losses)
    if not split:
        raise Reject("the first message is the assistant's: there is nothing it could answer")
    return tuple(messages[:split]), turns


def turns_of(messages: Sequence[Message], losses: set[str]) -> tuple[Turn, ...]:
    """The turns of what follows the prefix. Reject if the assistant says nothing in it."""
    if not any(message.role == "assistant" for message in messages):
        raise Reject("no assistant message to replay")
    said: list[tuple[Message, list[Message], list[Message]]] = []
    waiting: list[Message] = []
    for message in messages:
        if message.role == "assistant":
            said.append((message, [], waiting))
            waiting = []
        elif message.role == "tool" and said:
            if waiting:
                losses.add("results_out_of_order")
            said[-1][1].append(message)
        else:
            waiting.append(message)
    if waiting:
        losses.add("trailing_user_dropped")
    turns = [Turn(assistant, tuple(tools), tuple(user)) for assistant, tools, user in said]
    for turn in turns:
        calls, results = unmatched(turn)
        if calls:
            losses.add("ends_with_call" if turn is turns[-1] and not turn.tools else "call_without_result")
        if results:
            losses.add("result_without_call")
    return tuple(turns)


def _prefix_length(messages: Sequence[Message]) -> int:
    first_user = next((i for i, m in enumerate(messages) if m.role == "user"), None)
    calling = next((i for i, m in enumerate(messages) if m.tool_calls or m.role == "tool"), len(messages))
    if first_user is None or calling < first_user:
        return next((i for i, m in enumerate(messages) if m.role == "assistant"), len(messages))
    end = first_user + 1
    while end < len(messages) and messages[end].role in ("system", "developer", "user"):
        end += 1
    return end


def trajectory_of(
    source: str,
    family: str,
    raw: Sequence[Any],
    *,
    tools: tuple[Mapping[str, Any], ...] = (),
    losses: set[str] | None = None,
    told: Sequence[Told | None] = (),
    shown: int = 0,
    **values: Any,
) -> Trajectory:
    """A trajectory without its id, which is made from its content at ingest.

    `told` has one entry for every assistant message of `raw`, in order; those of the prefix are not kept.
    """
    lost = set() if losses is None else losses
    prefix, turns = conversation(raw, lost, shown)
    if told:
        turns = with_told(turns, told[len(told) - len(turns) :])
    if not tools and any(turn.assistant.tool_calls for turn in turns):
        lost.add("no_tool_schemas")
    return Trajectory("", source, family, prefix, turns, tools, losses=tuple(sorted(lost)), **values)


def told_of(messages: Sequence[Mapping[str, Any]]) -> list[Told]:
    """What messages made by a reader tell of each call: `at` (when the message was complete), `usage` and `ids`.

    A call begins when the message before it is there, so it includes what the framework did in between.
    """
    told, before = [], None
    for message in messages:
        at = message.get("at")
        if message.get("role") == "assistant":
            told.append(Told(message.get("usage"), before, between(before, at), ids=message.get("ids")))
        before = at
    return told


def with_told(turns: Sequence[Turn], told: Sequence[Told | None]) -> tuple[Turn, ...]:
    """The turns with usage, ids and times. Times count from the first call that has one; where the source does not
    say how long the tools took, it is the time from a call's end to the next call's start.
    """
    begin = next((call.started_s for call in told if call and call.started_s is not None), 0.0)
    made = []
    for turn, call in zip(turns, told, strict=True):
        call = call or Told()  # noqa: PLW2901
        start = None if call.started_s is None else call.started_s - begin
        made.append(
            replace(
                turn,
                usage=call.usage,
                ids=call.ids,
                started_s=start,
                duration_s=call.duration_s,
                tool_wait_s=call.tool_wait_s,
            )
        )
    for n, (turn, following) in enumerate(itertools.pairwise(made)):
        if turn.tool_wait_s is None and None not in (turn.started_s, turn.duration_s, following.started_s):
            made[n] = replace(turn, tool_wait_s=max(0.0, following.started_s - turn.started_s - turn.duration_s))
    return tuple(made)
