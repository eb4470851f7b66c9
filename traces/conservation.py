"""Whether what was said is still there: characters of content in a record against those of the trajectory made of it.

Characters that are no blanks are counted: joining parts adds line breaks and templates trim ends, neither is a loss.
The counts of a record are taken without the readers' code, so that a part that a reader forgets is missed here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .checks import Finding
from .losses import LOSSES, code_of
from .trajectory import Message, Trajectory

_TEXT_KEYS = ("text", "refusal", "input_text", "output_text", "value")
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
# Losses that explain missing text; the others say what never was in the record.
_EXPLAIN = (
    "non_text_content",
    "content_not_text",
    "trailing_user_dropped",
    "copied_context_dropped",
    "branches_dropped",
    "user_side_calls",
    "reasoning_encrypted",
    "truncated_source",
    "missing_calls",
    "already_compacted",
    "invalid_characters",
    "unknown_items",
)
_SHORTEST = 40


@dataclass(frozen=True, slots=True)
class Unkept:
    """Text of a record that is in no trajectory: where it stands, numbers left out, and how long it is."""

    path: str
    characters: int


def solid(text: str) -> int:
    """Characters that are no blanks."""
    return len("".join(text.split()))


def spoken(messages: Iterable[Message]) -> Counter[str]:
    """Characters of canonical messages by role; thinking and arguments of calls apart."""
    out: Counter[str] = Counter()
    for message in messages:
        out[message.role] += solid(message.content)
        out["reasoning"] += solid(message.reasoning or "")
        out["arguments"] += sum(solid(call.arguments) for call in message.tool_calls)
    return +out


def said(messages: Sequence[Any]) -> Counter[str]:
    """The same of chat messages as a record holds them: content as text or as parts, thinking, calls."""
    out: Counter[str] = Counter()
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        role = "tool" if message.get("role") == "function" else str(message.get("role"))
        for part in _parts(message.get("content")):
            out["reasoning" if part[0] else role] += solid(part[1])
        out["reasoning"] += sum(solid(message[k]) for k in _REASONING_KEYS if isinstance(message.get(k), str))
        called = message.get("tool_calls")
        for call in called if isinstance(called, list) else ():
            function = call.get("function", call) if isinstance(call, Mapping) else {}
            arguments = function.get("arguments") if isinstance(function, Mapping) else None
            text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
            out["arguments"] += solid(text)
    return +out


def _parts(content: Any) -> Iterator[tuple[bool, str]]:
    """Text parts, and whether each is thinking."""
    if isinstance(content, str):
        before, opened, rest = content.partition("<think>")
        thought, closed, after = rest.partition("</think>")
        if opened and closed and not before.strip():
            yield True, thought
            yield False, after
        else:
            yield False, content
    elif isinstance(content, list):
        for part in content:
            yield from _parts(part)
    elif isinstance(content, Mapping):
        for key in _REASONING_KEYS:
            if isinstance(content.get(key), str):
                yield True, content[key]
        found = next((content[key] for key in _TEXT_KEYS if isinstance(content.get(key), str)), content.get("content"))
        if isinstance(found, (str, list, Mapping)):
            yield from _parts(found)


def conservation(given: Mapping[str, int], trajectory: Trajectory) -> list[Finding]:
    """What differs between the characters of a record (`said`) and of the trajectory made of it, by role, and why.

    The cause is what the trajectory's own losses say, or `unexplained`: that is a fault of a reader.
    """
    kept = spoken(trajectory.messages())
    causes = [loss for loss in trajectory.losses if code_of(loss) in _EXPLAIN]
    found = []
    for role in sorted(set(given) | set(kept)):
        difference = kept[role] - given.get(role, 0)
        if difference < 0:
            why = "; ".join(LOSSES[code_of(loss)] for loss in causes) or "unexplained"
            text = f"{-difference:,} of {given[role]:,} characters are not in the trajectory: {why}"
            found.append(Finding("content_lost", role, text))
        elif difference > 0:
            text = f"{difference:,} characters more than the {given.get(role, 0):,} of the record"
            found.append(Finding("content_added", role, text))
    return found


def unkept(record: Any, trajectories: Sequence[Trajectory], shortest: int = _SHORTEST) -> list[Unkept]:
    """Texts of a record that none of its trajectories holds, the longest first, equal places together.

    Texts below `shortest` characters are not looked for: ids, names and times. JSON inside a text is looked into.
    """
    held = "\n".join("".join(text.split()) for text in _held(trajectories))
    seen: set[str] = set()
    out: Counter[str] = Counter()
    for path, text in _leaves(record, ""):
        bare = "".join(text.split())
        if len(bare) >= shortest and bare not in seen:
            seen.add(bare)
            if bare not in held:
                out[path] += len(text)
    return [Unkept(path, count) for path, count in out.most_common()]


def characters_of(record: Any, shortest: int = _SHORTEST) -> int:
    """Characters of the different texts that `unkept` looks for."""
    texts = {"".join(text.split()): len(text) for _, text in _leaves(record, "")}
    return sum(length for bare, length in texts.items() if len(bare) >= shortest)


def _held(trajectories: Sequence[Trajectory]) -> Iterator[str]:
    for trajectory in trajectories:
        for message in trajectory.messages():
            yield message.content
            yield message.reasoning or ""
            for call in message.tool_calls:
                yield call.arguments
                # Texts inside arguments, without the escapes that JSON puts before quotes and line breaks.
                yield from (text for _, text in _leaves(call.parsed, ""))
            yield from (text for _, text in _leaves(_json(message.content), ""))
        values = [trajectory.tools, trajectory.meta, trajectory.label and trajectory.label.value]
        values += [call.parsed for call in (trajectory.label.gold_actions if trajectory.label else ())]
        yield from (text for value in values for _, text in _leaves(value, ""))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Texts with their places; JSON inside a text is taken apart."""
    todo: list[tuple[str, Any]] = [(path, value)]
    while todo:
        place, item = todo.pop()
        if isinstance(item, str):
            inner = _json(item)
            if inner is None:
                yield place, item
            else:
                todo.append((place, inner))
        elif isinstance(item, Mapping):
            todo += [(f"{place}.{key}" if place else str(key), found) for key, found in item.items()]
        elif isinstance(item, (list, tuple)):
            todo += [(f"{place}[]", found) for found in item]


def _json(text: str) -> Any:
    """The list or object that a text holds, None for any other text."""
    if text[:1] not in ("{", "[") and text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
