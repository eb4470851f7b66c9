"""OpenHands runs in four shapes.

- version 0: a list of events, or a row of an evaluation whose `history` is one;
- V1 SDK: a folder with `base_state.json` and one file per event in `events/`, or the events in one list;
- logs of model calls: `{messages, response, kwargs, context_window, latency_sec}`, one file per call, with
  `raw_messages` beside `messages` for models that saw tools as text;
- bare message lists are `openai-chat`.

A condensation forgets events: the run is cut there, and what the model saw afterwards begins with what was kept and
the summary. The condenser's own calls are in no event (`missing_calls`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..chain import CLOCK_DIGITS, ONE_CALL, START
from ..items import each, excerpt, passed_on, refused
from ..reading import Bad, Format, Item, Record, Reject, Source
from ..trajectory import Trajectory, Usage
from .atif_metrics import Recorded
from .chat import Told, listed, told_of, tools_of, trajectory_of
from .counts import count, finite
from .openai_chat import usage_of
from .openhands_events import Said, branch, chat_of, condensed, is_condensation, is_event, said_by, schemas

NAME = "openhands"
_MOST_CUTS = 1000


def sniff(record: Any) -> bool:
    """Whether the record is an event, a list of them, a log of a call or a conversation's state."""
    return is_event(record) or _events_of(record) is not None or _is_log(record) or _is_state(record)


def _events_of(record: Any) -> list[Any] | None:
    """The events that one record holds: as a list, as an evaluation's history, or as `{"trajectory": […]}`."""
    if isinstance(record, Mapping):
        record = record.get("history") or record.get("trajectory") or record.get("events")
    if isinstance(record, list) and record and is_event(record[0]):
        return record
    return None


def _is_log(record: Any) -> bool:
    return (
        isinstance(record, Mapping)
        and isinstance(record.get("messages"), list)
        and isinstance(record.get("response"), Mapping)
        and {"kwargs", "latency_sec"} <= set(record)
    )


def _is_state(record: Any) -> bool:
    agent = record.get("agent") if isinstance(record, Mapping) else None
    return isinstance(agent, Mapping) and "llm" in agent and ("persistence_dir" in record or "workspace" in record)


def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
    """The runs of a file: its events are one run; a state is read with the events in its folder."""
    run = _Run({})
    for found in records:
        if isinstance(found, Bad):
            yield passed_on(found)
        elif is_event(found.value):
            yield from run.take(found)
        elif (events := _events_of(found.value)) is not None:
            yield from _whole(found, events, {})
        elif _is_state(found.value):
            yield from _beside(found, source)
        else:
            yield from each(_logged, [found])
    yield from run.end()


def _whole(found: Record, events: list[Any], state: Mapping[str, Any]) -> Iterator[Item]:
    """The run of events that are there all at once: of one that was rewound, the branch of its leaf."""
    taken, dropped = branch(events, state.get("leaf_event_id"))
    run = _Run(state, dropped)
    for event in taken:
        yield from run.take(Record(found.place, event, found.repaired))
    yield from run.end()


def _beside(found: Record, source: Source) -> Iterator[Item]:
    names = source.names("events/*.json")
    if not names:
        yield refused(found, "a conversation's state without its events: there is no events folder beside it")
        return
    events: list[Any] = []
    repaired = found.repaired
    for name in names:
        for event in source.records(name):
            if isinstance(event, Bad):
                yield Item(found.place, None, f"{name}: {event.reason}", event.raw)
            else:
                events.append(event.value)
                repaired = repaired or event.repaired
    yield from _whole(Record(found.place, found.value, repaired), events, found.value)


class _Run:
    """One run, grown event by event and cut at every condensation."""

    def __init__(self, state: Mapping[str, Any], dropped: int = 0) -> None:
        self._view: list[Said] = []
        self._losses: set[str] = {f"branches_dropped:{dropped}"} if dropped else set()
        self._tools: Any = None
        self._state = state
        self._model, self._usage = _recorded(state)
        self._begun: Record | None = None
        self._taken = 0
        self._kept = self._part = 0
        self._ids = Recorded()
        self._answer = -1  # the place of the last answer in the view

    def take(self, found: Record) -> Iterator[Item]:
        """One more event; what it makes of the run so far if it cuts it."""
        if not is_event(found.value):
            yield refused(found, "not an event of OpenHands")
            return
        self._begun = self._begun or found
        self._taken += 1
        if found.repaired:
            self._losses.add("invalid_characters")
        event = found.value
        if is_condensation(event):
            if self._part == _MOST_CUTS:
                yield refused(found, f"the run was condensed {_MOST_CUTS} times before: it is not cut here")
                return
            if self._answer >= self._kept:
                yield from self._cut()
            self._view = condensed(self._view, event)
            self._kept, self._answer, self._ids = len(self._view), -1, Recorded()
            self._part += 1
            self._losses |= {"already_compacted", "missing_calls"}
        elif event.get("kind") == "TokenEvent":
            self._take_ids(event)
        else:
            self._tools = schemas(event, self._losses) or self._tools
            self._model = self._model or _model_of(event)
            said = said_by(event, self._losses)
            if said is not None:
                self._answer = len(self._view) if said.message["role"] == "assistant" else self._answer
                self._view.append(said)

    def end(self) -> Iterator[Item]:
        """What is left when the file ends."""
        if self._begun is None:
            return
        if self._taken == 1:
            yield refused(
                self._begun, "a single event: give the conversation's base_state.json, or all events in a list"
            )
            return
        if self._answer >= self._kept or not self._part:
            yield from self._cut()

    def _cut(self) -> Iterator[Item]:
        assert self._begun is not None
        try:
            yield Item(self._begun.place, self._trajectory())
        except Reject as error:
            yield Item(self._begun.place, None, str(error), excerpt(self._begun.value))

    def _trajectory(self) -> Trajectory:
        losses = set(self._losses) | ({"ids_not_append_only"} if self._ids.broken else set())
        messages = chat_of(self._view, self._usage, losses)
        kept = len(chat_of(self._view[: self._kept], {}, set()))
        id = self._state.get("id")
        return trajectory_of(
            NAME,
            NAME,
            messages,
            tools=tools_of(self._tools),
            losses=losses,
            told=told_of(messages),
            shown=kept,
            model=self._model,
            already_compacted="already_compacted" in losses,
            meta=({"session": id} if isinstance(id, str) else {}) | ({"part": self._part} if self._part else {}),
        )

    def _take_ids(self, event: Mapping[str, Any]) -> None:
        """Ids of the last answer, which they follow."""
        ids = self._ids.take({**event, "completion_token_ids": event.get("response_token_ids")})
        if self._answer >= self._kept and ids is not None:
            said = self._view[self._answer]
            self._view[self._answer] = replace(said, message={**said.message, "ids": ids})


def _model_of(event: Mapping[str, Any]) -> str | None:
    """The model that an event of version 0 names with its answer."""
    called = event.get("tool_call_metadata")
    response = called.get("model_response") if isinstance(called, Mapping) else None
    model = response.get("model") if isinstance(response, Mapping) else None
    return model if isinstance(model, str) and model else None


def _recorded(state: Mapping[str, Any]) -> tuple[str | None, dict[str, Usage]]:
    """The model, and usage by answer: prompt tokens hold what was read from and written to the cache (LiteLLM)."""
    agent, stats = state.get("agent"), state.get("stats")
    llm = agent.get("llm") if isinstance(agent, Mapping) else None
    model = llm.get("model") if isinstance(llm, Mapping) else None
    uses = stats.get("usage_to_metrics") if isinstance(stats, Mapping) else None
    usage: dict[str, Usage] = {}
    for metrics in uses.values() if isinstance(uses, Mapping) else ():
        for row in listed(metrics.get("token_usages")) if isinstance(metrics, Mapping) else ():
            if isinstance(row, Mapping) and isinstance(row.get("response_id"), str):
                names = ("prompt_tokens", "cache_read_tokens", "cache_write_tokens", "completion_tokens")
                given, read, written, output = (count(row.get(name)) for name in names)
                fresh = None if given is None else max(0, given - (read or 0) - (written or 0))
                usage[row["response_id"]] = Usage(fresh, read, written, output)
    return (model if isinstance(model, str) and model else None), usage


def _logged(record: Any) -> Trajectory:
    """One logged call."""
    if not isinstance(record, Mapping) or not isinstance(record.get("messages"), list):
        raise Reject("neither events nor a log of a model call")
    losses: set[str] = set()
    messages = record["messages"]
    if isinstance(record.get("raw_messages"), list):
        messages = record["raw_messages"]
        losses.add("tools_as_text")
    response = record.get("response")
    choices = listed(response.get("choices")) if isinstance(response, Mapping) else []
    answer = choices[0].get("message") if choices and isinstance(choices[0], Mapping) else None
    if not isinstance(response, Mapping) or not isinstance(answer, Mapping):
        raise Reject("the response holds no message")
    asked = sum(isinstance(m, Mapping) and m.get("role") == "assistant" for m in messages)
    model, took, ended = response.get("model"), finite(record.get("latency_sec")), finite(record.get("timestamp"))
    began = None if took is None or ended is None else round(ended - took, CLOCK_DIGITS)
    return trajectory_of(
        NAME,
        NAME,
        [*messages, {"role": "assistant", **answer}],
        tools=tools_of(record.get("tools")),
        losses=losses,
        told=[*[None] * asked, Told(usage_of(response.get("usage")), began, took)],
        model=model if isinstance(model, str) and model else None,
        meta={ONE_CALL: True} | ({} if began is None else {START: began}),
    )


FORMAT = Format(
    NAME,
    "OpenHands: events of version 0, a V1 SDK conversation folder, or logs of model calls",
    "trajectories",
    sniff,
    gather=gather,
    verified=True,
)
