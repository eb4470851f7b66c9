"""Mooncake request log: arrival in ms, lengths in tokens, chained hashes of 512-token blocks. No text, no sessions.

Described in FAST25-release/README.md of kvcache-ai/Mooncake. A block's hash covers everything before it, and the last
block of an input may be partial. Times of the public conversation log fall on a grid of 3 s.
"""

from __future__ import annotations

from typing import Any

from ..reading import Format
from ..trajectory import Request
from .fields import has, hashes, named, row_of, seconds, tokens

NAME = "mooncake"
BLOCK_TOKENS = 512
# Bailian's block hashes mean something else; the others are AIPerf's and Dynamo's rows.
OTHERS = {"chat_id", "messages", "text_input", "payload", "delay", "wait_for"}


def sniff(record: Any) -> bool:
    """Whether the record has Mooncake's fields, and none of the logs that extend them."""
    return has(record, "timestamp", "input_length", "output_length") and OTHERS.isdisjoint(record)


def read(record: Any) -> Request:
    """One request, still without its id. Reject says which field is wrong."""
    row = row_of(record)
    blocks = hashes(row.get("hash_ids"), "hash_ids")
    return Request(
        id="",
        source=NAME,
        arrival_s=seconds(row, "timestamp", per_second=1000),
        input_tokens=tokens(row, "input_length"),
        output_tokens=tokens(row, "output_length"),
        session=named(row.get("session_id")),
        prefix_blocks=blocks,
        block_tokens=None if blocks is None else BLOCK_TOKENS,
    )


FORMAT = Format(
    NAME,
    "Mooncake request log: timestamp (ms), input_length, output_length, hash_ids, one JSON a line",
    "requests",
    sniff,
    read,
    verified=True,
)
