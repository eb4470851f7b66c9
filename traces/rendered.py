"""What of a trajectory a rendered text holds: characters that do not come out, call text that comes out otherwise."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from .template import Abilities
from .trajectory import Message, ToolCall

_NO_THOUGHT = re.compile(r"<think>\s*</think>")


def missing(text: str, messages: Sequence[Message], able: Abilities) -> Counter[str]:
    """Losses of one rendered piece, by name; of content and thinking in characters, of calls in their number.

    A text that a template prints in JSON's spelling is there; what differs is counted as `content_escaped`.
    """
    lost: Counter[str] = Counter()
    at = 0
    for message in messages:
        at = _content(text, message.content, at, lost)
        if message.reasoning:
            lost["reasoning_dropped"] += len(message.reasoning) if message.reasoning.strip() not in text else 0
            lost["empty_thinking_added"] += _NO_THOUGHT.search(text) is not None
        for call in message.tool_calls:
            changed = call.arguments not in text
            lost["arguments_reserialised"] += changed
            if able.calls == "object" and call.name not in text:
                lost["call_dropped"] += len(call.name) + len(call.arguments)
            lost["call_ids_printed"] += able.ids and call.id in text
    return lost


def _content(text: str, content: str, at: int, lost: Counter[str]) -> int:
    """Where the next content may begin, after counting what of this one is missing."""
    bare = content.strip()
    found = text.find(content, at)
    if found >= 0:
        return found + len(content)
    if bare and (found := text.find(bare, at)) >= 0:
        lost["content_trimmed"] += len(content) - len(bare)
        return found + len(bare)
    for words, ascii_only in ((content, False), (content, True), (bare, False), (bare, True)):
        spelled = json.dumps(words, ensure_ascii=ascii_only)[1:-1]
        if bare and (found := text.find(spelled, at)) >= 0:
            lost["content_escaped"] += len(spelled) - len(words)
            lost["content_trimmed"] += len(content) - len(words)
            return found + len(spelled)
    for line in content.splitlines(keepends=True):
        found = text.find(line.strip(), at)
        if found >= 0:
            at = found + len(line.strip())
        else:
            lost["content_dropped"] += len(line)
    return at


def out_of_order(calls: Sequence[ToolCall], results: Sequence[Message]) -> bool:
    """Whether results stand in another order than the calls they name: without ids a reader attributes them wrongly."""
    made = [call.id for call in calls]
    named = [result.tool_call_id for result in results if result.tool_call_id in made]
    return named != [id for id in made if id in named]


def undescribed(text: str, tools: Sequence[Mapping[str, Any]]) -> int:
    """Characters of names and descriptions of tools that a rendered prefix holds in none of JSON's spellings."""
    lost = 0
    for tool in tools:
        function = tool.get("function", tool)
        for part in _texts(function):
            spellings = (part, json.dumps(part, ensure_ascii=False)[1:-1], json.dumps(part)[1:-1])
            lost += 0 if any(spelled in text for spelled in spellings) else len(part)
    return lost


def _texts(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        kept = [value[key] for key in ("name", "description") if isinstance(value.get(key), str) and value[key].strip()]
        return [text.strip() for text in kept] + [t for v in value.values() for t in _texts(v)]
    return [t for item in value for t in _texts(item)] if isinstance(value, (list, tuple)) else []


def call_drift(text: str, call: ToolCall) -> int | None:
    """Characters of a call's arguments that a rendered text spells otherwise, 0 if none.

    None if the template prints them in a form of its own, so that no spelling of the same JSON is found.
    """
    if call.arguments in text:
        return 0
    if call.parsed is None:
        return None
    for ensure in (False, True):
        for separators in ((", ", ": "), (",", ":")):
            spelled = json.dumps(call.parsed, ensure_ascii=ensure, separators=separators)
            if spelled in text:
                return _different(call.arguments, spelled)
    return None


def _different(one: str, other: str) -> int:
    """Characters outside the common beginnings and ends, summed over places: JSON differs in many small ones."""
    if len(one) + len(other) > 20_000:
        return abs(len(one) - len(other)) or 1
    same = sum(block.size for block in SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks())
    return max(len(one), len(other)) - same
