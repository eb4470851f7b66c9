"""No reader, and nothing after it, takes more than linear time: four times the input, four times as long."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from typing import Any

import pytest

from kvmill.traces import checks, record
from kvmill.traces.beside import source_of
from kvmill.traces.formats import FORMATS
from kvmill.traces.items import each
from kvmill.traces.places import LocalFile
from kvmill.traces.reading import Record
from kvmill.traces.trajectory import Trajectory

# A collection of all that other tests left behind would be timed with the code.
pytestmark = pytest.mark.usefixtures("uncollected")

EXAMPLES = Path(__file__).parent / "readers" / "examples"
BYTES, TIMES = 400_000, 4


def longest(value: Any) -> list[Any] | None:
    """The longest list of objects inside a JSON value."""
    found = [value] if isinstance(value, list) and value and all(isinstance(item, dict) for item in value) else []
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    found += [inner for inner in map(longest, below) if inner is not None]
    return max(found, key=len, default=None)


def seconds(name: str, values: list[Any]) -> float:
    """Time to read the values, and to check and write what they become."""
    chosen = FORMATS[name]
    stream = iter([Record(place, value) for place, value in enumerate(values, 1)])
    start = time.process_time()
    if chosen.gather is not None:
        items = chosen.gather(stream, source_of(LocalFile(EXAMPLES / f"{name}.jsonl"), {}))
    else:
        assert chosen.read is not None
        items = each(chosen.read, stream)
    for item in items:
        if isinstance(item.value, Trajectory):
            checks.trajectory_findings(item.value)
            record.sealed(item.value)
    return time.process_time() - start


@pytest.mark.parametrize("name", FORMATS)
def test_four_times_the_input_takes_four_times_as_long(name: str) -> None:
    path = EXAMPLES / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"{name} has no example")
    values = [json.loads(line) for line in path.read_text().splitlines()]
    copies = BYTES // path.stat().st_size + 1
    assert seconds(name, values * copies * TIMES) < 2 * TIMES * seconds(name, values * copies) + 0.3
    grown = {}
    for times in (1, TIMES):
        value = copy.deepcopy(values[0])
        inner = longest(value)
        if inner is None:
            return
        inner[:] = inner * (copies * times)
        grown[times] = seconds(name, [value])
    assert grown[TIMES] < 2 * TIMES * grown[1] + 0.3
