"""OpenAI chat: one conversation a line, a fine-tuning row, a bare message list, or a request with its response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..reading import Format, Reject
from ..trajectory import Trajectory, Usage
from .chat import has_blocks, is_messages, tools_of, trajectory_of

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
}


def sniff(record: Any) -> bool:
    """Whether the record holds a chat message list where this format has it."""
    if isinstance(record, list):
        return is_messages(record) and not has_blocks(record)
    if not isinstance(record, Mapping) or not _OTHERS.isdisjoint(record):
        return False
    messages = _request(record).get("messages")
    return is_messages(messages) and not has_blocks(messages)


def read(record: Any) -> Trajectory:
    """One conversation. A response's message is its last turn, and its usage that turn's. Reject if there is none."""
    if isinstance(record, list):
        return trajectory_of(NAME, "chat", record)
    if not isinstance(record, Mapping):
        raise Reject("not an object")
    request, response = _request(record), _response(record)
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Reject("no messages")
    answer = _answer(response)
    if response is not None and answer is None:
        raise Reject("the response holds no message")
    family = record.get("family")
    trajectory = trajectory_of(
        NAME,
        family if isinstance(family, str) and family else "chat",
        [*messages, answer] if answer is not None else messages,
        tools=tools_of(request.get("tools") or request.get("functions") or record.get("tools")),
        meta={} if answer is None else {"one_call": True},
        model=next((m["model"] for m in (response, request, record) if m and isinstance(m.get("model"), str)), None),
    )
    usage = usage_of(response.get("usage")) if response else None
    if usage is None or answer is None:
        return trajectory
    return replace(trajectory, turns=(*trajectory.turns[:-1], replace(trajectory.turns[-1], usage=usage)))


def _request(record: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = record.get("request") or record.get("body")
    if isinstance(inner, Mapping) and isinstance(inner.get("body"), Mapping):
        inner = inner["body"]
    return inner if isinstance(inner, Mapping) and "messages" in inner else record


def _response(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    inner = record.get("response")
    if isinstance(inner, Mapping) and isinstance(inner.get("body"), Mapping):
        inner = inner["body"]
    if isinstance(inner, Mapping):
        return inner
    return record if "choices" in record else None


def _answer(response: Mapping[str, Any] | None) -> Any:
    if response is None:
        return None
    choices = response.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        message = choices[0].get("message")
    else:
        message = response.get("message", response if "role" in response else None)
    return {"role": "assistant", **message} if isinstance(message, Mapping) else None


def usage_of(raw: Any) -> Usage | None:
    """Usage in disjoint buckets: cached tokens are inside `prompt_tokens` here. None if there are no counts."""
    if not isinstance(raw, Mapping):
        return None
    details = raw.get("prompt_tokens_details")
    given = _count(raw.get("prompt_tokens"))
    cached = _count(details.get("cached_tokens")) if isinstance(details, Mapping) else None
    output = _count(raw.get("completion_tokens"))
    if given is None and output is None:
        return None
    fresh = None if given is None else max(0, given - (cached or 0))
    return Usage(fresh_input_tokens=fresh, cache_read_tokens=cached, output_tokens=output)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40 else None


FORMAT = Format(
    NAME,
    "OpenAI chat messages: a conversation, a fine-tuning row or a request with its response, one JSON each",
    "trajectories",
    sniff,
    read,
    verified=False,
)
