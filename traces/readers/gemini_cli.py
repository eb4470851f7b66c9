"""Gemini CLI sessions: one JSON object with `messages`, or since 2026 JSON lines that grow and rewind it.

Described in the sources (packages/core/src/services/chatRecordingTypes.ts, chatRecordingService.ts). A line is a
message (again with the same id: it was completed), a change of the header (`$set`) or a rewind (`$rewindTo`, which
takes away that message and all after it). The system prompt and the tools' schemas are never recorded; the first
versions leave out tool calls too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..items import excerpt, passed_on, refused
from ..reading import Bad, Format, Item, Record, Reject, Source
from ..trajectory import Trajectory, Usage
from .chat import listed, told_of, trajectory_of
from .clock import when
from .counts import count

NAME = "gemini-cli"
_KINDS = ("user", "gemini", "info", "error", "warning")


def sniff(record: Any) -> bool:
    """Whether the record is a session, or a line of one."""
    if not isinstance(record, Mapping):
        return False
    header = "sessionId" in record and "projectHash" in record
    return header or _is_message(record) or "$rewindTo" in record or isinstance(record.get("$set"), Mapping)


def _is_message(record: Any) -> bool:
    return (
        isinstance(record, Mapping) and {"id", "timestamp", "content"} <= set(record) and record.get("type") in _KINDS
    )


def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
    """The sessions of a file: each whole record, or the one that its lines make."""
    session = _Session()
    for found in records:
        if isinstance(found, Bad):
            yield passed_on(found)
            continue
        whole = isinstance(found.value, Mapping) and isinstance(found.value.get("messages"), list)
        if whole:
            yield from session.end()
            session = _Session()
        try:
            session.take(found)
        except Reject as error:
            yield refused(found, str(error))
            session = _Session() if whole else session
    yield from session.end()


class _Session:
    """A session as its lines make it: messages by id, in the order in which they began."""

    def __init__(self) -> None:
        self._header: dict[str, Any] = {}
        self._messages: dict[str, Mapping[str, Any]] = {}
        self._begun: Record | None = None
        self._losses = {"no_system_prompt", "no_tool_schemas"}

    def take(self, found: Record) -> None:
        """One more line. Reject if it is none."""
        value = found.value
        if not sniff(value) and not (isinstance(value, Mapping) and _is_message(value)):
            raise Reject("neither a Gemini CLI session nor a line of one")
        self._begun = self._begun or found
        if found.repaired:
            self._losses.add("invalid_characters")
        if "$rewindTo" in value:
            self._rewind(str(value["$rewindTo"]))
        elif _is_message(value):
            self._messages[str(value["id"])] = value
        else:
            changes = value["$set"] if isinstance(value.get("$set"), Mapping) else value
            self._header |= {key: item for key, item in changes.items() if key != "messages"}
            if listed(changes.get("messages")):
                self._messages = {}
                for place, message in enumerate(changes["messages"]):
                    if not isinstance(message, Mapping):
                        raise Reject(f"message {place} is not an object")
                    self._messages[str(message.get("id", place))] = message

    def _rewind(self, id: str) -> None:
        if self._messages:
            self._losses.add("branches_dropped")
        while self._messages and self._messages.popitem()[0] != id:
            pass

    def end(self) -> Iterator[Item]:
        """The session as a run."""
        if self._begun is None:
            return
        try:
            yield Item(self._begun.place, self._trajectory())
        except Reject as error:
            yield Item(self._begun.place, None, str(error), excerpt(self._begun.value))

    def _trajectory(self) -> Trajectory:
        losses = set(self._losses)
        if not any(listed(message.get("toolCalls")) for message in self._messages.values()):
            losses.add("calls_untold")
        messages: list[dict[str, Any]] = []
        for message in self._messages.values():
            messages += _chat(message, losses)
        models = (message.get("model") for message in self._messages.values())
        subagent = self._header.get("kind") == "subagent"
        session = self._header.get("sessionId")
        return trajectory_of(
            NAME,
            f"{NAME}-subagent" if subagent else NAME,
            messages,
            losses=losses,
            told=told_of(messages),
            model=next((model for model in models if isinstance(model, str) and model), None),
            meta={"session": session} if isinstance(session, str) else {},
        )


def _chat(message: Mapping[str, Any], losses: set[str]) -> list[dict[str, Any]]:
    """The chat messages of one: an answer is followed by what its calls gave."""
    at = when(message.get("timestamp"))
    content, called, given, thought = _split(message.get("content"))
    if message.get("type") == "user":
        results = [_result(response, at) for response in given]
        return [*results, {"role": "user", "content": content, "at": at}] if content or not results else results
    if message.get("type") != "gemini":  # notes of the program to the user
        return []
    recorded = [call for call in listed(message.get("toolCalls")) if isinstance(call, Mapping)]
    thoughts = [each for each in listed(message.get("thoughts")) if isinstance(each, Mapping)]
    said = {
        "role": "assistant",
        "content": content,
        "reasoning_content": "\n".join([*(_thought(each) for each in thoughts), *thought]),
        "tool_calls": [
            {"id": call.get("id"), "function": {"name": call.get("name"), "arguments": call.get("args")}}
            for call in recorded or called
        ],
        "usage": _usage(message.get("tokens")),
        "at": at,
    }
    results = [
        _result(call, when(call.get("timestamp")), _opened(call["result"]))
        for call in recorded
        if call.get("result") is not None
    ]
    if any(call.get("status") == "cancelled" for call in recorded):
        losses.add("interrupted")
    return [said, *results]


def _result(of: Mapping[str, Any], at: float | None, content: Any = None) -> dict[str, Any]:
    given = _opened([{"functionResponse": of}]) if content is None else content
    return {"role": "tool", "tool_call_id": of.get("id"), "name": of.get("name"), "content": given, "at": at}


def _split(content: Any) -> tuple[Any, list[Any], list[Any], list[str]]:
    """What the parts of a message say, call, answer and think; later releases keep the API's own parts."""
    if not isinstance(content, list):
        return _opened(content), [], [], []
    words: list[Any] = []
    calls: list[Any] = []
    answers: list[Any] = []
    thoughts: list[str] = []
    for part in content:
        found = part if isinstance(part, Mapping) else {}
        if isinstance(found.get("functionCall"), Mapping):
            calls.append(found["functionCall"])
        elif isinstance(found.get("functionResponse"), Mapping):
            answers.append(found["functionResponse"])
        elif found.get("thought") is True and isinstance(found.get("text"), str):
            thoughts.append(found["text"])
        else:
            words.append(part)
    return words, calls, answers, thoughts


def _thought(thought: Mapping[str, Any]) -> str:
    """A summary of thinking as the model gave it: a subject in bold, then a description."""
    subject, description = thought.get("subject"), thought.get("description")
    return "\n".join(
        part for part in (f"**{subject}**" if subject else "", description) if isinstance(part, str) and part
    )


def _opened(content: Any) -> Any:
    """Content with the results of functions as text: `{"output": …}` or `{"error": …}` for most tools."""
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, list):
        return content
    parts: list[Any] = []
    for part in content:
        answered = part.get("functionResponse") if isinstance(part, Mapping) else None
        response = answered.get("response") if isinstance(answered, Mapping) else None
        if isinstance(response, Mapping):
            only = next(iter(response.values())) if len(response) == 1 else None
            parts.append(only if isinstance(only, str) else json.dumps(response, ensure_ascii=False))
        else:
            parts.append(part)
    return parts


def _usage(tokens: Any) -> Usage | None:
    """Gemini's usageMetadata: the cached tokens are inside the prompt's; those of tool results and of thinking beside
    the prompt's and the candidates'.
    """
    if not isinstance(tokens, Mapping):
        return None
    given, cached, output = (count(tokens.get(name)) for name in ("input", "cached", "output"))
    if given is None and output is None:
        return None
    fresh = None if given is None else max(0, given - (cached or 0)) + (count(tokens.get("tool")) or 0)
    return Usage(fresh, cached, None, None if output is None else output + (count(tokens.get("thoughts")) or 0))


FORMAT = Format(
    NAME,
    "Gemini CLI sessions: one JSON object with messages, or JSON lines that make one",
    "trajectories",
    sniff,
    gather=gather,
    verified=True,
)
