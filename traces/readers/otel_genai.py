"""Files of spans in the dialect of OpenTelemetry GenAI. Envelopes: `spans_otlp`; the dialect: `spans_genai`."""

from __future__ import annotations

from typing import Any

from ..reading import Format
from .spans_files import gather_as, sniffs

NAME = "otel-genai"


def sniff(record: Any) -> bool:
    """Whether the record holds spans of this dialect."""
    return sniffs(NAME, record)


FORMAT = Format(
    NAME,
    "OpenTelemetry GenAI spans, attributes or events, as OTLP/JSON, one span an object, or a map",
    "trajectories",
    sniff,
    gather=gather_as(NAME),
    verified=True,
)
