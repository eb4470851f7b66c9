"""Words that come from traces or from errors, to be shown in the middle of a page's own: no links, no pictures."""

from __future__ import annotations

import re

_SIGNS = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$:&])")
_CODE = re.compile(r"((?<!`)`[^`]+`(?!`))")


def plain(text: object) -> str:
    """Text in which no sign means anything to Markdown, on one line; only what stands in backticks stays code.

    Messages name commands in backticks, and in code no sign has a meaning.
    """
    parts = _CODE.split(" ".join(str(text).split()))
    return "".join(part if at % 2 else _SIGNS.sub(r"\\\1", part) for at, part in enumerate(parts))
