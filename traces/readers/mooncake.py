"""Mooncake request log: arrival in ms, lengths in tokens, chained hashes of 512-token blocks. No text, no sessions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..reading import Format, Reject
from ..trajectory import Request

NAME = "mooncake"
BLOCK_TOKENS = 512
_MAX_HASH = 2**64 - 1


def sniff(record: Any) -> bool:
    """Whether the record has Mooncake's fields; chat_id would make it a log with other block hashes."""
    return (
        isinstance(record, Mapping)
        and {"timestamp", "input_length", "output_length"} <= set(record)
        and "chat_id" not in record
        and "messages" not in record
    )


def read(record: Any) -> Request:
    """One request, still without its id. Reject says which field is wrong."""
    if not isinstance(record, Mapping):
        raise Reject("not an object")
    hashes = record.get("hash_ids")
    if hashes is not None and not (isinstance(hashes, list) and all(_whole(h) and h <= _MAX_HASH for h in hashes)):
        raise Reject("hash_ids is not a list of whole numbers from 0 to 2^64-1")
    session = record.get("session_id")
    return Request(
        id="",
        source=NAME,
        arrival_s=_number(record, "timestamp") / 1000,
        input_tokens=_tokens(record, "input_length"),
        output_tokens=_tokens(record, "output_length"),
        session=None if session is None else str(session),
        prefix_blocks=None if hashes is None else tuple(hashes),
        block_tokens=None if hashes is None else BLOCK_TOKENS,
    )


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _tokens(record: Mapping[str, Any], key: str) -> int:
    if not _whole(record.get(key)) or record[key] > 2**40:
        raise Reject(f"{key} is {record.get(key)!r}, not a number of tokens")
    return record[key]


def _number(record: Mapping[str, Any], key: str) -> float:
    value = record.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
        raise Reject(f"{key} is {value!r}, not a time in ms")
    return value


FORMAT = Format(
    NAME,
    "Mooncake request log: timestamp (ms), input_length, output_length, hash_ids, one JSON a line",
    "requests",
    sniff,
    read,
    verified=True,
)
