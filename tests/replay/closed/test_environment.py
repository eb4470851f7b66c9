"""What a call gets: the recorded result, the result of a search, or an error that says what there is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from acting import GRAMMARS, PAGES, recorded, sample, turn

from kvmill.replay.actions.action import Action
from kvmill.replay.closed.environment import NOTHING_FOUND, Environment, Library, recorded_calls, search_query
from kvmill.replay.closed.finder import Finder
from kvmill.traces.record import tool_call
from kvmill.traces.trajectory import Message, Trajectory, Turn


def action(name: str, arguments: dict[str, Any] | str) -> Action:
    if isinstance(arguments, str):
        found = json.loads(arguments) if arguments.startswith("{") else None
        return Action(name, arguments, found)
    return Action(name, json.dumps(arguments), arguments)


def world(trajectory: Trajectory, *others: Trajectory, seeds: int = 0, grammar: str | None = None) -> Environment:
    grammar = grammar or GRAMMARS[trajectory.source]
    return Environment(trajectory, Library([trajectory, *others], GRAMMARS), grammar, seeds)


@pytest.mark.parametrize(
    "arguments",
    ['{"a": 1, "b": 2}', '{"b":2,"a":1}', '{ "a" : 1.0,\n"b": 2 }'],
)
def test_an_equal_call_gets_what_was_recorded_however_it_is_spelled(arguments: str) -> None:
    found = world(recorded()).answer(action("add", arguments))
    assert (found.how, found.text, found.query, found.repeated) == ("exact", "3", None, False)


@pytest.mark.parametrize("arguments", ['{"a": 1, "b": 3}', '{"a": 1}', '{"a": "1", "b": 2}', '{"a": 1, "b": true}'])
def test_another_call_of_a_known_tool_is_an_error_that_names_the_tools(arguments: str) -> None:
    found = world(recorded()).answer(action("add", arguments))
    assert (found.how, found.text) == ("error", "Error: add has no result for these arguments. Tools: search, add.")


def test_an_unknown_tool_is_an_error_even_if_it_searches() -> None:
    found = world(recorded()).answer(action("web_search", {"query": "keeper of Willow station"}))
    assert (found.how, found.text) == ("error", "Error: there is no tool 'web_search'. Tools: search, add.")
    assert found.query == "keeper of Willow station"
    bare = world(recorded(turns=[Turn(Message("assistant", "Hi."))]))
    assert bare.answer(action("x" * 500, {})).text == f"Error: there is no tool '{'x' * 60}'. There are no tools."


def test_declared_tools_are_known_in_both_forms_of_a_schema() -> None:
    tools = ({"type": "function", "function": {"name": "look"}}, {"name": "buy", "parameters": {}})
    assert world(recorded(tools=tools)).tools == ("look", "buy", "search", "add")


def test_repeated_calls_get_the_recorded_results_in_order_then_the_last_one() -> None:
    run = recorded(turns=[turn("status", {}, "waiting"), turn("status", {}, "running"), turn("status", {}, "done")])
    place = world(run)
    said = [place.answer(action("status", {})) for _ in range(5)]
    assert [each.text for each in said] == ["waiting", "running", "done", "done", "done"]
    assert [each.repeated for each in said] == [False, True, True, True, True]
    assert [each.text for each in [world(run, seeds=2).answer(action("status", {}))]] == ["done"]
    assert world(run, seeds=2).answer(action("status", {})).repeated, "a seed turn made it before"


def test_a_search_is_answered_from_all_trajectories() -> None:
    other = recorded("b", [turn("search", {"query": "owner of the cart"}, "Elena owns the cart service.")])
    found = world(recorded(), other).answer(action("search", {"query": "who owns the cart?"}))
    assert (found.how, found.text) == ("searched", "Elena owns the cart service.")
    alone = world(recorded()).answer(action("search", {"query": "who owns the cart?"}))
    assert (alone.how, alone.text) == ("searched", NOTHING_FOUND)


def test_the_samples_search_in_their_own_text() -> None:
    place = world(sample(queries=["keeper of Willow station", "home of Sophie"]), sample("t"))
    exact, found = (
        place.answer(action("search", {"query": query})) for query in ("home of Sophie", "keeper of Maple station")
    )
    assert (exact.how, exact.text) == ("exact", PAGES["home of Sophie"])
    assert (found.how, found.text) == ("searched", PAGES["keeper of Maple station"])


@pytest.mark.parametrize(
    ("name", "arguments", "query"),
    [
        ("search", {"query": "x y"}, "x y"),
        ("searchDocs", {"text": "x", "limit": 3, "fuzzy": True, "after": None}, "x"),
        ("kb_lookup", {"term": "x"}, "x"),
        ("HTTPSearch", {"text": "x"}, "x"),
        ("RAGQuery2", {"text": "x"}, "x"),
        ("searcher", {"text": "x"}, None),
        ("retrieve", {"text": "x", "k": "5"}, "x"),
        ("ask", {"query": "x"}, "x"),
        ("ask", {"who": "x"}, None),
        ("search_direct_flight", {"origin": "JFK", "destination": "SFO"}, None),
        ("search", {"query": "x", "filters": {"year": 1}}, None),
        ("search", {}, None),
        ("search", {"id": "42"}, None),
        ("research", {"topic": "x"}, None),
        ("cat", {"path": "/var/log/x"}, None),
    ],
)
def test_what_is_like_a_search(name: str, arguments: dict[str, Any], query: str | None) -> None:
    assert search_query(action(name, arguments)) == query


def test_a_call_whose_arguments_are_no_object_is_compared_as_text() -> None:
    run = recorded(turns=[Turn(Message("assistant", "", (tool_call("c", "run", "ls -l"),)), (Message("tool", "a b"),))])
    assert world(run).answer(action("run", " ls -l\n")).text == "a b"
    assert world(run).answer(action("run", "ls")).how == "error"


def test_numbers_are_text_where_the_grammar_cannot_tell() -> None:
    written = action("add", {"a": "1", "b": "2"})
    assert world(recorded(), grammar="qwen-xml").answer(written).text == "3"
    assert world(recorded(), grammar="hermes").answer(written).how == "error"


def test_results_belong_to_calls_by_id_else_in_order() -> None:
    calls = tuple(tool_call(id, "get", json.dumps({"id": id})) for id in ("x", "y", "z"))
    results = (Message("tool", "Y", tool_call_id="y"), Message("tool", "?"), Message("tool", "Y2", tool_call_id="y"))
    found = recorded_calls(Turn(Message("assistant", "", calls), results), "hermes")
    assert [(call.arguments, text) for call, text in found] == [('{"id": "x"}', "?"), ('{"id": "y"}', "Y\nY2")]


def test_a_finder_ranks_by_bm25() -> None:
    texts = ["red cat", "red dog red", "blue cat cat", "green"]
    finder = Finder(texts)
    assert finder.find("red", 9) == ["red dog red", "red cat"]
    assert finder.find("CAT blue", 9) == ["blue cat cat", "red cat"]
    assert finder.find("cat", 1) == ["blue cat cat"]
    assert finder.find("purple", 9) == finder.find("", 9) == finder.find("!?", 9) == []
    assert Finder([]).find("red") == Finder(["…"]).find("red") == []


def test_common_words_alone_find_nothing() -> None:
    texts = [f"the keeper of {name} station is at home" for name in ("Willow", "Maple", "Birch", "Aspen", "Cedar")]
    finder = Finder(texts)
    assert finder.find("keeper of Birch station") == [texts[2]]
    assert finder.find("the zebra quartz of jungle lagoon") == []


def test_equal_texts_are_found_once_and_ties_go_to_the_first() -> None:
    assert Finder(["a b", "a c", "a b"]).find("a", 9) == ["a b", "a c"]


def test_a_search_made_again_is_one_however_it_was_answered() -> None:
    place = world(recorded())
    for name in ("search", "web_search"):
        said = [place.answer(action(name, {"query": "keeper of the Willow"})) for _ in range(3)]
        assert [each.repeated for each in said] == [False, True, True]
    assert not place.answer(action("search", {"query": "keeper of the willow"})).repeated


def test_text_without_blanks_is_searched_by_its_characters() -> None:
    texts = ["北京是中国的首都。", "パリはフランスの首都です。", "Seoul is in Korea, 韓国."]
    finder = Finder(texts)
    assert finder.find("中国首都") == [texts[0]]
    assert finder.find("フランス") == [texts[1]]
    assert finder.find("Seoul 韓国", 9) == [texts[2]]


def test_the_fingerprint_is_of_what_can_be_found_and_was_asked() -> None:
    one, two = recorded("a"), sample("s")
    same = [Library(runs, GRAMMARS).fingerprint for runs in ([one, two], [two, one])]
    assert same[0] == same[1]
    assert Library([two], GRAMMARS).fingerprint != same[0]
    asked = recorded("a", [turn("search", {"query": "another"}, PAGES[query]) for query in PAGES])
    pages = recorded("a", [turn("search", {"query": query}, PAGES[query]) for query in PAGES])
    assert Library([asked], GRAMMARS).fingerprint != Library([pages], GRAMMARS).fingerprint
    assert set(Library([one, two], GRAMMARS).queries) == set(PAGES)
