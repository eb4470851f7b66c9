"""Mooncake request log: arrival in ms, lengths in tokens, chained hashes of 512-token blocks. No text, no sessions.

Described in FAST25-release/README.md of kvcache-ai/Mooncake. A block's hash covers everything before it, and the last
block of an input may be partial. Times of the public conversation log fall on a grid of 3 s. AIPerf's rows of this kind
may belong to a session: then a later one may have, instead of a time, the delay in ms after the one before it, and is
given the earliest arrival it can have.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..items import each
from ..reading import Bad, Format, Item, Record, Reject, Source
from ..trajectory import Request
from .fields import has, hashes, named, row_of, seconds, tokens

NAME = "mooncake"
BLOCK_TOKENS = 512
_MOST_SESSIONS = 1 << 20
# Bailian's block hashes mean something else; the others are AIPerf's rows with text and Dynamo's graphs.
OTHERS = {"chat_id", "messages", "text_input", "payload", "wait_for"}


def sniff(record: Any) -> bool:
    """Whether the record has Mooncake's fields, and none of the logs that extend them."""
    timed = has(record, "timestamp") or has(record, "delay", "session_id")
    return timed and has(record, "input_length", "output_length") and OTHERS.isdisjoint(record)


def read(record: Any) -> Request:
    """One request with its time, still without its id. Reject says which field is wrong."""
    row = row_of(record)
    return _request(row, seconds(row, "timestamp", per_second=1000))


def _request(row: Mapping[str, Any], arrival: float) -> Request:
    blocks = hashes(row.get("hash_ids"), "hash_ids")
    return Request(
        id="",
        source=NAME,
        arrival_s=arrival,
        input_tokens=tokens(row, "input_length"),
        output_tokens=tokens(row, "output_length"),
        session=named(row.get("session_id")),
        prefix_blocks=blocks,
        block_tokens=None if blocks is None else BLOCK_TOKENS,
    )


class _Rows:
    """Rows of one file; of the last million sessions the arrival and the turn of their last row are remembered."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def read(self, record: Any) -> Request:
        row = row_of(record)
        session = named(row.get("session_id"))
        last = self._last.get(session) if session is not None else None
        wait = seconds(row, "delay", per_second=1000) if row.get("delay") is not None else None
        if row.get("timestamp") is not None:
            request = read(row)
        elif wait is not None and last is not None:
            request = _request(row, last[0] + wait)
        else:
            raise Reject("neither a timestamp, nor a delay after an earlier request of its session")
        if session is None:
            return request
        turn = 0 if last is None else last[1] + 1
        self._last[session] = (request.arrival_s, turn)
        if len(self._last) > _MOST_SESSIONS:
            self._last.popitem(last=False)
        return replace(request, turn=turn, tool_wait_s=wait if turn else None)


def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
    """The requests of one file."""
    return each(_Rows().read, records)


FORMAT = Format(
    NAME,
    "Mooncake request log: timestamp (ms), input_length, output_length, hash_ids, one JSON a line",
    "requests",
    sniff,
    gather=gather,
    verified=True,
)
