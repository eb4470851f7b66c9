"""Anthropic Messages: a request with its response, a conversation with `system` beside its messages, or cassettes.

Described in Anthropic's API reference (messages, streaming). A cassette `{status, headers, body}` holds the response's
body as text: JSON, or the events of a streamed answer. A response alone has no prompt and is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..chain import ONE_CALL
from ..reading import Format, Reject
from ..trajectory import Trajectory
from .blocks import from_events, messages_of, split, tools_of, usage_of
from .chat import Told, has_blocks, has_calls, is_messages, listed, trajectory_of
from .content import text_of
from .http import ALONE, STREAMED, body_of, events_of

NAME = "anthropic-messages"
_ITEM_PARTS = ("input_text", "output_text", "summary_text", "refusal")
_OWN = ("system", "anthropic_version", "anthropic_beta")


def sniff(record: Any) -> bool:
    """Whether the record holds messages with Anthropic's blocks or system prompt, or an answer of this API."""
    if isinstance(record, list):
        return is_messages(record) and has_blocks(record) and not has_calls(record)
    if not isinstance(record, Mapping) or "sessionId" in record or "trajectory_format" in record:
        return False
    if isinstance(record.get("interactions"), list):
        return any(isinstance(each, Mapping) and sniff(each) for each in record["interactions"][:3])
    request, response = _request(record), _response(record)
    messages = request.get("messages")
    if _is_answer(response):
        return True
    own = is_messages(messages) and (has_blocks(messages) or any(key in request for key in _OWN))
    return own and not has_calls(messages)


def read(record: Any) -> Trajectory | Iterable[Trajectory]:
    """One conversation, or those of a cassette of several calls. Reject if the prompt is not in the record."""
    if isinstance(record, Mapping) and isinstance(record.get("interactions"), list):
        return [_read(each) for each in record["interactions"]]
    return _read({"messages": record} if isinstance(record, list) else record)


def _read(record: Any) -> Trajectory:
    if not isinstance(record, Mapping):
        raise Reject("not an object")
    request, response = _request(record), _response(record)
    if response is not None:
        events = events_of(response)
        response = from_events(events) if events is not None else response
        if response.get("type") == "error":
            error = response.get("error")
            raise Reject(
                f"the response is an error: {error.get('type') if isinstance(error, Mapping) else error}"[:200]
            )
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Reject(ALONE if response else "no messages")
    losses: set[str] = set()
    said = [{"role": "system", "content": request["system"]}] if request.get("system") else []
    said += messages_of(messages, losses)
    answer = [] if response is None else split("assistant", response.get("content"), losses)
    if response is not None and response.get("stop_reason", "") is None:
        losses.add("interrupted")
    if answer and said and said[-1]["role"] == "assistant":  # a prefill: the answer goes on from it
        begun = said.pop()
        answer[0] = {
            **answer[0],
            "content": text_of(begun.get("content"), losses) + text_of(answer[0]["content"], losses),
        }
    tools, hosted = tools_of(request.get("tools"))
    if response and _edited(response):
        losses.add("already_compacted")
    usage = usage_of(response.get("usage")) if response else None
    earlier = sum(message["role"] == "assistant" for message in [*said, *answer]) - 1
    return trajectory_of(
        NAME,
        "chat",
        [*said, *answer],
        tools=tuple(tools),
        losses=losses,
        told=[*[None] * earlier, Told(usage)] if usage and answer else (),
        model=next((m["model"] for m in (response, request) if m and isinstance(m.get("model"), str)), None),
        already_compacted="already_compacted" in losses,
        meta=({ONE_CALL: True} if answer else {}) | ({"hosted_tools": hosted} if hosted else {}),
    )


def _request(record: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = body_of(record.get("request"))
    if not isinstance(inner, Mapping) and "response" in record:
        inner = body_of(record.get("body"))
    return inner if isinstance(inner, Mapping) else record


def _response(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The body of the response: the record's own, in a cassette, or beside the request's fields."""
    if "response" in record:
        found = body_of(record["response"])
    elif STREAMED in record or ("status" in record and isinstance(record.get("body"), str)):
        found = body_of(record)
    else:
        found = record if record.get("type") == "message" and isinstance(record.get("content"), list) else None
    return found if isinstance(found, Mapping) else None


def _is_answer(response: Mapping[str, Any] | None) -> bool:
    if response is None:
        return False
    events = events_of(response)
    if events is not None:
        return any(event.get("type") == "message_start" for event in events)
    content = response.get("content")
    # A Responses history has messages of this type as well.
    items = [block for block in listed(content) if isinstance(block, Mapping) and str(block.get("type")) in _ITEM_PARTS]
    return response.get("type") == "message" and isinstance(content, list) and not items


def _edited(response: Mapping[str, Any]) -> bool:
    """Whether the provider took something out of the context before this call."""
    managed = response.get("context_management")
    return isinstance(managed, Mapping) and bool(listed(managed.get("applied_edits")))


FORMAT = Format(
    NAME,
    "Anthropic Messages: a request with its response, a conversation or a cassette, one JSON each",
    "trajectories",
    sniff,
    read,
    verified=True,
)
