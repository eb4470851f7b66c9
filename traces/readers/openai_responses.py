"""OpenAI Responses: a request with its response, one object with `input` and `output`, or a bare list of items.

Described in OpenAI's API reference (responses/create, responses/object). Instructions stand outside the items. An input
that goes on from `previous_response_id` lacks what came before: it is on the server. A response alone has no prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..chain import ONE_CALL, START
from ..reading import Format, Reject
from ..trajectory import Trajectory
from .chat import Told, listed, trajectory_of
from .clock import between
from .counts import finite
from .http import ALONE, STREAMED, body_of, events_of
from .response_items import Conversation, is_item, tools_of, usage_of

NAME = "openai-responses"
_TEXT_DELTAS = ("response.output_text.delta", "response.refusal.delta")
_ARGUMENTS_DELTA = "response.function_call_arguments.delta"


def sniff(record: Any) -> bool:
    """Whether the record holds items, in a list or where a request or a response has them."""
    if isinstance(record, list):
        return _are_items(record)
    if not isinstance(record, Mapping) or "messages" in record:
        return False
    request, response = _parts(record)
    asked = request.get("input")
    return (
        _are_items(response.get("output"))
        or _are_items(asked)
        or (isinstance(asked, str) and response.get("object") == "response")
    )


def read(record: Any) -> Trajectory:
    """One conversation. Reject if the prompt is not in the record."""
    if isinstance(record, list):
        record = {"input": record}
    if not isinstance(record, Mapping):
        raise Reject("not an object")
    request, response = _parts(record)
    asked = request.get("input")
    losses: set[str] = set()
    said = Conversation(losses)
    instructions = request.get("instructions") or response.get("instructions")
    if isinstance(instructions, str):
        said.add({"role": "system", "content": instructions})
    else:
        said.extend(listed(instructions))
    if isinstance(asked, str):
        said.add({"role": "user", "content": asked})
    elif isinstance(asked, list):
        said.extend(asked)
    else:
        raise Reject(ALONE)
    if request.get("previous_response_id") or response.get("previous_response_id") or request.get("conversation"):
        losses.add("history_on_server")
    said.close()
    output = listed(response.get("output"))
    said.extend(output)
    answered = bool(output)
    if response.get("status") in ("failed", "cancelled", "in_progress", "queued"):
        losses.add("interrupted")
    messages = said.chat()
    tools, hosted = tools_of(request.get("tools") or response.get("tools"))
    began, ended = finite(response.get("created_at")), finite(response.get("completed_at"))
    told = Told(usage_of(response.get("usage")), began, between(began, ended))
    earlier = sum(message["role"] == "assistant" for message in messages) - 1
    return trajectory_of(
        NAME,
        "chat",
        messages,
        tools=tuple(tools),
        losses=losses,
        told=[*[None] * earlier, told] if answered else (),
        model=next((m["model"] for m in (response, request) if isinstance(m.get("model"), str)), None),
        already_compacted="already_compacted" in losses,
        meta=({ONE_CALL: True} if answered else {})
        | ({START: began} if answered and began is not None else {})
        | ({"hosted_tools": hosted} if hosted else {}),
    )


def _are_items(value: Any) -> bool:
    """A list of items of which one is no chat message."""
    return (
        isinstance(value, list)
        and any(is_item(item) for item in value)
        and not any(isinstance(item, Mapping) and {"tool_calls", "tool_call_id"} & set(item) for item in value)
    )


def _parts(record: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The request and the response of a record, however they are wrapped."""
    request, response = _unwrapped(record.get("request") or record.get("body")), _unwrapped(record.get("response"))
    if request is None and "input" in record:
        request = record
    if response is None and ("output" in record or STREAMED in record):
        response = _unwrapped(record)
    return request or {}, response or {}


def _unwrapped(value: Any) -> Mapping[str, Any] | None:
    """The JSON of a request or response; of a streamed answer the final object."""
    body = body_of(value)
    events = events_of(body)
    if events is not None:
        body = _streamed(events)
    return body if isinstance(body, Mapping) else None


def _streamed(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The last response that a stream holds; of one that breaks off, with the items so far."""
    told = [event["response"] for event in events if isinstance(event.get("response"), Mapping)]
    items = {str(e.get("output_index")): dict(e["item"]) for e in events if isinstance(e.get("item"), Mapping)}
    done = {str(e.get("output_index")) for e in events if e.get("type") == "response.output_item.done"}
    for index, item in items.items():
        mine = [e for e in events if str(e.get("output_index")) == index and isinstance(e.get("delta"), str)]
        text = "".join(e["delta"] for e in mine if e.get("type") in _TEXT_DELTAS)
        if index not in done and item.get("type") == "message" and text:
            item["content"] = [{"type": "output_text", "text": text}]
        elif index not in done and item.get("type") == "function_call":
            item["arguments"] = "".join(e["delta"] for e in mine if e.get("type") == _ARGUMENTS_DELTA)
    if not told:
        return None
    return told[-1] if told[-1].get("output") or not items else {**told[-1], "output": list(items.values())}


FORMAT = Format(
    NAME,
    "OpenAI Responses: items of a request and its response, one JSON each",
    "trajectories",
    sniff,
    read,
)
