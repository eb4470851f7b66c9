"""What a request log is like: rate, burstiness, ramp-up, and what its block hashes mean, each with its definition.

One pass in bounded memory. Hit rates of a log are quoted with many meanings, so the one used here is printed with the
figure: of the blocks of all inputs, those inside the longest beginning that an earlier input had too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from .trajectory import Request

MOST_BLOCKS = 1_000_000
EXACT_IN_DOUBLES = 2**53
HIT_RATE = (
    "blocks inside the longest prefix that an earlier request of the log had too, an endless cache, "
    "the partial last block counted"
)
_BINS = 256
_FIRST_BIN_S = 1e-3
_RAMP_SHARE = 0.05
_RAMP_RATE = 0.25
_EXPECTED_IN_BIN = 16
_COARSE_SHARE = 0.2


class _Arrivals:
    """Gaps, and counts in bins of time that double in width when there are too many."""

    def __init__(self) -> None:
        self.first = self.last = 0.0
        self.count = self.backwards = self.at_once = 0
        self.shortest_gap = math.inf
        self.longest_gap = self._gap_sum = self._gap_squares = 0.0
        self._bins = [0] * _BINS
        self._width = _FIRST_BIN_S

    def add(self, arrival: float) -> None:
        if not self.count:
            self.first = self.last = arrival
        gap = arrival - self.last
        self.backwards += gap < 0
        gap = max(0.0, gap)
        self._gap_sum += gap
        self._gap_squares += gap * gap
        self.longest_gap = max(self.longest_gap, gap)
        if gap:
            self.shortest_gap = min(self.shortest_gap, gap)
        else:
            self.at_once += self.count > 0
        self.last = max(self.last, arrival)
        self.count += 1
        while (place := max(0.0, arrival - self.first) / self._width) >= _BINS:
            self._bins = [a + b for a, b in zip(self._bins[::2], self._bins[1::2], strict=True)] + [0] * (_BINS // 2)
            self._width *= 2
        self._bins[int(place)] += 1

    @property
    def span(self) -> float:
        return self.last - self.first

    def gap_cv(self) -> float | None:
        """Standard deviation of the gaps over their mean: 1 for Poisson arrivals."""
        gaps = self.count - 1
        if gaps < 2 or not self._gap_sum:
            return None
        mean = self._gap_sum / gaps
        return math.sqrt(max(0.0, self._gap_squares / gaps - mean * mean)) / mean

    def ramp_up(self) -> dict[str, float] | None:
        """The slow beginning, if the log has one: until a bin first reaches a quarter of the second half's rate."""
        used = self._bins[: max(1, math.ceil(self.span / self._width))]
        half = used[len(used) // 2 :]
        later = sum(half) / len(half)
        slow = next((n for n, count in enumerate(used) if count >= _RAMP_RATE * later), len(used))
        if later < _EXPECTED_IN_BIN or slow < _RAMP_SHARE * len(used):
            return None
        seconds = slow * self._width
        return {
            "seconds": seconds,
            "rate_per_s": sum(used[:slow]) / seconds,
            "later_rate_per_s": later / self._width,
        }


class _Blocks:
    """An endless prefix cache, walked strictly; it stops taking requests when it holds too many blocks."""

    def __init__(self) -> None:
        self.sizes: set[int] = set()
        self.requests = self.count = self.hits = self.elsewhere = 0
        self.tokens = self.hit_tokens = 0
        self.partial = self.differ = self.full_only = 0
        self.large = self.large_exact = 0
        self._prefixes: set[int] = set()
        self._ids: set[int] = set()

    @property
    def full(self) -> bool:
        return len(self._prefixes) > MOST_BLOCKS

    def add(self, request: Request) -> None:
        blocks, size = request.prefix_blocks, request.block_tokens
        if blocks is None or not size:
            return
        self.sizes.add(size)
        self._lengths(len(blocks), request.input_tokens, size)
        for block in blocks:
            if block > EXACT_IN_DOUBLES:
                self.large += 1
                self.large_exact += int(float(block)) == block
        if self.full:
            return
        rolling = served = 0
        going = True
        for block in blocks:
            rolling = hash((rolling, block))
            going = going and rolling in self._prefixes
            served += going
            self.elsewhere += not going and block in self._ids
            self._prefixes.add(rolling)
            self._ids.add(block)
        self.requests += 1
        self.count += len(blocks)
        self.hits += served
        self.tokens += request.input_tokens
        self.hit_tokens += min(served * size, request.input_tokens)

    def _lengths(self, blocks: int, tokens: int, size: int) -> None:
        full, rest = divmod(tokens, size)
        self.full_only += bool(rest) and blocks == full
        self.partial += bool(rest) and blocks == full + 1
        self.differ += blocks not in (full, full + bool(rest))

    def summary(self) -> dict[str, Any] | None:
        if not self.sizes:
            return None
        return {
            "block_tokens": sorted(self.sizes),
            "blocks": self.count,
            "hit_rate_blocks": self.hits / self.count if self.count else None,
            "hit_rate_tokens": self.hit_tokens / self.tokens if self.tokens else None,
            "repeats_outside_a_prefix": self.elsewhere,
            "rate_by_membership": (self.hits + self.elsewhere) / self.count if self.count else None,
            "hashes": "of each block alone" if self.elsewhere else "of the whole prefix",
            "last_block_partial": self.partial,
            "full_blocks_only": self.full_only,
            "block_count_differs": self.differ,
            "ids_above_2_53": self.large,
            # Ids of 64 bits that all happen to be doubles were rounded by whoever wrote the log.
            "ids_were_rounded": self.large >= 8 and self.large_exact == self.large,
            "requests": self.requests,
            "definition": HIT_RATE,
        }


def summarise(requests: Iterable[Request]) -> dict[str, Any]:
    """What a log is like, as JSON values; what cannot be told is None. Rows are taken in the order they come."""
    arrivals, blocks = _Arrivals(), _Blocks()
    inputs = outputs = longest_input = longest_output = without_output = 0
    for request in requests:
        arrivals.add(request.arrival_s)
        blocks.add(request)
        inputs += request.input_tokens
        outputs += request.output_tokens
        longest_input = max(longest_input, request.input_tokens)
        longest_output = max(longest_output, request.output_tokens)
        without_output += not request.output_tokens
    count, span = arrivals.count, arrivals.span
    return {
        "requests": count,
        "span_s": span,
        "rate_per_s": (count - 1) / span if span else None,
        "gap_cv": arrivals.gap_cv(),
        "longest_gap_s": arrivals.longest_gap,
        "shortest_gap_s": arrivals.shortest_gap if span else None,
        "at_once_share": arrivals.at_once / (count - 1) if count > 1 else None,
        "rows_out_of_order": arrivals.backwards,
        "ramp_up": arrivals.ramp_up() if count else None,
        "input_tokens_mean": inputs / count if count else None,
        "input_tokens_max": longest_input,
        "output_tokens_mean": outputs / count if count else None,
        "output_tokens_max": longest_output,
        "requests_without_output": without_output,
        "prefix": blocks.summary(),
    }


def summary_text(summary: dict[str, Any]) -> list[str]:
    """The same as lines of text, the figures with their definitions."""
    if not summary["requests"]:
        return ["no requests"]
    rate, cv = summary["rate_per_s"], summary["gap_cv"]
    lines = [
        f"{summary['requests']:,} requests in {summary['span_s']:,.1f} s"
        + ("" if rate is None else f", {rate:.3g} per s (requests after the first over the span)"),
        f"input tokens mean {summary['input_tokens_mean']:,.0f}, most {summary['input_tokens_max']:,}; "
        f"output mean {summary['output_tokens_mean']:,.0f}, most {summary['output_tokens_max']:,}",
    ]
    if cv is not None:
        lines.append(
            f"burstiness {cv:.2f} (standard deviation of the gaps between arrivals over their mean; Poisson is 1), "
            f"longest gap {summary['longest_gap_s']:,.1f} s"
        )
    if summary["at_once_share"] and summary["at_once_share"] > _COARSE_SHARE and cv is not None:
        lines.append(
            f"a coarse clock: {summary['at_once_share']:.0%} of the requests arrive at the time of the row above, "
            f"other gaps are {summary['shortest_gap_s']:.3g} s or more"
        )
    ramp = summary["ramp_up"]
    if ramp:
        lines.append(
            f"ramp-up: {ramp['rate_per_s']:.3g} per s in the first {ramp['seconds']:,.0f} s, "
            f"{ramp['later_rate_per_s']:.3g} per s in the second half: leave the beginning out"
        )
    if summary["rows_out_of_order"]:
        lines.append(f"{summary['rows_out_of_order']:,} rows arrive before the row above them; such gaps count as 0")
    if summary["requests_without_output"]:
        lines.append(f"{summary['requests_without_output']:,} requests have no output tokens")
    return lines + _prefix_text(summary["prefix"], summary["requests"])


def _prefix_text(prefix: dict[str, Any] | None, requests: int) -> list[str]:
    if prefix is None or not prefix["blocks"]:
        return ["no block hashes: nothing is known of shared prefixes"]
    sizes = ", ".join(map(str, prefix["block_tokens"]))
    lines = [
        f"prefix hits {prefix['hit_rate_blocks']:.1%} of {prefix['blocks']:,} blocks of {sizes} tokens, "
        f"{prefix['hit_rate_tokens']:.1%} of input tokens ({prefix['definition']})"
    ]
    if prefix["requests"] < requests:
        lines.append(f"… over the first {prefix['requests']:,} requests, which hold {MOST_BLOCKS:,} different prefixes")
    if prefix["repeats_outside_a_prefix"]:
        lines.append(
            f"block hashes are of each block alone: {prefix['repeats_outside_a_prefix']:,} repeat outside a shared "
            f"prefix and cannot be served; counting them would claim {prefix['rate_by_membership']:.1%}"
        )
    else:
        lines.append("no block hash repeats outside a shared prefix: of the whole prefix, for all this log shows")
    if prefix["full_blocks_only"]:
        lines.append(f"{prefix['full_blocks_only']:,} requests list full blocks only")
    if prefix["block_count_differs"]:
        lines.append(
            f"{prefix['block_count_differs']:,} requests list a number of blocks that does not fit their length"
        )
    if prefix["ids_were_rounded"]:
        lines.append("ids above 2^53 were rounded by whoever wrote the log: different prefixes may look equal")
    return lines
