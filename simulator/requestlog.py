"""Sessions from a request log: rows without text, chained by session id or by prefix hashes.

The first input of a chain is P (or `prefix_tokens` of it, the rest being history that is there when the session
begins); growth of the input beyond the last input and output is tool, output is assistant.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UserError
from ..replay.policies.base import SegmentSize
from ..traces.trajectory import Request
from .positions import NOMINAL_TPOT_S
from .session import SessionSpec
from .workload import segment

LEAST_SHARED_BLOCKS = 2  # a single equal block is the common system prompt, not a session


def chains(requests: Sequence[Request]) -> list[list[Request]]:
    """Requests of each session in order: by id, else one continues the latest whose full blocks it begins with."""
    ordered = sorted(requests, key=lambda r: (r.arrival_s, r.turn or 0))
    by_id: dict[str, list[Request]] = {}
    ends: dict[tuple[int, int], list[Request]] = {}  # (blocks, rolling hash of them) → the chain that ends there
    out: list[list[Request]] = []
    for request in ordered:
        if request.session is not None:
            if request.session not in by_id:
                out.append(by_id.setdefault(request.session, []))
            by_id[request.session].append(request)
            continue
        marks = _marks(request)
        chain = next(
            (found for mark in reversed(marks[LEAST_SHARED_BLOCKS - 1 :]) if (found := ends.pop(mark, None))), None
        )
        if chain is None:
            chain = []
            out.append(chain)
        chain.append(request)
        if len(marks) >= LEAST_SHARED_BLOCKS:
            ends[marks[-1]] = chain
    return out


def _marks(request: Request) -> list[tuple[int, int]]:
    """(count, rolling hash) after each full block: the last block of an input is partial unless it divides evenly."""
    if not request.prefix_blocks or not request.block_tokens:
        return []
    full = min(len(request.prefix_blocks), request.input_tokens // request.block_tokens)
    rolling, marks = 0, []
    for count, block in enumerate(request.prefix_blocks[:full], start=1):
        rolling = hash((rolling, block))
        marks.append((count, rolling))
    return marks


def sessions(requests: Sequence[Request], prefix_tokens: int | None = None) -> tuple[list[SessionSpec], list[str]]:
    """(sessions, what was assumed). UserError when there is no usable row."""
    usable = [r for r in requests if r.input_tokens > 0 and r.output_tokens > 0]
    if not usable:
        raise UserError("request log: no row with input and output tokens")
    specs: list[SessionSpec] = []
    shrunk = guessed = 0
    zero = min(r.arrival_s for r in usable)
    for chain in chains(usable):
        spec, less, waits = _session(chain, prefix_tokens, zero)
        specs.append(spec)
        shrunk += less
        guessed += waits
    single = sum(len(chain.waits) == 1 for chain in specs)
    notes = [
        f"{len(usable):,} requests make {len(specs):,} sessions, {single:,} of a single turn, on which no policy saves",
        "growth of the input is tool output, the output is the assistant's"
        + ("" if prefix_tokens is None else f"; P is the first {prefix_tokens:,} tokens of each session"),
    ]
    if len(usable) < len(requests):
        notes.append(f"{len(requests) - len(usable):,} rows without input or output tokens left out")
    if guessed:
        notes.append(f"tool waits of {guessed:,} turns: arrival gap less {NOMINAL_TPOT_S * 1e3:g} ms per output token")
    if shrunk:
        notes.append(f"{shrunk:,} turns whose input grew by less than the last output: tool output taken as 1 token")
    return specs, notes


def _session(chain: list[Request], prefix_tokens: int | None, zero: float) -> tuple[SessionSpec, int, int]:
    first = chain[0]
    history = 0 if prefix_tokens is None else max(0, first.input_tokens - prefix_tokens)
    parts: list[SegmentSize] = [segment("prefix", first.input_tokens - history)]
    waits: list[float] = []
    if history > 1:
        parts += [segment("assistant", 1), segment("tool", history - 1)]
        waits.append(0.0)
    shrunk = guessed = 0
    for i, request in enumerate(chain):
        parts.append(segment("assistant", request.output_tokens))
        if i + 1 == len(chain):
            waits.append(0.0)
            break
        later = chain[i + 1]
        growth = later.input_tokens - request.input_tokens - request.output_tokens
        shrunk += growth < 1
        parts.append(segment("tool", max(1, growth)))
        if later.tool_wait_s is None:
            guessed += 1
            spent = request.output_tokens * NOMINAL_TPOT_S
            waits.append(max(0.0, later.arrival_s - request.arrival_s - spent))
        else:
            waits.append(later.tool_wait_s)
    start = first.arrival_s - zero
    return SessionSpec(tuple(parts), tuple(waits), start_s=start, begin=int(history > 1)), shrunk, guessed
