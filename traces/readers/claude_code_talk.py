"""What the lines of a Claude Code session say, as chat messages: the lines of one answer are put together.

An answer is written as one line per content block, each with the same `message.id` and a usage of its own: repeated,
or growing until the last one. It is counted once: the output of the last line, and the largest inputs, since the first
lines may hold a placeholder of 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..trajectory import Usage
from .blocks import split, usage_of
from .claude_code_tree import Line
from .clock import when

_INTERRUPTED = "[Request interrupted by user"
_MOVED = "<persisted-output>"


def chat_of(lines: Sequence[Line], losses: set[str]) -> list[dict[str, Any]]:
    """The messages of lines in order."""
    out: list[dict[str, Any]] = []
    for answer in _grouped(lines):
        first = answer[0]
        at = {"at": when(answer[-1].value.get("timestamp"))}
        if first.kind == "told":
            out.append({"role": "user", "content": first.value.get("content"), **at})
            continue
        content = first.message.get("content") if len(answer) == 1 else _blocks(answer)
        made = split(first.kind, content, losses, first.place)
        if first.kind == "user":
            text = str(content)
            losses |= {"interrupted"} if _INTERRUPTED in text else set()
            losses |= {"results_moved"} if _MOVED in text else set()
        elif (usage := _usage([line.message.get("usage") for line in answer], losses)) is not None:
            made[-1]["usage"] = usage
        out += [message | at for message in made]
    return out


def _grouped(lines: Sequence[Line]) -> list[list[Line]]:
    """Lines of one answer together, at the place of the first."""
    groups: list[list[Line]] = []
    answers: dict[str, list[Line]] = {}
    for line in lines:
        id = line.message.get("id")
        known = answers.get(id) if line.kind == "assistant" and isinstance(id, str) and id else None
        if known is not None:
            known.append(line)
            continue
        groups.append([line])
        if line.kind == "assistant" and isinstance(id, str) and id:
            answers[id] = groups[-1]
    return groups


def _blocks(answer: Sequence[Line]) -> list[Any]:
    """The blocks of all lines of an answer; one that a later line repeats is taken once."""
    blocks: dict[str, Any] = {}
    for line in answer:
        content = line.message.get("content")
        for block in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            blocks.setdefault(json.dumps(block, sort_keys=True), block)
    return list(blocks.values())


def _usage(raw: Sequence[Any], losses: set[str]) -> Usage | None:
    told = [usage for usage in map(usage_of, raw) if usage is not None]
    if not told:
        return None
    if len(told) > 1:
        losses.add("duplicate_usage")
    names = ("fresh_input_tokens", "cache_read_tokens", "cache_write_tokens")
    fresh, read, written = (
        max((getattr(u, n) for u in told if getattr(u, n) is not None), default=None) for n in names
    )
    if fresh == 1 and not read and not written:  # a placeholder: no prompt is one token long
        fresh = None
    output = next((u.output_tokens for u in reversed(told) if u.output_tokens is not None), None)
    return Usage(fresh, read, written, output)


def is_synthetic(message: Mapping[str, Any]) -> bool:
    """Whether an answer was put in the model's mouth (an API error, an answer that was not asked for)."""
    return message.get("model") == "<synthetic>"
