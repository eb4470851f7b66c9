"""What a reader makes of a record becomes items: nouns, refusals with the beginning of the record, marks."""

from __future__ import annotations

from typing import Any

from kvmill.traces.items import each
from kvmill.traces.readers.chat import trajectory_of
from kvmill.traces.reading import Bad, Record, Reject

SAID = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]


def test_one_record_may_be_one_noun_several_or_none() -> None:
    def read(value: Any) -> Any:
        if value == "none":
            raise Reject("no " + "x" * 300)
        run = trajectory_of("x", "x", SAID)
        return run if value == "one" else [run] * 2

    made = list(each(read, [Record(1, "one"), Record(2, "two"), Bad(3, "no valid JSON", "{"), Record(4, "none")]))
    assert [(item.place, item.value is None) for item in made] == [
        (1, False),
        (2, False),
        (2, False),
        (3, True),
        (4, True),
    ]
    assert (made[3].reason, made[3].raw) == ("no valid JSON", "{")
    assert made[4].reason.startswith("no xxx")
    assert len(made[4].reason) == 200
    assert made[4].raw == '"none"'


def test_repaired_characters_and_endless_nesting_are_said() -> None:
    (item,) = each(lambda _: trajectory_of("x", "x", SAID), [Record(1, {}, repaired=True)])
    assert item.value is not None
    assert "invalid_characters" in item.value.losses  # type: ignore[union-attr]

    def endless(value: Any) -> Any:
        raise RecursionError

    (item,) = each(endless, [Record(1, {"a": 1})])
    assert (item.value, item.reason, item.raw) == (None, "nested too deeply", '{"a": 1}')
