"""Request log of semantic-router's fleet-sim: timestamp in s, prompt_tokens, generated_tokens, and a model's name.

Described in vllm-project/semantic-router. The model's column is `model` in some of its own files, `selected_model` in
others; nothing of it is kept, since a request has no model of its own.
"""

from __future__ import annotations

from typing import Any

from ..reading import Format
from ..trajectory import Request
from .fields import has, row_of, seconds, tokens

NAME = "fleet-sim"


def sniff(record: Any) -> bool:
    """Whether the row has fleet-sim's fields."""
    return has(record, "timestamp", "prompt_tokens", "generated_tokens")


def read(record: Any) -> Request:
    """One request."""
    row = row_of(record)
    lengths = tokens(row, "prompt_tokens"), tokens(row, "generated_tokens")
    return Request("", NAME, seconds(row, "timestamp"), *lengths)


FORMAT = Format(
    NAME,
    "fleet-sim request log: timestamp (s), prompt_tokens, generated_tokens, CSV or one JSON a line",
    "requests",
    sniff,
    read,
    verified=True,
)
