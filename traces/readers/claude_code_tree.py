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
    """One line that belongs to the tree. `place` is its number in the file; `parent` its parent's uuid, if any;
    `message` is empty where the line has none.
    """

    place: int
    uuid: str
    parent: str | None
    kind: str
    value: Mapping[str, Any]
    message: Mapping[str, Any]
    repaired: bool = False

    @property
    def speaks(self) -> bool:
        """Whether the model said it or was told it."""
        return self.kind in ("user", "assistant", "told")

    @property
    def compacts(self) -> bool:
        """Whether the context was summarised or cleared here."""
        return self.kind == "system" and str(self.value.get("subtype")).endswith("compact_boundary")

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
    places: dict[str | None, int] = {}
    kept, before = Kept(), None
    for line in lines:
        parent = line.parent
        if line.compacts:
            kept, parent = kept_by(line), parent or before
        elif kept.holds(parent, places):
            parent = before
        if line.speaks:
            places[line.uuid] = len(places)
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
    return _in_order([line for line in tree if line.uuid in taken]), dropped


def _in_order(branch: Sequence[Line]) -> list[Line]:
    """A branch with what was said before a compaction before it: a kept message may be written only after it."""
    early: dict[str, list[Line]] = {}
    cuts: dict[str, str] = {}
    seen: set[str] = set()
    for line in branch:
        seen.add(line.uuid)
        if line.compacts:
            cuts |= dict.fromkeys(kept_by(line).named() - seen, line.uuid)
        elif line.uuid in cuts:
            early.setdefault(cuts[line.uuid], []).append(line)
    moved = {line.uuid for lines in early.values() for line in lines}
    return [each for line in branch if line.uuid not in moved for each in (*early.get(line.uuid, []), line)]


@dataclass(frozen=True, slots=True)
class Kept:
    """The lines that stayed in the context after a compaction: by name, or from a head to a tail."""

    names: frozenset[str] = frozenset()
    head: str | None = None
    tail: str | None = None

    def named(self) -> set[str]:
        """The lines that are named."""
        return {*self.names, *(uuid for uuid in (self.head, self.tail) if uuid is not None)}

    def holds(self, uuid: str | None, places: Mapping[str | None, int]) -> bool:
        """Whether a line stayed; `places` numbers the lines that spoke."""
        first, place, last = places.get(self.head), places.get(uuid), places.get(self.tail)
        within = first is not None and place is not None and last is not None and first <= place <= last
        return uuid in self.names or within

    def of(self, spoken: Sequence[Line], places: Mapping[str | None, int]) -> list[Line]:
        """The lines that stayed of those that spoke before the compaction; `places` numbers these."""
        named = sorted(places[uuid] for uuid in self.names if uuid in places)
        first, last = places.get(self.head), places.get(self.tail)
        if named or first is None or last is None:
            return [spoken[place] for place in named]
        return list(spoken[first : last + 1])


def kept_by(boundary: Line) -> Kept:
    """What a compaction's line says of the messages that it kept."""
    made = boundary.value.get("compactMetadata")
    made = made if isinstance(made, Mapping) else {}
    listing, span = made.get("preservedMessages"), made.get("preservedSegment")
    if isinstance(listing, Mapping):
        return Kept(frozenset(map(str, listed(listing.get("uuids")))))
    if isinstance(span, Mapping):
        return Kept(head=str(span.get("headUuid")), tail=str(span.get("tailUuid")))
    return Kept()
