"""Values that would break a store or a template later are named or repaired when they come in."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvmill.traces import values
from kvmill.traces.values import MAX_DEPTH, Loaded, flaw, load, parse_object, whole


def nested(depth: int) -> object:
    value: object = 1
    for n in range(depth):
        value = [value] if n % 2 else {"a": value}
    return value


def test_depth_and_numbers_are_bounded() -> None:
    assert flaw(nested(MAX_DEPTH)) is None
    assert "levels deep" in str(flaw(nested(MAX_DEPTH + 1)))
    assert "levels deep" in str(flaw(nested(100_000))), "without recursion"
    for bad in (math.nan, math.inf, -math.inf):
        assert "NaN" in str(flaw({"a": [1, bad]}))
    assert flaw({"a": [1, 2.5, None, True, "x", {}]}) is None


def test_half_characters_are_replaced_in_keys_and_values() -> None:
    text = '{"a\\udfff": ["\\ud83d", "\\ud83d\\ude00"]}'
    assert whole(json.loads(text), text) == {"a\ufffd": ["\ufffd", "😀"]}


def test_only_objects_parse() -> None:
    assert parse_object('{"a": "\\ud83d"}') == {"a": "\ufffd"}
    for text in ("", "[1]", '"x"', "{", '{"a": NaN}', "{" * 100_000, '{"a":' * 100_000, json.dumps(nested(201))):
        assert parse_object(text) is None


MARKS = [*'{}[],:"1- \n\\é\ufeff\x7f', '"a"', '{"a":', "NaN", "-Infinity", "true", "null"]
NUMBERS = ["-0", "0", "1e5", "1E400", "1.", "1.5", "9" * 19, "9" * 30, "\\ud83d", "\\ude00", "\\u0000"]
PIECES = st.sampled_from([*MARKS, *NUMBERS])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


def outcome(function: Any, text: str) -> object:
    try:
        return function(text)
    except ValueError as error:
        return str(error)


def typed(value: object) -> str:
    return repr(value)  # tells 1 from 1.0 and from True, -0.0 from 0.0


@given(st.lists(PIECES, max_size=12).map("".join) | JSON.map(json.dumps) | st.text(max_size=20))
@example("-0.0")
@example('{"a": 1, "a": 18446744073709551616}')
@example("[" * 300 + "]" * 300)
@example('["\\ud83d", 1e999]')
def test_the_quick_way_gives_what_the_standard_library_gives(text: str) -> None:
    for form in (text, text.encode(errors="replace")):
        assert typed(outcome(load, form)) == typed(outcome(values._carefully, form))


def test_what_is_replaced_is_marked() -> None:
    assert load('{"a": [NaN, 1e999, -Infinity, 2]}') == Loaded({"a": [None, None, None, 2]}, nulled=True)
    assert load(b'["\\ud83d"]') == Loaded(["\ufffd"], repaired=True)
    assert load('["\\ud83d\\ude00"]') == Loaded(["😀"])
    assert load(b"123456789012345678901234567890").value == 123456789012345678901234567890


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"\xff", "invalid UTF-8 at byte 1"),
        ("[" * 100_000, "nested too deeply"),
        (json.dumps(nested(MAX_DEPTH + 1)), "nested more than 200 levels deep"),
        ("9" * 100_000, "holds a whole number of thousands of digits"),
        ("[1] 2", "no valid JSON: Extra data at character 5"),
        ("", "no valid JSON: Expecting value at character 1"),
    ],
)
def test_what_is_refused_is_said_in_words(text: str | bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        load(text)
