"""Words that come from traces, to be shown in the middle of a page's own: no markup, no links, no pictures."""

from __future__ import annotations

import re

_SIGNS = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$:&])")


def plain(text: object) -> str:
    """Text in which no sign means anything to Markdown, on one line."""
    return _SIGNS.sub(r"\\\1", " ".join(str(text).split()))
