"""Claude Code sessions: JSON lines of `~/.claude/projects/…/SESSION.jsonl`, and the output of `--output-format
stream-json`.

No official description exists; this one follows the notes that traces.md cites and sessions seen in public. Lines form
a tree (`claude_code_tree`), several make one answer (`claude_code_talk`). The system prompt and the tools' schemas are
never recorded, nor what the program adds to messages. `compact_boundary` cuts the context: what follows it is a run of
its own that begins with the summary. Subagents are runs of their own, in the file or in `SESSION/subagents/`. A result
that was moved to `SESSION/tool-results/` stays as the model saw it: its beginning and the name of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..items import excerpt, passed_on, refused
from ..reading import Bad, Format, Item, Record, Reject, Source
from ..trajectory import Trajectory
from .chat import told_of, trajectory_of
from .claude_code_talk import chat_of, is_synthetic
from .claude_code_tree import Line, branches, kept_by

NAME = "claude-code"
_SILENT = (
    "summary",
    "file-history-snapshot",
    "queue-operation",
    "custom-title",
    "ai-title",
    "agent-name",
    "last-prompt",
)
_NEEDED = (
    "type",
    "subtype",
    "content",
    "timestamp",
    "sessionId",
    "session_id",
    "version",
    "isCompactSummary",
    "isSidechain",
    "agentId",
    "parent_tool_use_id",
    "compactMetadata",
)
_MOST_CUTS = 1000
_SIDE = "subagent"  # of lines that do not say which
_CONTINUED = "This session is being continued from a previous conversation"


def sniff(record: Any) -> bool:
    """Whether the record is a line of a session."""
    if not isinstance(record, Mapping) or not isinstance(record.get("type"), str):
        return False
    kind = record["type"]
    if kind in ("user", "assistant") and isinstance(record.get("message"), Mapping):
        return True
    session = "sessionId" in record or "session_id" in record
    return (session and ("uuid" in record or kind in _SILENT)) or kind in ("summary", "file-history-snapshot")


def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
    """The runs of a session: the main one cut at its compactions, then its subagents'."""
    yield from _session(records, None)
    stem = source.name.removesuffix(".gz").removesuffix(".jsonl")
    for name in source.names(f"{stem}/subagents/*.jsonl"):
        for item in _session(source.records(name), stem):
            yield item if item.value is not None else Item(1, None, f"{name}: {item.reason}", item.raw)
    for name in source.names(f"{stem}/tool-results/*"):
        source.text(name)  # counted as read with the session


def _session(records: Iterator[Record | Bad], parent: str | None) -> Iterator[Item]:
    threads: dict[str | None, list[Line]] = {}
    seen: set[str] = set()
    first: Record | None = None
    cuts = 0
    for found in records:
        if isinstance(found, Bad):
            yield passed_on(found)
            continue
        line = _line(found)
        if isinstance(line, str):
            yield refused(found, line)
            continue
        first = first or found
        if line is not None and line.uuid not in seen:  # a resumed session repeats lines
            seen.add(line.uuid)
            cuts += line.compacts
            if line.compacts and cuts > _MOST_CUTS:
                yield refused(found, f"the session was compacted {_MOST_CUTS} times before: it is not cut here")
                continue
            threads.setdefault(_thread(line), []).append(line)
    if first is not None and not any(line.kind == "assistant" for lines in threads.values() for line in lines):
        yield refused(first, "no answer of the model in this session")
        return
    if _SIDE in threads and len(threads) > 2:  # some lines do not name their subagent: the tree tells them apart
        side = [line for agent in list(threads) if agent is not None for line in threads.pop(agent)]
        threads[_SIDE] = sorted(side, key=lambda line: line.place)
    for agent, lines in threads.items():
        for branch, dropped in branches(lines):
            yield from _runs(branch, dropped, agent, parent)


def _line(found: Record) -> Line | str | None:
    """A line of the tree, why it is broken, or None for one that is no part of it."""
    value = found.value
    if not isinstance(value, Mapping):
        return "not an object"
    kind = value.get("type")
    if not isinstance(kind, str):
        return "a line without a type"
    uuid, parent, message = value.get("uuid"), value.get("parentUuid"), value.get("message")
    if kind in ("user", "assistant"):
        if not isinstance(message, Mapping):
            return f"the message of this {kind} line is not an object"
        if not isinstance(message.get("content"), (str, list)) or not message["content"]:
            return f"the message of this {kind} line has no content"
        hidden = value.get("isVisibleInTranscriptOnly") is True and value.get("isCompactSummary") is not True
        kind = "hidden" if hidden or (kind == "assistant" and is_synthetic(message)) else kind
    elif kind == "system" and value.get("subtype") == "local_command" and isinstance(value.get("content"), str):
        kind = "told"
    elif not isinstance(uuid, str):
        return None
    if not parent:
        parent = value.get("logicalParentUuid")
    # Results are written twice: as the model saw them, and as the program has them (`toolUseResult`), often far longer.
    speaks = kind in ("user", "assistant", "told", "hidden")
    return Line(
        found.place,
        uuid if isinstance(uuid, str) and uuid else f"line {found.place}",
        parent if isinstance(parent, str) else None,
        kind,
        {key: value[key] for key in _NEEDED if key in value and (speaks or key != "content")},
        message if speaks and isinstance(message, Mapping) else {},
        found.repaired,
    )


def _thread(line: Line) -> str | None:
    """The subagent that a line belongs to; None for the session itself."""
    if line.value.get("isSidechain") is True:
        agent = line.value.get("agentId")
        return agent if isinstance(agent, str) and agent else _SIDE
    caller = line.value.get("parent_tool_use_id")
    return caller if isinstance(caller, str) and caller else None


def _runs(branch: Sequence[Line], dropped: int, agent: str | None, parent: str | None) -> Iterator[Item]:
    """A branch cut where the context was compacted."""
    spoken: list[Line] = []
    places: dict[str | None, int] = {}
    lines: list[Line] = []
    kept: list[Line] = []
    part = 0
    for line in [*branch, None]:
        if line is not None and not line.compacts:
            if line.speaks or line.kind == "hidden":
                lines.append(line)
            continue
        if any(each.kind == "assistant" for each in lines):
            try:
                yield Item(lines[0].place, _run(lines, kept, part, 0 if part else dropped, agent, parent))
            except Reject as error:
                yield Item(lines[0].place, None, str(error), excerpt(lines[0].value))
        for each in lines:
            if each.speaks:
                places[each.uuid] = len(spoken)
                spoken.append(each)
        kept = kept_by(line).of(spoken, places) if line else []
        lines, part = [], part + 1


def _run(
    lines: Sequence[Line], kept: Sequence[Line], part: int, dropped: int, agent: str | None, parent: str | None
) -> Trajectory:
    losses = {"no_system_prompt", "no_tool_schemas", "prompt_not_exact"}
    if any(line.kind == "hidden" and line.value.get("type") == "assistant" for line in lines):
        losses.add("synthetic_answers")
    lines = [line for line in lines if line.speaks]
    if any(line.repaired for line in lines):
        losses.add("invalid_characters")
    if dropped:
        losses.add(f"branches_dropped:{dropped}")
    continued = bool(part) or _is_summary(lines[0])
    if continued:
        losses |= {"already_compacted", "missing_calls"}
    summary = chat_of([line for line in lines[:1] if continued], losses)
    before = [*summary, *chat_of(kept, losses)] if kept else []
    messages = [*before, *chat_of(lines[1:] if kept else lines, losses)]
    answered = {str(message.get("tool_call_id")) for message in messages if message["role"] == "tool"}
    calls = [str(call["id"]) for message in messages for call in message.get("tool_calls") or ()]
    if any(id not in answered for id in calls[:-1]):
        losses.add("interrupted")
    value = lines[0].value
    session = value.get("sessionId") or value.get("session_id")
    return trajectory_of(
        NAME,
        f"{NAME}-subagent" if agent else NAME,
        messages,
        losses=losses,
        told=told_of(messages),
        shown=len(before),
        model=_model(lines),
        already_compacted=continued,
        meta={
            key: said
            for key, said in (
                ("session", session),
                ("version", value.get("version")),
                ("part", part),
                ("agent", agent),
                ("parent", (parent or session) if agent else None),
            )
            if isinstance(said, (str, int)) and said
        },
    )


def _is_summary(line: Line) -> bool:
    content = line.message.get("content")
    text = content if isinstance(content, str) else next((str(b.get("text")) for b in line.blocks()), "")
    return line.value.get("isCompactSummary") is True or text.startswith(_CONTINUED)


def _model(lines: Sequence[Line]) -> str | None:
    models = (line.message.get("model") for line in lines if line.kind == "assistant")
    return next((model for model in models if isinstance(model, str) and model), None)


FORMAT = Format(
    NAME,
    "Claude Code sessions: JSON lines of user and assistant messages, with subagents beside",
    "trajectories",
    sniff,
    gather=gather,
)
