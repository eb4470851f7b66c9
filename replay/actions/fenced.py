"""`fenced`: a shell command as text, in the last fenced block or between `<command>` tags, as runs of SWE-agent do.

The tool is the command's first word. A block inside another one is part of it: a block that names its language opens,
bare fences close (SWE-agent's `ThoughtActionParser`; `XMLThoughtActionParser` for the tags).
"""

from __future__ import annotations

import re

from .action import Action, without_thinking

OPENINGS = re.compile(r"^```|<command>", re.MULTILINE)
_FENCE = re.compile(r"^```(\S*)[^\S\n]*$", re.MULTILINE)
_TAGGED = re.compile(r"<command>\s*(.*?)\s*</command>", re.DOTALL)


def parse(text: str) -> tuple[Action, ...]:
    """The command of a text; () without one."""
    said = without_thinking(text)
    tagged = _TAGGED.findall(said)
    command = (tagged[-1] if tagged else _last_block(said)).strip()
    return (Action(command.split()[0], command, {"command": command}),) if command else ()


def _last_block(text: str) -> str:
    """What stands in the last block that is closed, "" if there is none."""
    found, opened = "", list[int]()
    for fence in _FENCE.finditer(text):
        if opened and not fence[1]:
            start = opened.pop()
            if not opened:
                found = text[start : fence.start()]
        else:
            opened.append(fence.end())
    return found
