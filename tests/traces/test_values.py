"""Values that would break a store or a template later are named or repaired when they come in."""

from __future__ import annotations

import json
import math

from kvmill.traces.values import MAX_DEPTH, flaw, parse_object, whole


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
