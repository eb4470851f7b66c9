"""`samples`: the bundled samples write their calls as plain text, a line of its own: `Search: …` or a shell command.

Every family is read: `Search: …`, `Ask: …`, `Check: …`, `cat PATH` and `grep -rn WORD PATH`.
"""

from __future__ import annotations

import re

from .action import Action, without_thinking

_SAID = re.compile(r"(Search|Ask|Check):\s*(.+)")
_COMMAND = re.compile(r"(cat)\s+(.+)")
_GREP = re.compile(r"(grep)\s+(-rn\s+(\S+)\s+(\S+))")


def parse(text: str) -> tuple[Action, ...]:
    """The calls of a text, line by line; what else is said is no call."""
    found: list[Action] = []
    for line in without_thinking(text).splitlines():
        said = line.strip()
        if request := _SAID.fullmatch(said):
            found.append(Action(request[1].lower(), request[2], {"query": request[2]}))
        elif command := _COMMAND.fullmatch(said):
            found.append(Action(command[1], command[2], {"path": command[2]}))
        elif grep := _GREP.fullmatch(said):
            found.append(Action(grep[1], grep[2], {"pattern": grep[3], "path": grep[4]}))
    return tuple(found)
