"""What proxies and cassettes keep of a call: bodies in JSON, as JSON text, or as the events of a streamed answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import sse, values

ALONE = "a response without its request: there is no prompt to replay"
STREAMED = "sse"  # the one key of a body that is a list of events


def body_of(value: Any) -> Any:
    """The body of a request or response as JSON; the events of a stream as `{"sse": […]}`. None if it is neither."""
    if isinstance(value, Mapping) and isinstance(value.get("body"), (Mapping, str)):
        value = value["body"]
    if isinstance(value, Mapping) and "string" in value:  # VCR
        value = value["string"]
    if isinstance(value, str):
        try:
            return {STREAMED: sse.objects(value)} if sse.looks_like(value) else values.load(value).value
        except (ValueError, RecursionError):
            return None
    return value


def events_of(body: Any) -> list[Mapping[str, Any]] | None:
    """The events of a streamed body; None if it is not streamed."""
    found = body.get(STREAMED) if isinstance(body, Mapping) else None
    return [event for event in found if isinstance(event, Mapping)] if isinstance(found, list) else None
