"""Every grammar reads what its templates print, whatever stands around it, and nothing where a call is broken."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.replay.actions import fallback, gemma, hermes, qwen_xml, samples
from kvmill.replay.actions.action import Action, begun_thinking, without_thinking
from kvmill.replay.actions.choose import GRAMMARS
from kvmill.traces.samples import load
from kvmill.traces.template import call_text
from kvmill.traces.trajectory import ToolCall

HERMES = '<tool_call>\n{"name": "book", "arguments": {"id":  7, "to": "Oslo"}}\n</tool_call>'
XML = (
    "<tool_call>\n<function=book>\n<parameter=id>\n7\n</parameter>\n<parameter=to>\nOslo\n</parameter>\n</function>\n"
    "</tool_call>"
)
GEMMA = '<|tool_call>call:book{id:7,to:<|"|>Oslo<|"|>}<tool_call|>'
FUNCTION_GEMMA = "<start_function_call>call:book{id:7,to:<escape>Oslo<escape>}<end_function_call>"
FALLBACK = '<tool_call>{"name":"book","arguments":{"id":  7, "to": "Oslo"}}</tool_call>'
SAMPLES = "cat /var/log/billing.log"
SPELLED = {"hermes": HERMES, "qwen-xml": XML, "gemma": GEMMA, "fallback": FALLBACK, "samples": SAMPLES}
every = pytest.mark.parametrize("name", sorted(SPELLED))


def read(name: str, text: str) -> list[tuple[str, Any]]:
    return [(action.name, action.parsed) for action in GRAMMARS[name](text)]


def test_each_grammar_reads_its_own_spelling() -> None:
    booked = [("book", {"id": 7, "to": "Oslo"})]
    assert read("hermes", HERMES) == read("fallback", FALLBACK) == booked
    assert read("gemma", GEMMA) == read("gemma", FUNCTION_GEMMA) == booked
    assert read("qwen-xml", XML) == [("book", {"id": "7", "to": "Oslo"})]  # types cannot be told
    assert read("samples", SAMPLES) == [("cat", {"path": "/var/log/billing.log"})]


@every
def test_text_around_a_call_and_thoughts_before_it_change_nothing(name: str) -> None:
    spelled = SPELLED[name]
    want = read(name, spelled)
    assert want
    thought = f"<think>\nFirst {spelled}\nor rather not.\n</think>\n\n"
    for text in (f"I will do it.\n{spelled}", f"{spelled}\nDone.", thought + spelled, f"{thought}So:\n{spelled}\n"):
        assert read(name, text) == want
    assert read(name, f"<|channel>thought\n{spelled}\n<channel|>{spelled}") == want


@every
def test_calls_inside_thinking_are_no_actions(name: str) -> None:
    for opening, closing in (("<think>\n", "\n</think>"), ("<think>\n", ""), ("[THINK]\n", "\n[/THINK]")):
        assert read(name, f"{opening}{SPELLED[name]}{closing}") == []


@every
def test_several_calls_are_read_in_order(name: str) -> None:
    one = SPELLED[name]
    two = one.replace("Oslo", "Rome").replace("billing", "search")
    assert read(name, f"{one}\n{two}") == [*read(name, one), *read(name, two)]
    assert read(name, f"{one}\n{two}") != read(name, f"{two}\n{one}")


@pytest.mark.parametrize("name", ["hermes", "qwen-xml", "gemma", "fallback"])
def test_a_call_that_is_cut_anywhere_is_no_action_and_spoils_its_neighbour(name: str) -> None:
    """Half of a reply is another reply. (What closes the outermost XML tag may be missing: the call is whole.)"""
    spelled = SPELLED[name]
    end = len(spelled) - (len("\n</tool_call>") if name == "qwen-xml" else 0)
    begin = spelled.find("<function=") + len("<function=") if name == "qwen-xml" else len("<|tool_call>")
    for cut in range(begin, end):
        assert read(name, spelled[:cut]) == [], spelled[:cut]
        assert read(name, f"{spelled}\n{spelled[:cut]}") == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "f"}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>'),
        ("hermes", "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>"),
        ("hermes", '<tool_call>["f", {}]</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}} and so on</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": ' + "[" * 100_000 + "</tool_call>"),
        ("hermes", "</tool_call>"),
        ("fallback", '<tool_call>{"name":"\\x","arguments":{}}</tool_call>'),
        ("fallback", '<tool_call>{"tool":"f","arguments":{}}</tool_call>'),
        ("qwen-xml", "<function=f><parameter=a>1</function>"),
        ("qwen-xml", "<function=f>a=1</function>"),
        ("qwen-xml", "<function=></function>"),
        ("gemma", "<|tool_call>book{id:7}<tool_call|>"),
        ("gemma", "<|tool_call>call:book{id}<tool_call|>"),
        ("gemma", "<|tool_call>call:book{id:7,,to:8}<tool_call|>"),
        ("gemma", "<|tool_call>call:book(7)<tool_call|>"),
        ("gemma", "<|tool_call>call:f{a:" + "[" * 100 + "]" * 100 + "}<tool_call|>"),
        ("samples", "Result: cat is a page."),
        ("samples", "I found it. Alice keeps Cedar station."),
        ("samples", "Search:"),
    ],
)
def test_what_is_malformed_is_no_action(name: str, text: str) -> None:
    assert read(name, text) == []


def test_arguments_stay_as_they_were_written() -> None:
    assert hermes.parse(HERMES)[0].arguments == '{"id":  7, "to": "Oslo"}'
    assert gemma.parse(GEMMA)[0].arguments == '{id:7,to:<|"|>Oslo<|"|>}'
    spelled = hermes.parse('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>')
    assert spelled == (Action("f", '{"a": 1}', {"a": 1}),)
    assert qwen_xml.parse('<function=f><parameter=a>{"b": [1,  2]}</parameter></function>')[0].parsed == {
        "a": {"b": [1, 2]}
    }


def test_values_of_gemma_are_as_in_json_and_its_strings_are_literal() -> None:
    inside = 'a:true,b:[1,-2.5,<|"|>x, {y}: "z"<|"|>],<|"|>c d<|"|>:{e:null,g:{}},h:bare word'
    want = {"a": True, "b": [1, -2.5, 'x, {y}: "z"'], "c d": {"e": None, "g": {}}, "h": "bare word"}
    assert gemma.parse(f"<|tool_call>call:f{{{inside}}}<tool_call|>")[0].parsed == want


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab_é", max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.text("abc_-.", min_size=1), st.dictionaries(st.text("ab_é", min_size=1), json_values, max_size=4))
def test_hermes_and_fallback_read_any_object_back(name: str, arguments: dict[str, Any]) -> None:
    for ensure in (True, False):
        body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=ensure)
        if "<tool_call>" not in body and "<think>" not in body:
            assert read("hermes", f"<tool_call>{body}</tool_call>") == [(name, arguments)]
            raw = json.dumps(arguments, ensure_ascii=ensure)
            assert read("fallback", call_text(ToolCall("1", name, raw))) == [(name, arguments)]


@given(
    st.sampled_from(sorted(GRAMMARS)),
    st.lists(
        st.sampled_from(
            [
                *SPELLED.values(),
                "<think>",
                "</think>",
                "{",
                "}",
                "<tool_call>",
                "</tool_call>",
                '"',
                "<parameter=a>",
                "</function>",
                "<tool_call|>",
                "call:",
                "a",
                "\n",
            ]
        ),
        max_size=8,
    ),
)
def test_no_text_breaks_a_grammar(name: str, parts: list[str]) -> None:
    for action in GRAMMARS[name]("".join(parts)):
        assert action.name


def test_raw_arguments_that_are_no_json_are_read_as_kvmill_wrote_them() -> None:
    for raw in ("", "{broken", "[1, 2]", "plain words"):
        assert fallback.parse(call_text(ToolCall("1", "f", raw)))[0].arguments == raw


def test_every_call_of_the_samples_is_read() -> None:
    names = set()
    for run in [*load()[::9], *load("samples-more")[::9], *load("stress")]:
        for turn in run.turns:
            (action,) = samples.parse(turn.assistant.content)
            names.add(action.name)
            assert turn.assistant.content.endswith(action.arguments)
    assert names == {"search", "ask", "check", "cat", "grep"}
    assert read("samples", "grep -rn billing src") == [("grep", {"pattern": "billing", "path": "src"})]


def test_thinking_that_a_template_begins_is_known() -> None:
    assert begun_thinking("<|im_start|>assistant\n<think>\n") == "<think>"
    assert begun_thinking("<think>\n\n</think>\n\n") == begun_thinking("<|im_start|>assistant\n") == ""
    assert without_thinking("a<think>b</think>c<think>d") == "ac"
