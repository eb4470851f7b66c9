"""Files of OpenTelemetry spans: whichever format a file is taken for, every span is read in its own dialect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

from ..reading import Bad, Item, Record, Reject, Source
from . import spans_genai, spans_openinference, spans_vercel
from .fields import named
from .spans import Trace
from .spans_held import gathered
from .spans_otlp import Span, is_span_record, spans_of, with_logs

# The special ones first: their spans have attributes of the general one too.
DIALECTS: dict[str, ModuleType] = {
    "openinference": spans_openinference,
    "vercel-ai": spans_vercel,
    "otel-genai": spans_genai,
}
_LOOKED_AT = 50


def sniffs(name: str, record: Any) -> bool:
    """Whether the spans of a record are of that dialect; spans of no dialect count as plain OpenTelemetry."""
    if not is_span_record(record):
        return False
    try:
        found = {_dialect(span) for span, _ in zip(spans_of(record), range(_LOOKED_AT), strict=False)}
    except Reject:
        return False
    special = next((dialect for dialect in DIALECTS if dialect in found), "otel-genai")
    return special == name


def gather_as(name: str) -> Callable[[Iterator[Record | Bad], Source], Iterator[Item]]:
    """A reader of files of spans; what it reads is called by `name`."""

    def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
        return gathered(name, records, _keyed, partial(_trace_of, name))

    return gather


def _dialect(span: Span) -> str | None:
    return next((name for name, dialect in DIALECTS.items() if dialect.speaks(span)), None)


def _keyed(record: Any) -> Iterator[tuple[str | None, Span]]:
    for span in spans_of(record):
        yield span.trace, span


def _trace_of(name: str, spans: Iterable[Span]) -> Trace:
    trace = Trace()
    for span in with_logs(spans):
        if span.id is not None:
            trace.parents[span.id] = span.parent
        trace.id = trace.id or span.trace
        dialect = DIALECTS.get(_dialect(span) or "")
        if dialect is None:
            continue
        trace.session = trace.session or named(dialect.session_of(span))
        try:
            dialect.add(span, trace, name)
        except Reject as error:
            trace.refuse(span.id, error)
    return trace
