"""The content of one message as text: a string, null, parts of an API, or data that a framework put in their place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

# Parts that are no text, by their type; untyped ones (Gemini, Bedrock) by their only key.
_MEDIA = re.compile(r"image|audio|video|file|document|blob|uri|media|screenshot|container|reference|redacted")
_MEDIA_KEYS = ("inlineData", "inline_data", "fileData", "file_data", "image", "audio", "video", "document")
# What stands beside the text of an untyped part; anything else makes it a row of data.
_BESIDE = {"text", "refusal", "cache_control", "cachePoint", "thoughtSignature", "annotations", "citations"}
_THINKING = ("thinking", "redacted_thinking", "reasoning")


def text_of(content: Any, losses: set[str]) -> str:
    """Content as text: a string, null, or parts. Parts that are no text are left out and noted in `losses`.

    Other values (what a tool returned, put there as it was) are kept as JSON, which is noted as well.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        if set(content) <= {"content", "role"} and content:
            return text_of(content.get("content"), losses)
        content = [content] if _is_part(content) else content
    if not isinstance(content, list) or (content and not any(map(_is_part, content))):
        losses.add("content_not_text")
        return json.dumps(content, ensure_ascii=False)
    return "\n".join(text for part in content if (text := _text_of_part(part, losses)) is not None)


def thinking_of(blocks: Any, losses: set[str]) -> str | None:
    """The thinking among parts: Anthropic's, Mistral's and OpenRouter's; what is encrypted is noted in `losses`."""
    texts: list[str] = []
    for block in blocks if isinstance(blocks, list) else ():
        if not isinstance(block, Mapping) or not str(block.get("type")).startswith(_THINKING):
            continue
        found = next((block[key] for key in ("thinking", "text", "summary") if block.get(key)), None)
        pieces = [
            p.get("text") if isinstance(p, Mapping) else p for p in (found if isinstance(found, list) else [found])
        ]
        said = [piece for piece in pieces if isinstance(piece, str)]
        texts += said
        if not said and block.get("data"):
            losses.add("reasoning_encrypted")
    return "\n".join(texts) or None


def _is_part(value: Any) -> bool:
    """Whether an element of a list is a part of a message, rather than data."""
    if isinstance(value, str):
        return True
    if not isinstance(value, Mapping):
        return False
    kind = value.get("type")
    if isinstance(kind, str):
        return _plain(value) is not None or bool(_MEDIA.search(kind)) or kind.startswith(_THINKING)
    untyped = set(value) <= _BESIDE and _plain(value) is not None
    return untyped or (len(value) == 1 and next(iter(value)) in _MEDIA_KEYS)


def _text_of_part(part: Any, losses: set[str]) -> str | None:
    """The text of one element; None if it has none."""
    if isinstance(part, str):
        return part
    if not _is_part(part):
        losses.add("content_not_text")
        return json.dumps(part, ensure_ascii=False)
    text = _plain(part)
    if text is None and not str(part.get("type")).startswith(_THINKING):
        losses.add("non_text_content")
    return text


def _plain(part: Mapping[str, Any]) -> str | None:
    text = part.get("text", part.get("refusal"))
    if isinstance(text, Mapping):  # OpenAI's Assistants API: the text beside its annotations
        text = text.get("value")
    kind = str(part.get("type"))
    return text if isinstance(text, str) and not kind.startswith(_THINKING) else None
