"""Sessions from a request log: rows without text, chained by session id or by prefix hashes.

The first input of a chain is P (or `prefix_tokens` of it, the rest being history that is there when the session
begins); growth of the input beyond the last input and output is tool, output is assistant. What several sessions begin
with, by the hashes of their first inputs, they share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

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


def _marks(request: Request, tokens: int | None = None) -> list[tuple[int, int]]:
    """(count, rolling hash) after each full block of the first `tokens`, else of the input.

    The last block of an input is partial unless it divides evenly. Walked from the start, hashes of a block alone and
    of everything before it mean the same; blocks of different sizes never do.
    """
    size = request.block_tokens
    if not request.prefix_blocks or not size:
        return []
    full = min(len(request.prefix_blocks), (request.input_tokens if tokens is None else tokens) // size)
    rolling, marks = size, []
    for count, block in enumerate(request.prefix_blocks[:full], start=1):
        rolling = hash((rolling, block))
        marks.append((count, rolling))
    return marks


def common_prefixes(firsts: Sequence[Request], prefix_tokens: int | None = None) -> list[tuple[int, int]]:
    """(shared tokens, group) of each session, by its first request; (0, 0) where it shares with none.

    The longest run of leading blocks that other sessions begin with too makes a group; sessions that are left over go
    with others that are at the next shorter run. So a session shares with one group only, although the beginning of
    that run may be common to others: less than a tree of prefixes would share, never more. One token of an input is
    always left to be computed.
    """
    marks = []
    for request in firsts:
        most = request.input_tokens - 1 if prefix_tokens is None else min(prefix_tokens, request.input_tokens - 1)
        marks.append(_marks(request, most))
    seen = Counter(mark for own in marks for mark in own)
    passing: dict[tuple[int, int], list[int]] = {}
    for index, own in enumerate(marks):
        for mark in own:
            if seen[mark] > 1:
                passing.setdefault(mark, []).append(index)
    found, groups = [(0, 0)] * len(firsts), 0
    for mark, sessions_here in sorted(passing.items(), key=lambda item: -item[0][0]):
        alone = [index for index in sessions_here if not found[index][0]]
        if len(alone) > 1:
            groups += 1
            for index in alone:
                found[index] = mark[0] * (firsts[index].block_tokens or 0), groups
    return found


def sessions(requests: Sequence[Request], prefix_tokens: int | None = None) -> tuple[list[SessionSpec], list[str]]:
    """(sessions, what was assumed). UserError when there is no usable row."""
    usable = [r for r in requests if r.input_tokens > 0 and r.output_tokens > 0]
    if not usable:
        raise UserError("request log: no row with input and output tokens")
    specs: list[SessionSpec] = []
    shrunk = guessed = 0
    zero = min(r.arrival_s for r in usable)
    linked = chains(usable)
    shares = common_prefixes([chain[0] for chain in linked], prefix_tokens)
    for chain, (shared, group) in zip(linked, shares, strict=True):
        spec, less, waits = _session(chain, prefix_tokens, zero)
        specs.append(replace(spec, shared=shared, group=group))
        shrunk += less
        guessed += waits
    single = sum(len(chain.waits) == 1 for chain in specs)
    notes = [
        f"{len(usable):,} requests make {len(specs):,} sessions, {single:,} of a single turn, on which no policy saves",
        "growth of the input is tool output, the output is the assistant's"
        + ("" if prefix_tokens is None else f"; P is the first {prefix_tokens:,} tokens of each session"),
    ]
    if any(spec.shared for spec in specs):
        sharing = [spec.shared for spec in specs if spec.shared]
        notes.append(
            f"{len(sharing):,} sessions begin like others, in {max(group for _, group in shares):,} groups by prefix "
            f"hashes, with {sum(sharing) / sum(s.segments[0].tokens for s in specs):.1%} of all first inputs"
        )
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
