"""A trajectory as one line of JSON and back: how the store and the bundled samples keep it.

Its id is a hash of that line without what may differ between two recordings of the same run: id, model, losses, meta.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, fields
from operator import attrgetter
from typing import Any

import orjson

from .trajectory import Label, Message, Probe, RecordedIds, ToolCall, Trajectory, Turn, Usage
from .values import parse_object

_NOUNS = (Label, Message, Probe, RecordedIds, ToolCall, Trajectory, Turn, Usage)
_LEFT_OUT = "parsed"  # follows from the raw arguments
_COMPACTED = "already_compacted"
_NOT_SAID = ("id", "model", "losses", "meta")


def tool_call(id: str, name: str, arguments: str) -> ToolCall:
    """A call whose parsed arguments follow from the raw ones."""
    return ToolCall(id, name, arguments, parse_object(arguments))


def dump(trajectory: Trajectory) -> str:
    """One line of JSON, the same for equal trajectories. Defaults and parsed arguments are left out."""
    return _json(_plain(trajectory)).decode()


def sealed(trajectory: Trajectory) -> tuple[str, bytes]:
    """Its id, made from what was said, asked and judged in it, and its line under that id."""
    plain = _plain(trajectory)
    # Source to label, then what else there is: written once for the hash and for the line.
    said = _json({key: item for key, item in plain.items() if key not in (*_NOT_SAID, _COMPACTED)})[1:-1]
    more = b',"already_compacted":true' if trajectory.already_compacted else b""
    digest = hashlib.sha256(b'{"id":"",' + said + more + b"}").hexdigest()
    id = f"{trajectory.source}-{digest[:12]}"
    rest = _json({key: plain[key] for key in ("model", "losses", _COMPACTED, "meta") if key in plain})[1:-1]
    return id, b'{"id":' + _json(id) + b"," + said + (b"," if rest else b"") + rest + b"}"


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


def _getters() -> dict[type, tuple[Any, list[tuple[str, Any]]]]:
    """Per noun: all its values at once, and the name and default of each."""
    out: dict[type, tuple[Any, list[tuple[str, Any]]]] = {}
    for noun in _NOUNS:
        named = [(f.name, f.default_factory() if f.default_factory is not MISSING else f.default) for f in fields(noun)]
        named = [(name, default) for name, default in named if name != _LEFT_OUT]
        out[noun] = (attrgetter(*(name for name, _ in named)), named)
    return out


_GETTERS = _getters()


def _plain(value: Any) -> Any:
    found = _GETTERS.get(type(value))
    if found is not None:
        values, named = found[0](value), found[1]
        return {
            name: _plain(item) if type(item) in _GETTERS or type(item) is tuple else item
            for item, (name, default) in zip(values, named, strict=True)
            if item != default
        }
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _json(plain: Any) -> bytes:
    """Compact JSON as the standard library writes it, and faster where orjson writes the same."""
    if _ordinary(plain):
        try:
            return orjson.dumps(plain)
        except TypeError:  # whole numbers beyond 64 bits, nesting beyond its bound, keys that are no text
            pass
    return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _ordinary(plain: Any) -> bool:
    """Whether all floats are such that both write them without an exponent."""
    level = [plain]
    while level:
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                below.extend(item.values())
            elif kind is list:
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
