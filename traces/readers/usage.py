"""Token counts of one call in disjoint buckets, whatever the source means by "input".

OpenTelemetry, OpenInference, the Vercel AI SDK, LangChain and OpenAI count cached tokens inside the input (their
conventions say so); Anthropic and Langfuse beside it. Instrumentations mix the two up, so a cache that is larger than
the input it should be part of is taken to lie beside it.
"""

from __future__ import annotations

import itertools
from typing import Any

from ..trajectory import Usage
from .fields import MOST_TOKENS, whole


def tokens_in(value: Any) -> int | None:
    """A number of tokens, as a number or its digits; None if it is none."""
    count = whole(value)
    return count if count is not None and count <= MOST_TOKENS else None


def inside(given: Any, output: Any, read: Any = None, written: Any = None) -> Usage | None:
    """Usage where the input includes what was read from and written to the cache. None if there are no counts."""
    total, out, cached, wrote = map(tokens_in, (given, output, read, written))
    if total is None and out is None:
        return None
    apart = (cached or 0) + (wrote or 0)
    fresh = total if total is None or apart > total else total - apart
    return Usage(fresh, cached, wrote, out)


def summing_to(total: Any, given: Any, output: Any, read: Any, written: Any, thought: Any) -> tuple[Usage | None, bool]:
    """Usage where it is not said whether the cache is inside the input and thinking inside the output, and whether it
    sums to the source's own total: of the four readings the first that does is taken, buckets apart first.
    """
    amount, into, out, cached, wrote, thoughts = map(tokens_in, (total, given, output, read, written, thought))
    if into is None and out is None:
        return None, True
    apart = (cached or 0) + (wrote or 0)
    readings = []
    for cache_inside, thinking_inside in itertools.product((False, True), (True, False)):
        fresh = into if into is None or not cache_inside or apart > into else into - apart
        answer = out if out is None or thinking_inside else out + (thoughts or 0)
        readings.append(Usage(fresh, cached, wrote, answer))
    fits = [usage for usage in readings if amount is None or _sum(usage) == amount]
    return (fits or readings)[0], bool(fits)


def _sum(usage: Usage) -> int:
    parts = (usage.fresh_input_tokens, usage.cache_read_tokens, usage.cache_write_tokens, usage.output_tokens)
    return sum(part or 0 for part in parts)
