"""BurstGPT: a request without an answer failed, and is refused with that reason."""

from __future__ import annotations

from typing import Any

import pytest

from kvmill.traces.readers.burstgpt import read, sniff
from kvmill.traces.reading import Reject

ROW: dict[str, Any] = {
    "Timestamp": "45.25",
    "Model": "ChatGPT",
    "Request tokens": "1087",
    "Response tokens": "230",
    "Total tokens": "1317",
    "Log Type": "API log",
}


def test_a_row_with_and_without_a_session() -> None:
    assert sniff(ROW)
    request = read(ROW)
    assert (request.arrival_s, request.input_tokens, request.output_tokens, request.session) == (45.25, 1087, 230, None)
    assert read(ROW | {"Session ID": "s7", "Elapsed time": "2"}).session == "s7"


def test_a_failed_request_is_refused_as_such() -> None:  # bug 26
    with pytest.raises(Reject, match="failed request: it has 0 response tokens"):
        read(ROW | {"Response tokens": "0"})


def test_wrong_cells_are_named() -> None:
    with pytest.raises(Reject, match="Timestamp is 'x', not a time in s"):
        read(ROW | {"Timestamp": "x"})
    with pytest.raises(Reject, match="Request tokens is '', not a number of tokens"):
        read(ROW | {"Request tokens": ""})
