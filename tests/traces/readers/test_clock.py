"""Times as sources write them: ISO 8601 with any fraction and zone; what is none is unknown."""

from __future__ import annotations

from typing import Any

import pytest

from kvmill.traces.readers.clock import between, when


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:01Z", 1.0),
        ("1970-01-01T00:00:01.250000", 1.25),
        ("1970-01-01T01:00:01+01:00", 1.0),
        ("1970-01-01T00:00:01.1234567Z", 1.123456),
        ("1970-01-02", 86400.0),
    ],
)
def test_iso_times_are_seconds_and_utc_where_no_zone_is_named(text: str, seconds: float) -> None:
    assert when(text) == pytest.approx(seconds, abs=1e-9)


@pytest.mark.parametrize("value", [None, "", "yesterday", 7, "1970-13-01", "99999-01-01", ["x"]])
def test_what_is_no_time_is_unknown(value: Any) -> None:
    assert when(value) is None


def test_a_span_needs_both_ends_in_order() -> None:
    assert between(1.0, 3.5) == 2.5
    assert between(2.0, 2.0) == 0.0
    assert between(3.0, 1.0) is None
    assert between(None, 1.0) is None
    assert between(1.0, None) is None
