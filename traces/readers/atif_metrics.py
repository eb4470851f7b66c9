"""What ATIF's `metrics` say of one call: tokens in disjoint buckets, and recorded token ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..trajectory import RecordedIds, Usage
from .atif_extra import ours
from .counts import count, inside

_CACHE_WRITES = ("cache_creation_input_tokens", "cache_write_tokens")


def usage_of(metrics: Mapping[str, Any]) -> Usage | None:
    """Usage: `prompt_tokens` are all input tokens, `cached_tokens` those of them read from a cache (RFC 0001, Metrics);
    tokens written to a cache stand in `extra`. None if there are no counts.
    """
    if noted := ours(metrics).get("usage"):
        return _noted(noted)
    given, read = count(metrics.get("prompt_tokens")), count(metrics.get("cached_tokens"))
    output = count(metrics.get("completion_tokens"))
    extra = inside(metrics, "extra")
    write = next((n for name in _CACHE_WRITES if (n := count(extra.get(name))) is not None), None)
    if given is None and output is None and read is None and write is None:
        return None
    fresh = None if given is None else max(0, given - (read or 0) - (write or 0))
    return Usage(fresh, read, write, output)


def _noted(noted: Any) -> Usage:
    names = Usage.__dataclass_fields__
    return Usage(**{name: count(noted.get(name)) for name in names} if isinstance(noted, Mapping) else {})


class Recorded:
    """Turns whole prompts of ids into what each call appended. `broken`: a prompt did not go on from the one before.

    From there on only the ids of the replies are kept: what was appended to which context is not known any more.
    """

    def __init__(self) -> None:
        self._context: list[int] | None = []
        self.broken = False

    def take(self, metrics: Mapping[str, Any]) -> RecordedIds | None:
        """The ids of the next call."""
        prompt, output = _ids(metrics.get("prompt_token_ids")), _ids(metrics.get("completion_token_ids"))
        if prompt is None and output is None and not self._context:
            pass  # nothing was recorded yet: the first prompt that is holds all before it
        elif prompt is None or output is None or self._context is None:
            self.broken = self.broken or prompt is not None
            self._context = None
        elif prompt[: len(self._context)] != self._context:
            self.broken, self._context = True, None
        else:
            appended = tuple(prompt[len(self._context) :])
            self._context = [*prompt, *output]
            return RecordedIds(appended, tuple(output))
        return None if output is None else RecordedIds((), tuple(output))


def _ids(value: Any) -> list[int] | None:
    return (
        value if isinstance(value, list) and value and all(type(i) is int and 0 <= i < 2**31 for i in value) else None
    )
