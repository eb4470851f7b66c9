"""Files of spans in the dialect of OpenInference. Envelopes: `spans_otlp`; the dialect: `spans_openinference`."""

from __future__ import annotations

from typing import Any

from ..reading import Format
from .spans_files import gather_as, sniffs

NAME = "openinference"


def sniff(record: Any) -> bool:
    """Whether the record holds spans of this dialect."""
    return sniffs(NAME, record)


FORMAT = Format(
    NAME,
    "OpenInference spans: flattened llm.input_messages, as OTLP/JSON, one span an object, or a map",
    "trajectories",
    sniff,
    gather=gather_as(NAME),
    verified=True,
)
