"""The tree that the lines of a Claude Code session form, and the branches to read of it.

A line names its parent. A rewind starts a new branch; parallel calls write their results as side branches; a compaction
begins anew and names its logical parent. The branch that ends last is the run; the others are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .chat import listed


@dataclass(slots=True)
class Line:
    """One line that belongs to the tree. `place` is its number in the file; `parent` its parent's uuid, if any."""

    place: int
    uuid: str
    parent: str | None
    kind: str
    value: Mapping[str, Any]
    repaired: bool = False

    @property
    def speaks(self) -> bool:
        """Whether the model said it or was told it."""
        return self.kind in ("user", "assistant", "told")

    @property
    def compacts(self) -> bool:
        """Whether the context was summarised or cleared here."""
        return self.kind == "system" and str(self.value.get("subtype")).endswith("compact_boundary")

    @property
    def message(self) -> Mapping[str, Any]:
        """Its message; empty where the line has none."""
        found = self.value.get("message")
        return found if isinstance(found, Mapping) else {}

    def blocks(self) -> list[Mapping[str, Any]]:
        """The content blocks of its message that are objects."""
        return [block for block in listed(self.message.get("content")) if isinstance(block, Mapping)]


def branches(lines: Sequence[Line]) -> list[tuple[list[Line], int]]:
    """The lines of each tree's last branch in order, and how many other branches were left out.

    Where no line names another one of them, they are in the order of the file.
    """
    known = {line.uuid for line in lines}
    if not any(line.parent in known for line in lines):
        return [(list(lines), 0)] if lines else []
    parents = _parents(lines)
    trees: dict[str, list[Line]] = {}
    roots: dict[str, str] = {}
    for line in lines:
        parent = parents[line.uuid]
        roots[line.uuid] = line.uuid if parent is None else roots[parent]
        trees.setdefault(roots[line.uuid], []).append(line)
    return [_last(tree, parents) for tree in trees.values()]


def _parents(lines: Sequence[Line]) -> dict[str, str | None]:
    """Each line's parent among the lines before it. One that is not there (a broken line) is taken to be the one
    before; a parent that comes later (no writer does that) as well, so that there is no circle. What follows a
    compaction follows it even where it names a message that was kept.
    """
    parents: dict[str, str | None] = {}
    kept: set[str | None] = set()
    before: str | None = None
    for line in lines:
        parent = line.parent
        if line.compacts:
            kept = {each.uuid for each in preserved(line, lines)}
            parent = parent or before
        elif parent in kept:
            parent = before
        parents[line.uuid] = parent if parent is None or parent in parents else before
        before = line.uuid
    return parents


def _last(tree: Sequence[Line], parents: Mapping[str, str | None]) -> tuple[list[Line], int]:
    speaking = [line for line in tree if line.speaks]
    taken: set[str] = set()
    at: str | None = speaking[-1].uuid if speaking else None
    while at is not None:
        taken.add(at)
        at = parents[at]
    # Pieces of an answer and results of its calls are written as side branches when calls run in parallel.
    answers = {str(line.message.get("id")) for line in speaking if line.uuid in taken and line.kind == "assistant"}
    for line in speaking:
        if line.kind == "assistant" and line.message.get("id") and str(line.message["id"]) in answers:
            taken.add(line.uuid)
    calls = {
        str(block.get("id"))
        for line in speaking
        if line.uuid in taken and line.kind == "assistant"
        for block in line.blocks()
        if block.get("type") == "tool_use"
    }
    for line in speaking:
        results = [block for block in line.blocks() if block.get("type") == "tool_result"]
        if line.kind == "user" and any(str(block.get("tool_use_id")) in calls for block in results):
            taken.add(line.uuid)
    left = [line for line in speaking if line.uuid not in taken]
    dropped = sum(1 for line in left if parents[line.uuid] is None or parents[line.uuid] in taken)
    return [line for line in tree if line.uuid in taken], dropped


def preserved(boundary: Line, lines: Sequence[Line]) -> list[Line]:
    """The lines before a compaction that stayed in the context after it: by name, or from a head to a tail."""
    made = boundary.value.get("compactMetadata")
    made = made if isinstance(made, Mapping) else {}
    listing, span = made.get("preservedMessages"), made.get("preservedSegment")
    before = [line for line in lines if line.place < boundary.place and line.speaks]
    if isinstance(listing, Mapping):
        named = {str(uuid) for uuid in listed(listing.get("uuids"))}
        return [line for line in before if line.uuid in named]
    if isinstance(span, Mapping):
        places = {line.uuid: n for n, line in enumerate(before)}
        head, tail = places.get(str(span.get("headUuid"))), places.get(str(span.get("tailUuid")))
        return before[head : tail + 1] if head is not None and tail is not None else []
    return []
