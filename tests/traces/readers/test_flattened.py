"""Flattened lists come back in the order of their numbers, with holes where entries are missing, in bounded space."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvmill.traces.readers.flattened import branch, entries, tree


@given(st.lists(st.text(max_size=5), min_size=1, max_size=40), st.randoms())
def test_any_order_of_attributes_gives_the_list_again(values: list[str], dice: Any) -> None:
    flat = [(f"m.{n}.text", value) for n, value in enumerate(values)]
    dice.shuffle(flat)
    assert [entry["text"] for entry in entries(tree(dict(flat), "m"))] == values


def test_missing_entries_are_holes_but_never_many() -> None:
    assert entries(tree({"m.1.a": 1, "m.3.a": 2, "mm.0.a": 9, "m.x.a": 8}, "m")) == [None, {"a": 1}, None, {"a": 2}]
    wide = entries(tree({f"m.{n * 10**6}.a": n for n in range(900)}, "m"))
    assert len(wide) < 20_000
    assert len(entries(tree({"m.99999999999999999999.a": 1}, "m"))) == 0


def test_a_name_of_a_million_dots_is_not_followed_down() -> None:
    deep = tree({"m." + "a." * 10**6: 1}, "m")
    for _ in range(16):
        deep = deep["a"]
    assert isinstance(deep, dict)
    assert len(deep) == 1


def test_lists_and_objects_that_were_not_flattened_are_taken_as_they_are() -> None:
    assert tree({"m": '[{"role": "user"}]'}, "m") == [{"role": "user"}]
    assert branch({"message.role": "user", "message.tool.id": 1}, "message") == {"role": "user", "tool": {"id": 1}}
    assert branch({"role": "user"}, "message") == {"role": "user"}
    assert branch({"message": {"role": "user"}}, "message") == {"role": "user"}
    assert branch("x", "message") is None
    assert entries(None) == []
