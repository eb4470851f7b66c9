"""SWE-agent `.traj` files: `history` as the agent kept it, `trajectory` with one step per action, `info` at the end.

Described in SWE-agent's docs/usage/trajectories.md. The history is read, which old observations never leave; where the
last `query` (from 1.1.0 on: a step's exact input) or `messages` (before: about the next input) holds less of it, the
run was compacted while it went. Without tool calls observations are user messages: they answer an action and are kept
as tool results. Whether the task was solved is never inside; a capture-the-flag challenge beside the file has the flag.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ..items import each
from ..reading import Bad, Format, Item, Record, Reject, Source
from ..trajectory import Label, Trajectory
from .chat import Told, listed, trajectory_of
from .content import text_of, thinking_of

NAME = "swe-agent"
_OWN = {"message_type", "agent", "is_demo", "thought", "action"}
_MOST_CHALLENGES = 1000


def sniff(record: Any) -> bool:
    """Whether the record has a history of messages that name their agent or their kind."""
    history = record.get("history") if isinstance(record, Mapping) else None
    return isinstance(history, list) and any(isinstance(m, Mapping) and "role" in m and _OWN & set(m) for m in history)


def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
    """Every run of the file, with the flag of the challenge that its prompt names."""
    return each(partial(_read, list(_challenges(source))), records)


def _read(challenges: Sequence[Mapping[str, Any]], record: Any) -> Trajectory:
    if not isinstance(record, Mapping) or not isinstance(record.get("history"), list):
        raise Reject("no history list")
    losses: set[str] = set()
    history = record["history"]
    demonstrated = 1 + max((n for n, raw in enumerate(history) if _is_demo(raw)), default=-1)
    messages = _messages(history, demonstrated, losses)
    if demonstrated:
        losses.add("demonstration")
    steps = [step for step in listed(record.get("trajectory")) if isinstance(step, Mapping)]
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    compacted = _saw_less(steps, messages, answers)
    if compacted:
        losses.add("already_compacted")
    challenge = next((c for c in challenges if _is_of(c, messages)), None)
    return trajectory_of(
        NAME,
        "ctf" if challenge else NAME,
        messages,
        losses=losses,
        told=_told(steps, answers, demonstrated),
        # A demonstration in one user message stands before the task; one of several messages holds answers.
        shown=demonstrated if any(m["role"] == "assistant" for m in messages[:demonstrated]) else 0,
        label=Label("flag", challenge["flag"]) if challenge else None,
        model=_model(record.get("replay_config")),
        already_compacted=compacted,
        meta=_meta(record, challenge),
    )


def _messages(history: Sequence[Any], demonstrated: int, losses: set[str]) -> list[dict[str, Any]]:
    """The history with observations as tool results."""
    messages: list[dict[str, Any]] = []
    acted = False
    for place, raw in enumerate(history):
        if not isinstance(raw, Mapping):
            raise Reject(f"history {place} is not an object")
        message = {key: raw.get(key) for key in ("role", "content", "tool_calls")}
        if message["role"] == "assistant":
            acted = place >= demonstrated and not message["tool_calls"]
            message["reasoning_content"] = thinking_of(raw.get("thinking_blocks"), losses)
        elif message["role"] == "user" and acted:
            message["role"] = "tool"
            losses.add("results_as_user")
        else:
            ids = listed(raw.get("tool_call_ids"))
            message["tool_call_id"] = ids[0] if ids else None
        messages.append(message)
    return messages


def _is_demo(raw: Any) -> bool:
    return isinstance(raw, Mapping) and raw.get("is_demo") is True


def _told(steps: Sequence[Mapping[str, Any]], answers: Sequence[int], demonstrated: int) -> list[Any]:
    """How long each action ran, where there is one step per answer."""
    if len(steps) != sum(place >= demonstrated for place in answers):
        return []
    waits = [step.get("execution_time") for step in steps]
    told = [Told(tool_wait_s=float(wait)) if isinstance(wait, float) and wait >= 0 else None for wait in waits]
    return [None] * (len(answers) - len(told)) + told


def _saw_less(
    steps: Sequence[Mapping[str, Any]], messages: Sequence[Mapping[str, Any]], answers: Sequence[int]
) -> bool:
    """Whether the last recorded input holds less than the history did. A `query` is all that was before its answer;
    `messages` are compared with as many of the history, since which input they are is not certain.
    """
    for step in range(len(steps) - 1, -1, -1):
        query, about = steps[step].get("query"), steps[step].get("messages")
        shown = query or about
        if not isinstance(shown, list) or not shown:
            continue
        place = step - len(steps) + len(answers)
        kept = messages[: answers[place]] if query and place >= 0 else messages[: len(shown)]
        return _characters(shown) < _characters(kept)
    return False


def _characters(messages: Sequence[Any]) -> int:
    return sum(len(text_of(m.get("content"), set())) for m in messages if isinstance(m, Mapping))


def _challenges(source: Source) -> Iterator[Mapping[str, Any]]:
    for name in source.names("*challenge.json")[:_MOST_CHALLENGES]:
        for found in source.records(name):
            value = found.value if isinstance(found, Record) else None
            if isinstance(value, Mapping) and all(isinstance(value.get(key), str) for key in ("name", "flag")):
                yield value


def _is_of(challenge: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> bool:
    asked = next((text_of(m.get("content"), set()) for m in messages if m["role"] == "user"), "")
    return f'"{challenge["name"]}"' in asked and str(challenge.get("description", "")) in asked


def _model(config: Any) -> str | None:
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except (ValueError, RecursionError):
            return None
    for key in ("agent", "model", "name"):
        config = config.get(key) if isinstance(config, Mapping) else None
    return config if isinstance(config, str) and config else None


def _meta(record: Mapping[str, Any], challenge: Mapping[str, Any] | None) -> dict[str, Any]:
    info = record.get("info")
    info = info if isinstance(info, Mapping) else {}
    meta: dict[str, Any] = {key: info[key] for key in ("exit_status",) if isinstance(info.get(key), str)}
    stats = info.get("model_stats")
    if isinstance(stats, Mapping) and any(stats.values()):  # all zero: a replay, nothing was counted
        meta["usage"] = dict(stats)
    if challenge and isinstance(challenge.get("category"), str):
        meta["category"] = challenge["category"]
    return meta


FORMAT = Format(
    NAME,
    "SWE-agent .traj files: history, trajectory steps and info",
    "trajectories",
    sniff,
    gather=gather,
    verified=True,
)
