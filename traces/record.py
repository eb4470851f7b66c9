"""A trajectory as one line of JSON and back: how the store and the bundled samples keep it."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from .trajectory import Label, Message, Probe, RecordedIds, ToolCall, Trajectory, Turn, Usage
from .values import parse_object


def tool_call(id: str, name: str, arguments: str) -> ToolCall:
    """A call whose parsed arguments follow from the raw ones."""
    return ToolCall(id, name, arguments, parse_object(arguments))


def dump(trajectory: Trajectory) -> str:
    """One line of JSON, the same for equal trajectories. Defaults and parsed arguments are left out."""
    return json.dumps(_plain(trajectory), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


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


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        out = {}
        for f in fields(value):
            item = getattr(value, f.name)
            default = f.default_factory() if f.default_factory is not MISSING else f.default
            if f.name != "parsed" and item != default:
                out[f.name] = _plain(item)
        return out
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


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
