"""Files of spans in the dialect of Vercel AI SDK. Envelopes: `spans_otlp`; the dialect: `spans_vercel`."""

from __future__ import annotations

from typing import Any

from ..reading import Format
from .spans_files import gather_as, sniffs

NAME = "vercel-ai"


def sniff(record: Any) -> bool:
    """Whether the record holds spans of this dialect."""
    return sniffs(NAME, record)


FORMAT = Format(
    NAME,
    "Vercel AI SDK spans: ai.prompt.messages and ai.response, as OTLP/JSON or one span an object",
    "trajectories",
    sniff,
    gather=gather_as(NAME),
    verified=True,
)
