"""Agentic coding sessions of the Weka cache tester, also as SemiAnalysis publishes them: one JSON object a session.

Described in AIPerf's docs/tutorials/weka-trace.md. A request has t (s), in, out and hash_ids of blocks; a subagent's
requests are nested below a marker, with times from the marker on in raw files and from the session's beginning in
published ones: times before the marker's mean the former. Ids of scope `local` mean something else in every session and
are numbered apart. Sessions do not say when they began: all begin at 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..items import each
from ..reading import Bad, Format, Item, Record, Reject, Source
from ..trajectory import Request
from .fields import has, hashes, named, row_of, seconds, tokens, whole

NAME = "weka"
_LOCAL_IDS = 40  # bits of an id within its session
_DEEPEST = 20


def sniff(record: Any) -> bool:
    """Whether the record is a session with blocks and requests."""
    return has(record, "id", "block_size", "requests") and isinstance(record["requests"], list)


class _Sessions:
    """Sessions of one file, numbered so that their local block ids do not meet."""

    def __init__(self) -> None:
        self._count = 0

    def read(self, record: Any) -> list[Request]:
        row = row_of(record)
        name, size = named(row.get("id")), whole(row.get("block_size"))
        if name is None or not size:
            raise Reject("the session has no id or no block_size")
        self._count += 1
        apart = 0 if row.get("hash_id_scope") == "global" else self._count << _LOCAL_IDS
        made = list(_requests(row.get("requests"), name, size, apart, 0.0))
        if not made:
            raise Reject("the session has no requests")
        return sorted(made, key=lambda request: request.arrival_s)


def _requests(listed: Any, session: str, size: int, apart: int, zero: float, depth: int = 0) -> Iterator[Request]:
    if not isinstance(listed, list) or depth > _DEEPEST:
        raise Reject("requests is not a list of requests")
    turn = 0
    for n, entry in enumerate(map(row_of, listed)):
        start = zero + seconds(entry, "t")
        if entry.get("type") == "subagent":
            inside = f"{session}/{named(entry.get('agent_id')) or n}"
            nested = entry.get("requests")
            times = [seconds(row_of(each), "t") for each in nested] if isinstance(nested, list) else []
            begin = start if times and min(times) < seconds(entry, "t") else zero
            yield from _requests(nested, inside, size, apart, begin, depth + 1)
            continue
        yield _request(entry, session, turn, size, apart, start)
        turn += 1


def _request(entry: Mapping[str, Any], session: str, turn: int, size: int, apart: int, start: float) -> Request:
    blocks = hashes(entry.get("hash_ids"), "hash_ids")
    if blocks and apart and max(blocks) >= 1 << _LOCAL_IDS:
        raise Reject("hash_ids of scope local are larger than any number of blocks of a session")
    return Request(
        id="",
        source=NAME,
        arrival_s=start,
        input_tokens=tokens(entry, "in"),
        output_tokens=tokens(entry, "out"),
        session=session,
        turn=turn,
        prefix_blocks=None if blocks is None else tuple(apart + block for block in blocks),
        block_tokens=None if blocks is None else size,
        tool_wait_s=seconds(entry, "think_time") if turn and entry.get("think_time") is not None else None,
    )


def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
    """The requests of one file."""
    return each(_Sessions().read, records)


FORMAT = Format(
    NAME,
    "Weka and SemiAnalysis agent sessions: id, block_size, requests with t (s), in, out, hash_ids, one JSON a session",
    "requests",
    sniff,
    gather=gather,
)
