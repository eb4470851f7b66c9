"""Codex CLI rollouts: JSON lines `{timestamp, type, payload}` of `~/.codex/sessions/…/rollout-….jsonl`.

Described in the sources (codex-rs/protocol/src/protocol.rs, models.rs). `response_item` lines are what the model said
and was told; most `event_msg` lines tell the same story for the screen and are passed over, except counts of tokens
(`cached_input_tokens` are inside `input_tokens`), rollbacks and aborted turns. `compacted` cuts the run: the next one
begins with the history that replaced it. Tools are not recorded, the system prompt only by later versions. The oldest
rollouts have the items themselves as lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..items import excerpt, passed_on, refused
from ..reading import Bad, Format, Item, Record, Reject, Source
from ..trajectory import Trajectory, Usage
from .chat import listed, told_of, trajectory_of
from .clock import when
from .content import text_of
from .response_items import Conversation, is_item, usage_of

NAME = "codex"
_TYPES = ("session_meta", "turn_context", "response_item", "event_msg", "compacted")
_ITEM_PARTS = ("input_text", "output_text")


def sniff(record: Any) -> bool:
    """Whether the record is a line of a rollout."""
    if not isinstance(record, Mapping):
        return False
    if isinstance(record.get("payload"), Mapping):
        return record.get("type") in _TYPES
    return "timestamp" not in record and _is_bare(record)


def _is_bare(record: Mapping[str, Any]) -> bool:
    """Whether the record is an item on a line of its own, as the oldest rollouts have it."""
    if record.get("type") == "message":
        parts = listed(record.get("content"))
        return "role" in record and any(isinstance(p, Mapping) and p.get("type") in _ITEM_PARTS for p in parts)
    return is_item(record) and ("call_id" in record or "summary" in record)


def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
    """The runs of a rollout: one, or one for each stretch between compactions."""
    rollout = _Rollout()
    for found in records:
        if isinstance(found, Bad):
            yield passed_on(found)
            continue
        try:
            compacted = rollout.take(found)
        except Reject as error:
            yield refused(found, str(error))
            continue
        if compacted is not None:
            yield from rollout.cut()
            rollout.restart(compacted)
    yield from rollout.cut(last=True)


class _Rollout:
    """One session as it grows, line by line."""

    def __init__(self) -> None:
        self._losses: set[str] = {"no_tool_schemas"}
        self._meta: dict[str, Any] = {}
        self._subagent = False
        self._system: list[dict[str, Any]] = []
        self._model: str | None = None
        self._begun: Record | None = None
        self._said = Conversation(self._losses)
        self._kept = self._part = 0
        self._asked: list[int] = []  # places of what a person said
        self._total: Any = None
        self._ahead: bool | None = None  # whether counts come before the answer that they are of
        self._coming: Usage | None = None  # such a count

    def take(self, found: Record) -> Mapping[str, Any] | None:
        """One more line. What replaces the history, if it is replaced here. Reject if the line is broken."""
        line = found.value
        if not isinstance(line, Mapping):
            raise Reject("not an object")
        payload, kind = line.get("payload"), line.get("type")
        if not isinstance(payload, Mapping):
            if kind in _TYPES:
                raise Reject(f"a {kind} line without a payload")
            if "record_type" in line or {"id", "timestamp"} <= set(line):
                return None  # states and the header of the oldest rollouts
            if not _is_bare(line):
                raise Reject("neither a line of a rollout nor an item")
            payload, kind = line, "response_item"
        self._begun = self._begun or found
        if found.repaired:
            self._losses.add("invalid_characters")
        if kind == "session_meta":
            self._header(payload)
        elif kind == "turn_context":
            model = payload.get("model")
            self._model = self._model or (model if isinstance(model, str) and model else None)
        elif kind == "response_item":
            self._said.add(payload, at=when(line.get("timestamp")))
            if self._coming is not None and self._said.answer and self._said.answer.get("usage") is None:
                self._said.answer["usage"], self._coming = self._coming, None
            if _is_asked(self._said.messages) and self._asked[-1:] != [len(self._said.messages) - 1]:
                self._asked.append(len(self._said.messages) - 1)
        elif kind == "event_msg":
            self._event(payload)
        return payload if kind == "compacted" else None

    def _header(self, payload: Mapping[str, Any]) -> None:
        if self._meta:  # a fork repeats the header of the session it began with
            return
        base, source = payload.get("base_instructions"), payload.get("source")
        text = base.get("text") if isinstance(base, Mapping) else base
        if isinstance(text, str) and text:
            self._system = [{"role": "system", "content": text}]
        agent = source.get("subagent") if isinstance(source, Mapping) else None
        spawned = agent.get("thread_spawn") if isinstance(agent, Mapping) else None
        parent = (spawned if isinstance(spawned, Mapping) else payload).get("parent_thread_id")
        self._subagent = agent is not None or isinstance(parent, str)
        named = (("session", payload.get("id")), ("version", payload.get("cli_version")), ("parent", parent))
        self._meta = {key: value for key, value in named if isinstance(value, str) and value}

    def _event(self, payload: Mapping[str, Any]) -> None:
        if payload.get("type") == "token_count":
            self._count(payload.get("info"))
        elif payload.get("type") == "turn_aborted":
            self._losses.add("interrupted")
            self._said.close()
        elif payload.get("type") == "thread_rolled_back":
            self._roll_back(payload.get("num_turns"))

    def _count(self, info: Any) -> None:
        """Tokens of one call: the last, or the next in rollouts whose first count comes before any answer. A count is
        sent again when only rate limits changed.
        """
        total = info.get("total_token_usage") if isinstance(info, Mapping) else None
        if not isinstance(total, Mapping) or total == self._total:
            return
        last = info.get("last_token_usage")
        usage = usage_of(last if isinstance(last, Mapping) and last else _difference(total, self._total))
        self._total = total
        answer = self._said.answer
        if self._ahead is None:
            self._ahead = answer is None and bool(self._said.messages)
        if self._ahead:
            lost, self._coming = self._coming is not None, usage
        elif answer is not None and answer.get("usage") is None:
            lost, answer["usage"] = False, usage
        else:
            lost = True
        if lost:
            self._losses.add("missing_calls")  # counted, but nothing of it is recorded (a summary, a retry)
        self._said.close()

    def _roll_back(self, turns: Any) -> None:
        if type(turns) is int and 0 < turns <= len(self._asked):
            del self._said.messages[self._asked[-turns] :]
            del self._asked[-turns:]
            self._said.forget()
            self._losses.add("branches_dropped")

    def cut(self, last: bool = False) -> Iterator[Item]:
        """What was said since the last cut, as a run. Nothing is no run, unless it is all there is."""
        said = any(message["role"] == "assistant" for message in self._said.messages[self._kept :])
        if self._begun is None or (not said and not (last and not self._part)):
            return
        try:
            yield Item(self._begun.place, self._trajectory())
        except Reject as error:
            yield Item(self._begun.place, None, str(error), excerpt(self._begun.value))

    def restart(self, compacted: Mapping[str, Any]) -> None:
        """Begin anew with the history that a compaction left, or with its summary where that is not recorded."""
        self._losses |= {"already_compacted", "missing_calls"}
        self._part += 1
        self._coming = None
        self._said, self._asked = Conversation(self._losses), []
        history, summary = compacted.get("replacement_history"), compacted.get("message")
        if isinstance(history, list):
            self._said.extend(item for item in history if isinstance(item, Mapping))
        elif isinstance(summary, str) and summary:
            self._said.add({"role": "user", "content": summary})
        self._said.forget()
        self._kept = len(self._said.messages)

    def _trajectory(self) -> Trajectory:
        losses = set(self._losses) | (set() if self._system else {"no_system_prompt"})
        messages = [*self._system, *self._said.chat()]
        return trajectory_of(
            NAME,
            f"{NAME}-subagent" if self._subagent else NAME,
            messages,
            losses=losses,
            told=told_of(messages),
            shown=len(self._system) + self._kept if self._kept else 0,
            model=self._model,
            already_compacted="already_compacted" in losses,
            meta=self._meta | ({"part": self._part} if self._part else {}),
        )


def _difference(total: Mapping[str, Any], before: Any) -> dict[str, Any]:
    """What was added to a count of all calls since it was told last."""
    known = before if isinstance(before, Mapping) else {}
    return {
        name: value - known.get(name, 0) if type(known.get(name, 0)) is int else value
        for name, value in total.items()
        if type(value) is int
    }


def _is_asked(messages: list[dict[str, Any]]) -> bool:
    """Whether a person said the last message: what the program adds stands in tags."""
    last = messages[-1] if messages else {"role": None}
    return last["role"] == "user" and not text_of(last.get("content"), set()).lstrip().startswith("<")


FORMAT = Format(
    NAME,
    "Codex CLI rollouts: JSON lines of session_meta, response_item and event_msg",
    "trajectories",
    sniff,
    gather=gather,
)
