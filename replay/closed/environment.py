"""What answers a model's calls: the tool results that were recorded. Nothing is carried out, ever.

A call that was recorded in the same trajectory (same tool, equal arguments as JSON values) has its recorded result. A
search-like call is answered by the results of the whole trace set that fit its words (`finder`). Any other call is an
error that names the tools there are.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...traces.trajectory import Trajectory, Turn
from ..actions.action import Action
from ..actions.choose import GRAMMARS
from ..judges.calls import spelled
from ..judges.verdict import Call
from .finder import Finder

How = Literal["exact", "searched", "error"]
NOTHING_FOUND = "No results."
TOP = 1  # results of a search: most tools return a list of hits as one text
_SEARCHES = {"search", "query", "retrieve", "retrieval", "lookup"}
_QUERIES = {"query", "q", "question", "keywords", "search", "search_query", "search_term", "search_terms"}
_NAME_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_LITERALS = {"true", "false", "null", "none"}
_UNTYPED = {"qwen-xml"}  # grammars in which a number cannot be told from its text
_LONGEST_NAME = 60


def search_query(call: Call) -> str | None:
    """The query of a search-like call, None for any other call. This is the rule, and the only place of it.

    Search-like: exactly one argument is free text (it has a letter and is no literal), no argument is a list or an
    object, and either the tool's name has a word such as search, query, retrieve or lookup in it, or that argument is
    called query, q, question, keywords or the like.
    """
    arguments = call.parsed or {}
    if any(isinstance(value, (Mapping, list, tuple)) for value in arguments.values()):
        return None
    free = {key: value for key, value in arguments.items() if isinstance(value, str) and _is_free(value)}
    if len(free) != 1:
        return None
    ((key, query),) = free.items()
    named = {part.lower() for part in _NAME_PART.findall(call.name)}
    return query if named & _SEARCHES or key.lower() in _QUERIES else None


def _is_free(text: str) -> bool:
    return any(letter.isalpha() for letter in text) and text.strip().lower() not in _LITERALS


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call got. `query` is set for search-like calls, however they were answered; `repeated`: made before."""

    call: Call
    text: str
    how: How
    query: str | None
    repeated: bool


def recorded_calls(turn: Turn, grammar: str) -> list[tuple[Call, str]]:
    """The calls of a recorded turn with their results; calls whose result was not recorded are left out.

    They are the message's own tool calls or, where it has none, those that the grammar reads in its text. Results
    belong to calls by their id, else in order.
    """
    said = turn.assistant
    calls: Sequence[Call] = said.tool_calls or GRAMMARS[grammar](said.content)
    ids = [call.id for call in said.tool_calls]
    by_id: dict[str, list[str]] = defaultdict(list)
    others: list[str] = []
    for result in turn.tools:
        if result.tool_call_id in ids:
            by_id[str(result.tool_call_id)].append(result.content)
        else:
            others.append(result.content)
    waiting = iter(others)
    found: list[tuple[Call, str]] = []
    for number, call in enumerate(calls):
        own = by_id.get(ids[number]) if ids else None
        text = "\n".join(own) if own else next(waiting, None)
        if text is not None:
            found.append((call, text))
    return found


class Library:
    """Everything that was recorded in a set of trajectories, for searching. `grammars` by source read the calls."""

    def __init__(self, trajectories: Sequence[Trajectory], grammars: Mapping[str, str], top: int = TOP) -> None:
        texts = sorted({result.content for each in trajectories for turn in each.turns for result in turn.tools})
        self.top = top
        self.finder = Finder(texts)
        self.queries = tuple(_queries(trajectories, grammars))
        said = "\0".join([*texts, "\0", *sorted(self.queries)])  # queries tell how rare a repeat is
        self.fingerprint = hashlib.sha256(said.encode(errors="surrogatepass")).hexdigest()[:16]


def _queries(trajectories: Sequence[Trajectory], grammars: Mapping[str, str]) -> Iterator[str]:
    for trajectory in trajectories:
        for turn in trajectory.turns:
            for call, _ in recorded_calls(turn, grammars[trajectory.source]):
                if query := search_query(call):
                    yield query


class Environment:
    """Answers the calls of one run of a trajectory whose first `seeds` turns were fed as recorded."""

    def __init__(self, trajectory: Trajectory, library: Library, grammar: str, seeds: int = 0) -> None:
        self._library, self._untyped = library, grammar in _UNTYPED
        self._recorded: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._made: Counter[tuple[str, str]] = Counter()
        self.seeded: list[Call] = []
        names = [_name_of(schema) for schema in trajectory.tools]
        for number, turn in enumerate(trajectory.turns):
            for call, text in recorded_calls(turn, grammar):
                key = self._key(call)
                self._recorded[key].append(text)
                names.append(call.name)
                if number < seeds:
                    self._made[key] += 1
                    self.seeded.append(call)
        self.tools = tuple(dict.fromkeys(name for name in names if name))

    def answer(self, call: Call) -> Answer:
        """What the call gets. Equal calls get the results recorded for them in order, then the last one again.

        A tool is known if the trajectory declares it or called it; a search by a tool that is not known finds nothing
        but the error, which names those that are.
        """
        key, query = self._key(call), search_query(call)
        before = self._made[key]
        self._made[key] += 1
        if results := self._recorded.get(key):
            return Answer(call, results[min(before, len(results) - 1)], "exact", query, before > 0)
        if call.name not in self.tools:
            text = f"Error: there is no tool {call.name[:_LONGEST_NAME]!r}. {self._names()}"
            return Answer(call, text, "error", query, before > 0)
        if query is None:
            text = f"Error: {call.name} has no result for these arguments. {self._names()}"
            return Answer(call, text, "error", None, before > 0)
        found = self._library.finder.find(query, self._library.top)
        return Answer(call, "\n\n".join(found) or NOTHING_FOUND, "searched", query, before > 0)

    def unreadable(self) -> str:
        """What a message gets that is neither a call nor an answer."""
        return f"Error: this is neither a call that can be read nor an answer. {self._names()}"

    def _names(self) -> str:
        return f"Tools: {', '.join(self.tools)}." if self.tools else "There are no tools."

    def _key(self, call: Call) -> tuple[str, str]:
        if self._untyped and call.parsed is not None:
            call = Action(call.name, call.arguments, {key: _as_text(value) for key, value in call.parsed.items()})
        return spelled(call)


def _as_text(value: Any) -> Any:
    return value if isinstance(value, (str, Mapping, list, tuple)) else json.dumps(value)


def _name_of(schema: Mapping[str, Any]) -> str:
    function = schema.get("function", schema)
    return str(function.get("name") or "") if isinstance(function, Mapping) else ""
