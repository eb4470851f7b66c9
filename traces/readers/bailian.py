"""Bailian request log: arrival in s, lengths, content hashes of 16-token blocks, and the chat that a chat continues.

Described in alibaba-edu/qwen-bailian-usagetraces-anon and AIPerf's docs/tutorials/bailian-trace.md. Every row is the
full context. `parent_chat_id` is -1 at a session's first turn. A hash covers its block alone, not what is before it:
equal blocks need not be servable by a prefix cache, so hit rates are walked from the start.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from ..items import each
from ..reading import Bad, Format, Item, Record, Source
from ..trajectory import Request
from .fields import has, hashes, named, row_of, seconds, tokens, whole

NAME = "bailian"
BLOCK_TOKENS = 16
_MOST_CHATS = 1 << 20


def sniff(record: Any) -> bool:
    """Whether the row has Bailian's fields."""
    return has(record, "chat_id", "parent_chat_id", "timestamp", "input_length", "output_length")


class _Rows:
    """Rows of one file. A chat belongs to the session of the chat it continues; the last million are remembered."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, str] = OrderedDict()

    def read(self, record: Any) -> Request:
        row = row_of(record)
        blocks = hashes(row.get("hash_ids"), "hash_ids")
        return Request(
            id="",
            source=NAME,
            arrival_s=seconds(row, "timestamp"),
            input_tokens=tokens(row, "input_length"),
            output_tokens=tokens(row, "output_length"),
            session=self._session(row),
            turn=whole(row.get("turn")),
            prefix_blocks=blocks,
            block_tokens=None if blocks is None else BLOCK_TOKENS,
        )

    def _session(self, row: Mapping[str, Any]) -> str | None:
        chat, parent = named(row.get("chat_id")), named(row.get("parent_chat_id"))
        if chat is None:
            return None
        session = chat if parent is None or parent == "-1" else self._sessions.get(parent, parent)
        self._sessions[chat] = session
        if len(self._sessions) > _MOST_CHATS:
            self._sessions.popitem(last=False)
        return session


def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
    """The requests of one file."""
    return each(_Rows().read, records)


FORMAT = Format(
    NAME,
    "Bailian request log: chat_id, parent_chat_id, timestamp (s), lengths, hash_ids, one JSON a line",
    "requests",
    sniff,
    gather=gather,
)
