"""`kvmill traces show`: one recorded run, message by message, and with `--tokens` as a model would be given it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..console import answer, guarded, table
from ..errors import UserError
from ..options import JsonOption, StoreOption

if TYPE_CHECKING:
    from .template import TextTokenizer
    from .trajectory import Message, Trajectory

_SHOWN = 160
_MODEL = "smollm2-135m"


@guarded
def show(
    context: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help="A trajectory's id; samples are there without a store.")],
    full: Annotated[bool, typer.Option("--full", help="Print messages whole.")] = False,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Count tokens, and compare what was recorded with what a template prints.")
    ] = False,
    model: Annotated[str, typer.Option("--model", help="Whose tokenizer and chat template --tokens takes.")] = _MODEL,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one recorded run, message by message."""
    import json

    from . import checks, record
    from .select import select
    from .store import Store

    trajectory, *more = select(Store.open(store), id)
    if more:
        raise UserError(f"{id!r} names several trajectories; give one id from `kvmill traces list`")
    result = json.loads(record.dump(trajectory))
    result["findings"] = [asdict(finding) for finding in checks.trajectory_findings(trajectory)]
    if tokens:
        result["tokens"] = counted(trajectory, _tokenizer(context, model)) | {"model": model}
    answer(result, as_json, lambda: _shown(trajectory, full) + ("\n" + _told(result["tokens"]) if tokens else ""))


def _tokenizer(context: typer.Context, model: str) -> TextTokenizer:
    """By the loader that the command line hands down: traces know no models."""
    load: Callable[[str], TextTokenizer] | None = context.obj
    if load is None:
        raise UserError("--tokens needs the models of kvmill's own command line: kvmill traces show ID --tokens")
    return load(model)


def counted(trajectory: Trajectory, tokenizer: TextTokenizer) -> dict[str, Any]:
    """Tokens by segment, losses of rendering, and the drift between recorded and rendered, as JSON data."""
    from .drift import drift
    from .tokens import tokenize

    found = tokenize(trajectory, tokenizer)
    segments = [{"turn": s.turn, "kind": s.kind, "tokens": len(s.ids)} for s in found.segments]
    return {"total": found.tokens, "segments": segments, "drift": asdict(drift(trajectory, tokenizer))}


def _told(tokens: dict[str, Any]) -> str:
    drift = tokens["drift"]
    counts: dict[tuple[int, str], int] = {}
    for segment in tokens["segments"]:
        counts[segment["turn"], segment["kind"]] = counts.get((segment["turn"], segment["kind"]), 0) + segment["tokens"]
    rows = [
        {
            "turn": turn["turn"],
            "user": counts.get((turn["turn"], "user"), 0),
            "assistant": counts.get((turn["turn"], "assistant"), 0),
            "tool": counts.get((turn["turn"], "tool"), 0),
            "held": turn["held_tokens"],
            "differs": _difference(turn),
        }
        for turn in drift["turns"]
    ]
    columns = {name: name for name in ("turn", "user", "assistant", "tool", "held")}
    lines = [
        f"{tokens['total']:,} tokens with {tokens['model']}, {counts.get((0, 'prefix'), 0):,} of them prefix",
        table(rows, columns | {"differs": "a full rendering differs"}),
    ]
    if drift["losses"]:
        lines.append("lost in rendering: " + ", ".join(drift["losses"]))
    if drift["calls_changed"]:
        own = f"; {drift['calls_in_own_form']} in a form of the template's own" if drift["calls_in_own_form"] else ""
        lines.append(
            f"calls printed otherwise than recorded: {drift['calls_changed']} of {drift['calls']}, "
            f"{drift['call_characters']:,} characters{own}"
        )
    if drift["ids_recorded"]:
        lines.append(
            f"recorded token ids are {'not used: ' + drift['ids_not_used'] if drift['ids_not_used'] else 'used'}"
        )
    return "\n".join(lines)


def _difference(turn: dict[str, Any]) -> str:
    said = "" if turn["said_at"] is None else f"; the recorded reply differs at its token {turn['said_at']}"
    if turn["cause"] is None:
        return said.removeprefix("; ")
    return f"at {turn['shared_tokens']}: {turn['cause']} ({turn['held']!r}, {turn['anew']!r}){said}"


def _shown(trajectory: Trajectory, full: bool) -> str:
    from . import checks
    from .rows import characters

    head = f"{trajectory.id}: {len(trajectory.turns)} turns, {characters(trajectory.messages()):,} characters"
    lines = [f"{head}, source {trajectory.source}, family {trajectory.family}"]
    if trajectory.label:
        value = trajectory.label.value
        lines.append(f"label: {trajectory.label.scorer}" + ("" if value is None else f" {value}"))
    if trajectory.losses:
        lines.append("losses: " + ", ".join(trajectory.losses))
    if trajectory.tools:
        lines.append(f"tools: {len(trajectory.tools)}")
    lines += [_said("prefix", message, full) for message in trajectory.prefix]
    for n, turn in enumerate(trajectory.turns):
        lines += [_said(f"turn {n}", message, full) for message in (*turn.user, turn.assistant, *turn.tools)]
    for probe in trajectory.probes:
        choices = ", ".join(f"*{c}*" if i == probe.answer else c for i, c in enumerate(probe.candidates))
        lines.append(f"probe {probe.id}: {probe.question} [{choices}]")
    lines += [f"{finding.where}: {finding.text}" for finding in checks.trajectory_findings(trajectory)]
    return "\n".join(lines)


def _said(place: str, message: Message, full: bool) -> str:
    said = message.content
    if message.reasoning:
        said = f"(thinking, {len(message.reasoning)} characters) {said}"
    for call in message.tool_calls:
        said += f" → {call.name}({call.arguments})"
    if not full:
        said = " ".join(said.split())
        said = said if len(said) <= _SHOWN else f"{said[:_SHOWN]}… ({len(message.content):,} characters)"
    return f"{place:8} {message.role:9} {said.strip()}"
