"""A trajectory as one line of JSON and back: how the store and the bundled samples keep it.

Its id is a hash of that line without what may differ between two recordings of the same run: id, model, losses, meta.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from .trajectory import Label, Message, Probe, RecordedIds, ToolCall, Trajectory, Turn, Usage
from .values import parse_object


def tool_call(id: str, name: str, arguments: str) -> ToolCall:
    """A call whose parsed arguments follow from the raw ones."""
    return ToolCall(id, name, arguments, parse_object(arguments))


def dump(trajectory: Trajectory) -> str:
    """One line of JSON, the same for equal trajectories. Defaults and parsed arguments are left out."""
    return _line(trajectory, trajectory.id, _said(trajectory)).decode()


def sealed(trajectory: Trajectory) -> tuple[str, bytes]:
    """Its id, made from what was said, asked and judged in it, and its line under that id.

    ValueError for text or numbers that JSON has no form for.
    """
    said = _said(trajectory)
    id = f"{trajectory.source}-{_hash_of(said, trajectory)}"
    return id, _line(trajectory, id, said)


def content_hash(trajectory: Trajectory) -> str:
    """What its id is made from, as 12 hexadecimal digits, whatever its id is by now."""
    return _hash_of(_said(trajectory), trajectory)


def load(text: str) -> Trajectory:
    """The trajectory that `dump` wrote."""
    raw = json.loads(text)
    label = raw.get("label")
    return Trajectory(
        id=raw["id"],
        source=raw["source"],
        family=raw["family"],
        prefix=_messages(raw.get("prefix")),
        turns=tuple(map(_turn, raw.get("turns", ()))),
        tools=tuple(raw.get("tools", ())),
        probes=tuple(Probe(**{**probe, "candidates": tuple(probe["candidates"])}) for probe in raw.get("probes", ())),
        label=label and Label(label["scorer"], label.get("value"), _calls(label.get("gold_actions"))),
        model=raw.get("model"),
        losses=tuple(raw.get("losses", ())),
        already_compacted=raw.get("already_compacted", False),
        meta=raw.get("meta", {}),
    )


def _hash_of(said: bytes, trajectory: Trajectory) -> str:
    hashed = hashlib.sha256(b'{"id":"",')
    hashed.update(said)
    hashed.update(b',"already_compacted":true}' if trajectory.already_compacted else b"}")
    return hashed.hexdigest()[:12]


def _line(trajectory: Trajectory, id: str, said: bytes) -> bytes:
    rest: dict[str, Any] = {}
    if trajectory.model is not None:
        rest["model"] = trajectory.model
    if trajectory.losses:
        rest["losses"] = trajectory.losses
    if trajectory.already_compacted:
        rest["already_compacted"] = True
    if trajectory.meta:
        rest["meta"] = trajectory.meta
    more = b"," + _json(rest, _ordinary([trajectory.meta]))[1:] if rest else b"}"
    return b"".join((b'{"id":', _json(id, True), b",", said, more))


def _said(trajectory: Trajectory) -> bytes:
    """The members of the line from source to label, without braces."""
    label = trajectory.label
    out: dict[str, Any] = {"source": trajectory.source, "family": trajectory.family}
    out["prefix"] = list(map(_plain_message, trajectory.prefix))
    out["turns"] = list(map(_plain_turn, trajectory.turns))
    if trajectory.tools:
        out["tools"] = trajectory.tools
    if trajectory.probes:
        out["probes"] = list(map(_plain_probe, trajectory.probes))
    if label is not None:
        out["label"] = _plain_label(label)
    floats = [(turn.started_s, turn.duration_s, turn.tool_wait_s) for turn in trajectory.turns]
    ordinary = _ordinary([floats, trajectory.tools, None if label is None else label.value])
    return _json(out, ordinary)[1:-1]


def _plain_message(message: Message) -> dict[str, Any]:
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        out["tool_calls"] = list(map(_plain_call, message.tool_calls))
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        out["name"] = message.name
    if message.reasoning is not None:
        out["reasoning"] = message.reasoning
    return out


def _plain_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "name": call.name, "arguments": call.arguments}


def _plain_turn(turn: Turn) -> dict[str, Any]:
    out: dict[str, Any] = {"assistant": _plain_message(turn.assistant)}
    if turn.tools:
        out["tools"] = list(map(_plain_message, turn.tools))
    if turn.user:
        out["user"] = list(map(_plain_message, turn.user))
    if turn.started_s is not None:
        out["started_s"] = turn.started_s
    if turn.duration_s is not None:
        out["duration_s"] = turn.duration_s
    if turn.tool_wait_s is not None:
        out["tool_wait_s"] = turn.tool_wait_s
    if turn.usage is not None:
        out["usage"] = _plain_usage(turn.usage)
    if turn.ids is not None:
        out["ids"] = _plain_ids(turn.ids)
    return out


def _plain_usage(usage: Usage) -> dict[str, Any]:
    out = {
        "fresh_input_tokens": usage.fresh_input_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
    }
    return {name: tokens for name, tokens in out.items() if tokens is not None}


def _plain_ids(ids: RecordedIds) -> dict[str, Any]:
    return ({"prompt": ids.prompt} if ids.prompt else {}) | ({"output": ids.output} if ids.output else {})


def _plain_probe(probe: Probe) -> dict[str, Any]:
    return {
        "id": probe.id,
        "kind": probe.kind,
        "question": probe.question,
        "answer_prefix": probe.answer_prefix,
        "candidates": probe.candidates,
        "answer": probe.answer,
        "fact_turn": probe.fact_turn,
    }


def _plain_label(label: Label) -> dict[str, Any]:
    out: dict[str, Any] = {"scorer": label.scorer}
    if label.value is not None:
        out["value"] = label.value
    if label.gold_actions:
        out["gold_actions"] = list(map(_plain_call, label.gold_actions))
    return out


def _json(plain: Any, ordinary: bool) -> bytes:
    """Compact JSON as the standard library writes it; by orjson, which is faster, where that writes the same."""
    if ordinary:
        import orjson  # here, as the replay engine loads this file on machines without it

        try:
            return orjson.dumps(plain)
        except TypeError:  # whole numbers beyond 64 bits, nesting beyond its bound, keys that are no text
            pass
    return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _ordinary(values: Sequence[Any]) -> bool:
    """Whether all floats in JSON values are such that both write them alike, without an exponent."""
    level = list(values)
    while level:
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                below.extend(item.values())
            elif kind is list or kind is tuple:
                below.extend(item)
            elif kind is float and item and not 1e-4 <= abs(item) < 1e16:
                return False
        level = below
    return True


def _messages(raw: list[dict[str, Any]] | None) -> tuple[Message, ...]:
    return tuple(Message(**{**message, "tool_calls": _calls(message.get("tool_calls"))}) for message in raw or ())


def _calls(raw: list[dict[str, Any]] | None) -> tuple[ToolCall, ...]:
    return tuple(tool_call(call["id"], call["name"], call["arguments"]) for call in raw or ())


def _turn(raw: dict[str, Any]) -> Turn:
    usage, ids = raw.get("usage"), raw.get("ids")
    return Turn(
        assistant=_messages([raw["assistant"]])[0],
        tools=_messages(raw.get("tools")),
        user=_messages(raw.get("user")),
        started_s=raw.get("started_s"),
        duration_s=raw.get("duration_s"),
        tool_wait_s=raw.get("tool_wait_s"),
        usage=None if usage is None else Usage(**usage),
        ids=None if ids is None else RecordedIds(tuple(ids.get("prompt", ())), tuple(ids.get("output", ()))),
    )
