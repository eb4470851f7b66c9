"""Tokens as HTML: the text as it was fed, on a ground that says how many layer-heads kept it.

The text comes from recorded traces and may hold anything: it is escaped, and characters that are not seen or that turn
the direction of writing are spelled out.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from . import theme

Row = Mapping[str, Any]
GOALS = {"system": "system prompt", "request": "first request", "answer": "spells a right answer"}
_BOX = (
    "font-family:monospace;font-size:0.82rem;line-height:1.65;white-space:pre-wrap;overflow-wrap:anywhere;"
    "max-height:32rem;overflow-y:auto"
)
_GOAL = f"border-bottom:2px solid {theme.VERMILION}"
_GONE = "text-decoration:line-through;opacity:0.65"
_SEEN = "\n\t"


def tokens_html(tokens: Sequence[Row]) -> str:
    """One box with the tokens (position, kind, text, share, goal); neighbours that look the same become one span."""
    parts = [f'<div style="{_BOX}">']
    for kind, members in groupby(tokens, key=lambda token: token["kind"]):
        parts.append(f'<div style="font-size:0.7rem;opacity:0.75">[{html.escape(str(kind))}]</div><div>')
        parts += _spans(members)
        parts.append("</div>")
    return "".join([*parts, "</div>"])


def _spans(tokens: Iterator[Row]) -> Iterator[str]:
    for (share, goal), alike in groupby(tokens, key=lambda token: (token["share"], token["goal"])):
        members = list(alike)
        first, last = members[0]["position"], members[-1]["position"]
        where = f"position {first}" if first == last else f"positions {first} to {last}"
        about = f"{where}: kept by {share:.0%} of layer-heads" + (f"; {GOALS[goal]}" if goal else "")
        text = visible("".join(str(token["text"]) for token in members))
        yield f'<span style="{_style(share, goal)}" title="{html.escape(about)}">{html.escape(text)}</span>'


def _style(share: float, goal: str | None) -> str:
    styles = [f"background-color:{theme.rgba(*theme.ground_of(share))}"] if share > 0 else [_GONE]
    return ";".join([*styles, *([_GOAL] if goal else [])])


def visible(text: str) -> str:
    """Text in which what cannot be seen is spelled out; line ends and tabs stay."""
    return "".join(c if c.isprintable() or c in _SEEN else c.encode("unicode_escape").decode() for c in text)


def key_html() -> str:
    """What the grounds and the lines mean."""
    steps = (0.0, 0.25, 0.5, 0.75, 1.0)
    shown = "".join(f'<span style="{_style(step, None)};padding:0 0.5em">{step:.0%}</span> ' for step in steps)
    goal = f'<span style="{_GOAL}">goal token</span>'
    return (
        f'<div style="font-size:0.85rem">Share of layer-heads that kept a token: {shown}· {goal}: the system prompt, '
        "the first request, what spells a right answer of a probe about this turn</div>"
    )
