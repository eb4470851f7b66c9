"""`samples`: the bundled samples write their calls as plain text, a line of its own: `Search: …` or a shell command."""

from __future__ import annotations

import re

from .action import Action, without_thinking

_SEARCH = re.compile(r"Search:\s*(.+)")
_COMMAND = re.compile(r"(cat)\s+(.+)")


def parse(text: str) -> tuple[Action, ...]:
    """The calls of a text, line by line; what else is said is no call."""
    found: list[Action] = []
    for line in without_thinking(text).splitlines():
        said = line.strip()
        if search := _SEARCH.fullmatch(said):
            found.append(Action("search", search[1], {"query": search[1]}))
        elif command := _COMMAND.fullmatch(said):
            found.append(Action(command[1], command[2], {"path": command[2]}))
    return tuple(found)
