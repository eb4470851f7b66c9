"""OpenAI chat: one conversation a line, a fine-tuning row, a bare message list, or a request with its response.

Described in OpenAI's API reference (chat/object, chat/streaming). Requests and responses are read as logs wrap them:
in `request` and `response`, in an HTTP `body`, merged into one object, or as the chunks of a streamed answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import values
from ..chain import ONE_CALL, START
from ..reading import Format, Reject
from ..trajectory import Trajectory, Usage
from .chat import Told, has_blocks, has_calls, is_messages, listed, tools_of, trajectory_of
from .clock import between
from .counts import count, finite
from .http import ALONE, body_of, events_of

NAME = "openai-chat"
# Keys that mark other formats with a message list; each has its own reader.
_OTHERS = {
    "traj",  # tau-bench
    "termination_reason",  # tau2-bench
    "trial_idx",  # WideSearch
    "resolved",  # SWE-rebench
    "model_patch",
    "output_length",  # AIPerf
    "message_mode",
    "delay",
    "trajectory_format",  # mini-swe-agent
    "context_window",  # OpenHands' logs of calls
    "latency_sec",
    "raw_messages",
    "sessionId",  # Gemini CLI, Claude Code
    "anthropic_version",
}

_EPISODE = {"agent", "trial_name", "episode"}
_LISTS = ("messages", "conversation", "conversations")
_CUT = "cut off"  # of a stream that breaks off before the model ended


def sniff(record: Any) -> bool:
    """Whether the record holds a chat message list where this format has it."""
    if isinstance(record, list):
        return _is_chat(record)
    if not isinstance(record, Mapping) or not _OTHERS.isdisjoint(record):
        return False
    request, response = _request(record), body_of(record.get("response"))
    events = events_of(response)
    if events is not None and not any("choices" in event for event in events):
        return False  # a stream of another API
    if isinstance(response, Mapping) and response.get("type") == "message":
        return False  # Anthropic's
    messages = _messages(request)
    if messages is None:
        return _is_response(response or record)
    if "system" in request and is_messages(messages) and not has_calls(messages):
        return False  # Anthropic's
    if "messages" not in request and not _EPISODE.isdisjoint(request):
        return False  # Harbor's
    return _OTHERS.isdisjoint(request) and _is_chat(messages)


def _is_response(body: Any) -> bool:
    """Whether this is a response of this API, whole or in chunks."""
    events = events_of(body)
    first = body if events is None else next(iter(events), None)
    return isinstance(first, Mapping) and first.get("object") in ("chat.completion", "chat.completion.chunk")


def _is_chat(messages: Any) -> bool:
    typed = isinstance(messages, list) and any(isinstance(m, Mapping) and m.get("type") == "message" for m in messages)
    return not typed and is_messages(messages) and (has_calls(messages) or not has_blocks(messages))


def read(record: Any) -> Trajectory:
    """One conversation. A response's message is its last turn, and its usage that turn's. Reject if there is none."""
    if isinstance(record, list):
        return trajectory_of(NAME, "chat", record)
    if not isinstance(record, Mapping):
        raise Reject("not an object")
    request, response = _request(record), _response(record)
    messages = _messages(request)
    if not isinstance(messages, list) or not messages:
        raise Reject("no messages" if response is None else ALONE)
    if isinstance(request.get("system"), str) and request["system"]:
        messages = [{"role": "system", "content": request["system"]}, *messages]
    losses: set[str] = set()
    answer = _answer(response, losses)
    if response is not None and answer is None:
        raise Reject(_why_none(response))
    if response is None and record.get("response"):
        losses.add("no_last_reply")  # what is there is no answer of this API
    if response is not None and response.get(_CUT):
        losses.add("interrupted")
    family = record.get("family")
    began, ended = finite(record.get("startTime")), finite(record.get("endTime"))  # LiteLLM's, in seconds since 1970
    asked = sum(isinstance(m, Mapping) and m.get("role") == "assistant" for m in messages)
    told = Told(usage_of(response.get("usage")) if response else None, began, between(began, ended))
    return trajectory_of(
        NAME,
        family if isinstance(family, str) and family else "chat",
        [*messages, answer] if answer is not None else messages,
        losses=losses,
        told=() if answer is None else [*[None] * asked, told],
        tools=tools_of(request.get("tools") or request.get("functions") or record.get("tools")),
        meta={} if answer is None else {ONE_CALL: True} | ({} if began is None else {START: began}),
        model=next((m["model"] for m in (response, request, record) if m and isinstance(m.get("model"), str)), None),
    )


def _request(record: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = body_of(record.get("request") or record.get("body"))
    return inner if isinstance(inner, Mapping) and any(key in inner for key in _LISTS) else record


def _messages(request: Mapping[str, Any]) -> Any:
    """The message list, also as the JSON of one, as tables hold it; data sets call it a conversation."""
    found = next((request[key] for key in _LISTS if key in request), None)
    if isinstance(found, str) and found.lstrip().startswith("["):
        try:
            found = values.load(found).value
        except ValueError:
            return found
    return found


def _why_none(response: Mapping[str, Any]) -> str:
    error = response.get("error")
    if not error:
        return "the response holds no message"
    return f"the response is an error: {error.get('message') if isinstance(error, Mapping) else error}"


def _response(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    given = record.get("response")
    inner = body_of(given)
    if inner is None and isinstance(given, str) and not given.lstrip().startswith(("{", "[", "data:", "event:")):
        return {"message": {"content": given}}  # the answer itself
    if isinstance(inner, list):
        inner = {"sse": inner}
    if isinstance(inner, Mapping):
        events = events_of(inner)
        return inner if events is None else _from_chunks(events)
    events = events_of(record)
    return _from_chunks(events) if events is not None else record if "choices" in record else None


def _answer(response: Mapping[str, Any] | None, losses: set[str]) -> Any:
    if response is None:
        return None
    choices = response.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        message = choices[0].get("message")
        if len(choices) > 1:
            losses.add(f"branches_dropped:{len(choices) - 1}")
    else:
        message = response.get("message", response if "role" in response else None)
    return {"role": "assistant", **message} if isinstance(message, Mapping) else None


def _from_chunks(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The response that was streamed in these chunks: texts are joined, calls by their index."""
    said: dict[str, list[str]] = {}
    calls: dict[str, list[dict[str, list[str]]]] = {}
    response: dict[str, Any] = {}
    ended = False
    for chunk in chunks:
        response |= {key: chunk[key] for key in ("model", "usage") if chunk.get(key)}
        for choice in listed(chunk.get("choices"))[:1]:
            delta = choice.get("delta") if isinstance(choice, Mapping) else None
            if not isinstance(delta, Mapping):
                continue
            for key in ("content", "reasoning_content", "reasoning", "refusal"):
                if isinstance(delta.get(key), str):
                    said.setdefault(key, []).append(delta[key])
            for piece in listed(delta.get("tool_calls")):
                if isinstance(piece, Mapping):
                    _add_piece(calls.setdefault(str(piece.get("index")), []), piece)
            if isinstance(delta.get("function_call"), Mapping):
                _add_piece(calls.setdefault("function_call", []), {"function": delta["function_call"]})
            ended = ended or bool(choice.get("finish_reason"))
    if said or calls:
        texts = {key: "".join(pieces) for key, pieces in said.items()}
        made = [_call_of(pieces) for begun in calls.values() for pieces in begun]
        response["message"] = {**texts, "role": "assistant", "tool_calls": made}
    return response | ({} if ended else {_CUT: True})


def _add_piece(begun: list[dict[str, list[str]]], piece: Mapping[str, Any]) -> None:
    """Add a piece to the last call under its index. Some servers give several calls the same one: another id begins
    another call.
    """
    function = piece.get("function", piece.get("custom"))
    named = {**(function if isinstance(function, Mapping) else {}), "id": piece.get("id")}
    named.setdefault("arguments", named.get("input"))
    if not begun or (named["id"] and begun[-1].get("id") and named["id"] not in begun[-1]["id"]):
        begun.append({})
    for key in ("id", "name", "arguments"):
        if isinstance(named.get(key), str):
            begun[-1].setdefault(key, []).append(named[key])


def _call_of(pieces: Mapping[str, list[str]]) -> dict[str, Any]:
    # Some servers repeat the id and the name in every chunk; only arguments come in pieces.
    id, name = (next(iter(pieces.get(key, [])), None) for key in ("id", "name"))
    return {"id": id, "function": {"name": name, "arguments": "".join(pieces.get("arguments", []))}}


def usage_of(raw: Any) -> Usage | None:
    """Usage in disjoint buckets: cached tokens are inside `prompt_tokens` here. None if there are no counts.

    LiteLLM adds Anthropic's counts under their own names, and counts written tokens inside the prompt as well.
    """
    if not isinstance(raw, Mapping):
        return None
    details = raw.get("prompt_tokens_details")
    given = count(raw.get("prompt_tokens"))
    cached = count(details.get("cached_tokens")) if isinstance(details, Mapping) else None
    for name in ("cache_read_input_tokens", "prompt_cache_hit_tokens"):  # LiteLLM, DeepSeek
        cached = count(raw.get(name)) if cached is None else cached
    written = count(raw.get("cache_creation_input_tokens"))
    output = count(raw.get("completion_tokens"))
    if given is None and output is None:
        return None
    fresh = None if given is None else max(0, given - (cached or 0) - (written or 0))
    return Usage(fresh, cached, written, output)


FORMAT = Format(
    NAME,
    "OpenAI chat messages: a conversation, a fine-tuning row or a request with its response, one JSON each",
    "trajectories",
    sniff,
    read,
    verified=True,
)
