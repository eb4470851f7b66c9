"""ShareGPT conversations: speakers by name, calls as JSON texts, greetings in the prefix."""

from __future__ import annotations

from typing import Any

import pytest

from kvmill.traces import checks, formats
from kvmill.traces.readers.sharegpt import read, sniff
from kvmill.traces.reading import Reject


def talk(*turns: tuple[str, Any], **values: Any) -> dict[str, Any]:
    return {"conversations": [{"from": who, "value": said} for who, said in turns], **values}


def test_speakers_are_roles_and_a_greeting_belongs_to_the_prefix() -> None:
    record = talk(
        ("gpt", "Hi."), ("human", "Hello"), ("GPT", "Yes?"), ("user", "On."), ("bing", "x"), id="a_0", model="m"
    )
    assert formats.detect([record], "x").name == "sharegpt"
    made = read(record)
    assert [(m.role, m.content) for m in made.prefix] == [("assistant", "Hi."), ("user", "Hello")]
    assert [turn.assistant.content for turn in made.turns] == ["Yes?", "x"]
    assert (made.model, made.meta, made.losses) == ("m", {"conversation": "a_0"}, ())


def test_calls_and_what_they_gave() -> None:
    one = ("function_call", '{"name": "find", "arguments": {"id": 7}}')
    two = ("function_call", '[{"name": "a", "arguments": "{}"}, {"name": "b"}]')
    answered = [("observation", "in Oslo"), ("gpt", "In Oslo."), ("human", "Both."), two, ("tool", "1"), ("tool", "2")]
    made = read(talk(("human", "?"), one, *answered, system="Be brief.", tools='[{"name": "find"}]'))
    assert [(m.role, m.content) for m in made.prefix] == [("system", "Be brief."), ("user", "?")]
    called = [[(c.name, c.arguments) for c in turn.assistant.tool_calls] for turn in made.turns]
    assert called == [[("find", '{"id": 7}')], [], [("a", "{}"), ("b", "{}")]]
    assert [m.content for m in made.turns[2].tools] == ["1", "2"]
    assert made.tools[0]["function"]["name"] == "find"
    assert checks.trajectory_findings(made) == []


def test_a_call_that_is_no_json_stays_text() -> None:
    made = read(talk(("human", "?"), ("function_call", "find(7)"), ("observation", "x")))
    assert made.turns[0].assistant.content == "find(7)"
    assert made.turns[0].assistant.tool_calls == ()


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (talk(), "no conversations"),
        (talk(("wizard", "x")), "turn 0 is from 'wizard', which is none of system, human"),
        (talk((7, "x")), "turn 0 is from 7"),  # type: ignore[arg-type]
        (talk(("human", "x")), "no assistant message"),
        ("x", "no conversations"),
    ],
)
def test_what_cannot_be_read_is_rejected_with_a_reason(record: Any, reason: str) -> None:
    with pytest.raises(Reject, match=reason):
        read(record)


def test_conversations_in_roles_are_another_format() -> None:
    assert not sniff({"conversations": [{"role": "user", "content": "x"}]})
    assert not sniff({"conversations": []})
