"""Records damaged at random are read or rejected, never a crash; what is read survives the store's form.

Every format has an example, `examples/NAME.jsonl`: the records of one small file, one a line.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sources import Beside, found

from kvmill.traces import checks, formats, record
from kvmill.traces.formats import FORMATS, Format
from kvmill.traces.items import each
from kvmill.traces.losses import LOSSES, code_of
from kvmill.traces.reading import Bad, Item
from kvmill.traces.redact import Redactor
from kvmill.traces.rows import request_of, request_row, trajectory_row, turn_rows
from kvmill.traces.trajectory import Trajectory

EXAMPLES = Path(__file__).parent / "examples"
ROUNDS = 400
JUNK: list[Any] = [None, 1, -1, 1.5, 10**400, -(10**400), True, "x", "", [], {}, [[]], [None], {"a": 1}, ["x"]]
JUNK += [2**70, {"role": "user"}]


def example(name: str) -> list[Any]:
    path = EXAMPLES / f"{name}.jsonl"
    assert path.exists(), f"give the format {name} an example: {path.name}, one record a line"
    return [json.loads(line) for line in path.read_text().splitlines()]


def damaged(value: Any, dice: random.Random) -> Any:
    if dice.random() < 0.06:
        return dice.choice(JUNK)
    if isinstance(value, dict):
        return {key: damaged(item, dice) for key, item in value.items() if dice.random() > 0.04}
    return [damaged(item, dice) for item in value if dice.random() > 0.04] if isinstance(value, list) else value


def items(reader: Format, values: list[Any]) -> Iterator[Item]:
    records = iter(found(values))
    if reader.gather is not None:
        return reader.gather(records, Beside())
    assert reader.read is not None
    return each(reader.read, records)


@pytest.mark.parametrize("reader", FORMATS.values(), ids=FORMATS)
def test_damage_is_read_or_rejected(reader: Format) -> None:
    dice = random.Random(reader.name)
    whole = example(reader.name)
    read = rejected = 0
    for _ in range(ROUNDS):
        values = [damaged(value, dice) for value in whole]
        for value in values:
            reader.sniff(value)
        for item in items(reader, values):
            made = item.value
            if made is None:
                assert item.reason
                rejected += 1
            elif isinstance(made, Trajectory):
                read += 1
                assert record.load(record.dump(made)) == made
                assert made.prefix
                assert {code_of(loss) for loss in made.losses} <= set(LOSSES)
                assert made.turns
                checks.trajectory_findings(made)
                trajectory_row(Redactor().trajectory(made))
                list(turn_rows(made))
            else:
                read += 1
                assert request_of(request_row(made)) == made
    assert read > ROUNDS / 10
    assert rejected > ROUNDS / 20


@pytest.mark.parametrize("reader", FORMATS.values(), ids=FORMATS)
def test_any_json_value_is_looked_at_without_a_crash(reader: Format) -> None:
    for value in JUNK:
        assert reader.sniff(value) in (True, False)
        for item in items(reader, [value]):
            assert item.value is None, f"{value!r} is no {reader.name}"
            assert item.reason


@pytest.mark.parametrize("reader", FORMATS.values(), ids=FORMATS)
def test_the_example_is_recognised_and_read_whole(reader: Format) -> None:
    whole = example(reader.name)
    if any(map(reader.sniff, whole)):  # a table that only `--columns` explains looks like nothing
        assert formats.detect(whole, "x").name == reader.name
    made = list(items(reader, whole))
    assert made
    assert all(item.value is not None for item in made), [item.reason for item in made]


@pytest.mark.parametrize(
    "reader", [f for f in FORMATS.values() if f.gather], ids=[n for n in FORMATS if FORMATS[n].gather]
)
def test_a_record_that_could_not_be_parsed_is_passed_on(reader: Format) -> None:
    assert reader.gather is not None
    bad = Bad(2, "no valid JSON", '{"a": ')
    first, *rest = found(example(reader.name))
    made = list(reader.gather(iter([first, bad, *rest]), Beside()))
    assert [(item.place, item.reason, item.raw) for item in made if item.value is None] == [(2, bad.reason, bad.raw)]
    assert any(item.value is not None for item in made)


@pytest.mark.parametrize("name", FORMATS)
def test_no_record_of_an_example_looks_like_another_format(name: str) -> None:
    for value in example(name):
        assert {reader.name for reader in FORMATS.values() if reader.sniff(value)} <= {name}
