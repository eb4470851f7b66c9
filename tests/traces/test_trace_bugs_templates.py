"""Faults of chat templates that others reported: what they do to recorded calls, thinking and ids (trace-bugs.md)."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmill.traces.drift import drift
from kvmill.traces.files import read_file
from kvmill.traces.readers import openai_chat
from kvmill.traces.record import tool_call
from kvmill.traces.tokens import tokenize
from kvmill.traces.trajectory import Message, Trajectory, Turn

ALL = ("chatml", "items", "raw", "tojson", "braces", "drops-thinking", "strict")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 10**6) | st.text('ab"\\{}é\n', max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab{", max_size=3), inner, max_size=2),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text("abc_", min_size=1, max_size=5), VALUES, max_size=3)
SPELLINGS = st.builds(
    lambda value, indent, ascii_only, separators: json.dumps(
        value, indent=indent, ensure_ascii=ascii_only, separators=separators
    ),
    OBJECTS,
    st.sampled_from([None, 1]),
    st.booleans(),
    st.sampled_from([(",", ":"), (", ", ": "), (" , ", " :  ")]),
)


def run(*turns: Turn, **values: Any) -> Trajectory:
    return Trajectory("t", "test", "test", (Message("system", "Be brief."), Message("user", "Where?")), turns, **values)


def calling(*arguments: str, id: str = "call_1") -> tuple[Turn, ...]:
    return tuple(
        Turn(
            Message("assistant", "", (tool_call(id, "look_up", text),)),
            (Message("tool", "found", tool_call_id=id, name="look_up"),),
        )
        for text in arguments
    )


def printed(trajectory: Trajectory, tokenizer: Any) -> list[str]:
    """What the template prints of each reply."""
    return [tokenizer.decode(s.ids) for s in tokenize(trajectory, tokenizer).segments if s.kind == "assistant"]


class TestArgumentsThatATemplateIterates:
    """Bug 1: `arguments|items` meets the JSON string of a recorded history. Kind: wire format against template."""

    @pytest.mark.parametrize("name", ALL)
    @settings(max_examples=30)
    @given(arguments=SPELLINGS)
    def test_any_object_in_any_spelling_is_printed(self, tokenizer_for: Any, name: str, arguments: str) -> None:
        texts = printed(run(*calling(arguments)), tokenizer_for(name))
        assert "look_up" in texts[0]
        assert all(key in texts[0] for key in json.loads(arguments))

    @pytest.mark.parametrize("arguments", ["", "null", "[1]", '"a"', "3", "{", "look: here", '{"a": NaN}', '{"a": 1'])
    @pytest.mark.parametrize("name", ALL)
    def test_what_is_no_object_is_printed_as_it_was_recorded(
        self, tokenizer_for: Any, name: str, arguments: str
    ) -> None:
        text = printed(run(*calling(arguments)), tokenizer_for(name))[0]
        assert arguments in text or json.dumps(arguments) in text

    @pytest.mark.parametrize("name", ALL)
    def test_real_airline_runs_render_with_every_template(
        self, shared_data: Path, tokenizer_for: Any, name: str
    ) -> None:
        _, items, _ = read_file(shared_data / "traces/tau-bench/gpt-4o-airline.trial0.json")
        first = next(items).value
        assert isinstance(first, Trajectory)
        calls = sum(len(turn.assistant.tool_calls) for turn in first.turns)
        assert sum(text.count("user_id") for text in printed(first, tokenizer_for(name))) >= 1
        assert calls == 8


class TestArgumentsThatATemplateEncodesOnceMore:
    """Bug 2: an unguarded `tojson` writes a string of a string. Kind: silent corruption of the prompt."""

    @given(arguments=SPELLINGS)
    def test_the_printed_arguments_are_the_object_itself(self, tokenizer_for: Any, arguments: str) -> None:
        text = printed(run(*calling(arguments)), tokenizer_for("tojson"))[0]
        found = text.partition("look_up: ")[2].removesuffix("<|im_end|>\n")
        assert json.loads(found) == json.loads(arguments)
        assert not found.startswith('"')

    @given(arguments=SPELLINGS)
    def test_a_template_that_takes_strings_prints_the_recorded_letters(
        self, tokenizer_for: Any, arguments: str
    ) -> None:
        text = printed(run(*calling(arguments)), tokenizer_for("raw"))[0]
        assert text.endswith(f"look_up: {arguments}<|im_end|>\n")


class TestBracesThatGrow:
    """Bug 3: arguments in the template's own braces nest deeper with every turn. Kind: corruption that compounds."""

    @pytest.mark.parametrize("name", ALL)
    def test_the_seventh_call_is_as_deep_as_the_first(self, tokenizer_for: Any, name: str) -> None:
        texts = printed(run(*calling(*['{"a":{"b":1}}'] * 7)), tokenizer_for(name))
        depths = {max(text[:n].count("{") - text[:n].count("}") for n in range(len(text))) for text in texts}
        assert len(texts) == 7
        assert len(depths) == 1
        assert "{{" not in "".join(texts)


class TestThinkingThatComesAndGoes:
    """Bug 5: thinking is printed or stripped by a turn's place. Kind: prompt n is no beginning of prompt n + 1."""

    TURNS = st.lists(
        st.builds(
            lambda said, thought, asked, found: Turn(
                Message("assistant", said, reasoning=thought or None),
                (Message("tool", found),) if found else (),
                (Message("user", asked),) if asked else (),
            ),
            st.text("ab ", min_size=1, max_size=6),
            st.text("th", max_size=4),
            st.text("?q", max_size=3),
            st.text("r", max_size=3),
        ),
        min_size=2,
        max_size=5,
    )

    @pytest.mark.parametrize("name", ALL)
    @settings(max_examples=30)
    @given(turns=TURNS)
    def test_what_a_session_holds_only_grows(self, tokenizer_for: Any, name: str, turns: list[Turn]) -> None:
        tokenizer = tokenizer_for(name)
        whole = run(replace(turns[0], user=()), *turns[1:])
        held = [token for segment in tokenize(whole, tokenizer).segments for token in segment.ids]
        for count in range(1, len(turns)):
            part = tokenize(replace(whole, turns=whole.turns[:count]), tokenizer)
            ids = [token for segment in part.segments for token in segment.ids]
            assert ids == held[: len(ids)]

    def test_the_place_where_a_prefix_cache_ends_is_told_turn_by_turn(self, tokenizer_for: Any) -> None:
        turns = [Turn(Message("assistant", f"A{n}.", reasoning="hm"), user=(Message("user", "?"),)) for n in range(4)]
        found = drift(run(replace(turns[0], user=()), *turns[1:]), tokenizer_for("drops-thinking")).turns
        assert [turn.cause for turn in found] == [None, *["the template drops earlier thinking"] * 3]
        assert len({turn.shared_tokens for turn in found[1:]}) == 1, "all part where the first thought stood"
        assert {turn.cause for turn in drift(run(*turns[:1]), tokenizer_for("chatml")).turns} == {None}


class TestIdsThatATemplatePrints:
    """Bug 17: a template prints call ids, and its model knows one form of them. Kind: ids change behaviour."""

    def test_ids_come_out_as_recorded_each_its_own_and_are_reported(
        self, tokenizer_with: Any, templates: dict[str, str]
    ) -> None:
        ids = templates["raw"].replace("call.function.name + ': '", "call.id + ' ' + call.function.name + ': '")
        made = tuple(tool_call(f"call_{n}", "look_up", "{}") for n in (7, 8))
        turn = Turn(Message("assistant", "", made), tuple(Message("tool", "x", tool_call_id=c.id) for c in made))
        tokens = tokenize(run(turn, *calling("{}", id="functions.look_up:0")), tokenizer_with(ids))
        assert "call_ids_printed:3" in tokens.losses
        texts = printed(run(turn), tokenizer_with(ids))
        assert re.findall(r"call_\d", texts[0]) == ["call_7", "call_8"]

    @pytest.mark.parametrize("name", ALL)
    def test_templates_that_print_none_are_not_suspected(self, tokenizer_for: Any, name: str) -> None:
        losses = tokenize(run(*calling("{}", id="call_99")), tokenizer_for(name)).losses
        assert not [loss for loss in losses if loss.startswith("call_ids_printed")]


class TestTemplatesMadeToPreservePrefixes:
    """Bug 22: an empty thought before the real one; another end for the last turn. Kind: repairs that break data."""

    def test_an_empty_thought_before_a_real_one_is_a_loss(self, tokenizer_with: Any, templates: dict[str, str]) -> None:
        doubled = templates["drops-thinking"].replace(
            "{{- '<think>\\n' +", "{{- '<think>\\n\\n</think>\\n<think>\\n' +"
        )
        turn = Turn(Message("assistant", "One.", reasoning="hm"))
        assert "empty_thinking_added:1" in tokenize(run(turn), tokenizer_with(doubled)).losses

    def test_segments_stay_whole_where_the_last_turn_ends_with_another_token(
        self, tokenizer_with: Any, templates: dict[str, str]
    ) -> None:
        end = "message.content + '<|im_end|>"
        ends = templates["chatml"].replace(end, "message.content + ('</think>' if loop.last else '<|im_end|>') + '")
        tokenizer = tokenizer_with(ends)
        turns = [Turn(Message("assistant", f"A{n}."), user=(Message("user", "And?"),)) for n in range(3)]
        tokens = tokenize(run(replace(turns[0], user=()), *turns[1:]), tokenizer)
        texts = [tokenizer.decode(segment.ids) for segment in tokens.segments[1:]]
        assert texts[0] == "<|im_start|>assistant\nA0.</think>\n"
        assert texts[1] == "<|im_start|>user\nAnd?</think>\n"
        assert texts[2] == "<|im_start|>assistant\nA1.</think>\n"
        assert "template_not_prefix_preserving:5" in tokens.losses


class TestArgumentsThatAreNoJson:
    """Bug 24: parsers fail on unbalanced braces, or add brackets that nobody wrote. Kind: repair of what was said."""

    @given(arguments=st.text('{}[]":, ab1\\', max_size=12))
    def test_arguments_are_kept_to_the_letter_and_never_repaired(self, arguments: str) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
        kept = openai_chat.read({"messages": messages}).turns[0].assistant.tool_calls[0]
        assert kept.arguments == arguments
        try:
            value = json.loads(arguments)
        except ValueError:
            value = None
        assert kept.parsed == (value if isinstance(value, dict) else None)

    @given(arguments=st.text('{}":ab', min_size=1, max_size=8))
    def test_a_template_that_takes_strings_prints_them_as_they_are(self, tokenizer_for: Any, arguments: str) -> None:
        assert printed(run(*calling(arguments)), tokenizer_for("raw"))[0].endswith(f"look_up: {arguments}<|im_end|>\n")
