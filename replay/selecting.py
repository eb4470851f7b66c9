"""`kvmill.select`: what a policy keeps of one prompt, by the engine's own states on the engine's own cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from ..errors import UserError
from ..traces.tokens import TokenSegment, TokenTrajectory, recall_prompts, repeat_prompts, segment_of_ids
from .forward import Forward
from .lockstep import Alone
from .model import LoadedModel, load_model
from .policies.adaptive import Adaptive
from .policies.base import Policy, split_turns
from .policies.kvzip_state import KvZipState
from .policies.proxy import FUTURE, ProxyPolicy
from .policies.registry import parse_policy
from .segments import size_of, turns_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

KINDS = ("prefix", "user", "assistant", "tool")


class _Run(Alone):
    """One policy on one prompt."""

    @torch.inference_mode()
    def recall(self, turn: int) -> None:
        """Feed the copies of a turn, and evict nothing."""
        for branch in self.branches:
            for copy in branch.state.copies(turn):
                self._copy(branch, copy)


def select(
    model: str | LoadedModel,
    token_ids: Sequence[int],
    policy: str | Policy,
    segments: Sequence[tuple[str, int]] | None = None,
    future_ids: Sequence[int] | None = None,
) -> dict[int, list[NDArray[Any]]]:
    """What `policy` keeps of a prompt: for every compactable layer, one ascending index array per KV head.

    Without `segments` the whole prompt is one segment; else they are (kind, length) in order: `prefix` and `user` are
    kept whole, turns close after each `tool`, or after an `assistant` that none follows, and each is compacted as in
    replay, later turns being fed to what is left. Nothing is protected unless the policy's text says so. Queries of
    the `assistant` or `tool` proxy, and of `adaptive`, that the prompt does not hold come from `future_ids`, fed after
    it; other policies do not look at them. Indices count the prompt's tokens. A model given by name is loaded in
    float32, since scores that differ in the fourth digit change places in half precision. UserError on anything that
    does not fit together.
    """
    rule = _as_asked(parse_policy(policy) if isinstance(policy, str) else policy)
    loaded = load_model(model, dtype="float32") if isinstance(model, str) else model
    forward = Forward(loaded)
    trajectory, turns = _trajectory(loaded, [int(i) for i in token_ids], segments, rule, future_ids)
    run = _Run(forward, trajectory, [rule], seed=0)
    branch = run.branches[0]
    ragged = isinstance(branch.state, KvZipState) and branch.state.rule.ragged
    fed = turns_of(trajectory)
    for turn in range(turns + getattr(rule, "delay", 0)):
        for segment in fed[turn] if turn < len(fed) else ():
            for chunk in run.chunks(segment):
                run.feed(chunk)
                run.look(chunk)
        if ragged:
            run.recall(turn)
        else:
            run.compact(turn)
            run.catch_up()
    layers = [layer.index for layer in loaded.layers if layer.kind == "full"]
    count = len(token_ids)
    if ragged:
        kept = cast(KvZipState, branch.state).everywhere()
        return {layer: [_array(row.nonzero()[:, 0], count) for row in kept[slot]] for slot, layer in enumerate(layers)}
    return {layer: [_array(row, count) for row in branch.index[slot]] for slot, layer in enumerate(layers)}


def _array(rows: Tensor, count: int) -> NDArray[Any]:
    return rows[rows < count].long().sort().values.cpu().numpy()


def _as_asked(rule: Policy) -> Policy:
    """Without a protection that nobody asked for."""
    if hasattr(rule, "protect") and "protect" not in rule.given:
        return dataclasses.replace(cast(Any, rule), protect="none")
    return rule


def _trajectory(
    loaded: LoadedModel,
    ids: list[int],
    segments: Sequence[tuple[str, int]] | None,
    rule: Policy,
    future_ids: Sequence[int] | None,
) -> tuple[TokenTrajectory, int]:
    """The prompt as turns, what comes after it where the policy needs that, and how many turns the prompt has."""
    size = loaded.module.get_input_embeddings().num_embeddings
    future = [int(i) for i in future_ids or ()]
    if not ids or not all(0 <= i < size for i in (*ids, *future)):
        raise UserError(f"token_ids must be one prompt: at least one id, and all between 0 and {size - 1}")
    parts = [("assistant", len(ids))] if segments is None else [(str(kind), int(n)) for kind, n in segments]
    if sum(n for _, n in parts) != len(ids) or any(kind not in KINDS or n < 1 for kind, n in parts):
        raise UserError(f"segments must be (kind, length) with kinds {', '.join(KINDS)} and {len(ids)} tokens in all")
    out: list[TokenSegment] = []
    turn = at = 0
    for kind, n in parts:
        turn += _closes(out) and kind != "tool"
        out.append(segment_of_ids(cast(Any, kind), turn, ids[at : at + n], loaded.tokenizer))
        at += n
    turns = turn + _closes(out)
    if needed := _asks_later(rule):
        out += _what_follows(rule, needed, future, turns, loaded)
    if (count := sum(len(segment.ids) for segment in out)) > loaded.max_positions:
        raise UserError(
            f"the prompt and its future are {count} tokens, model {loaded.name} takes {loaded.max_positions}"
        )
    try:
        split_turns(size_of(segment) for segment in out)
    except ValueError as error:
        raise UserError(f"segments: {error}") from None
    prompts = {**repeat_prompts(loaded.tokenizer), **recall_prompts(loaded.tokenizer, inside=True)}
    return TokenTrajectory("prompt", "", "", tuple(out), prompts=prompts), turns


def _asks_later(rule: Policy) -> list[str]:
    """Kinds of segments after the prompt whose queries score it."""
    if isinstance(rule, Adaptive):
        return ["assistant"]
    return [proxy for proxy in rule.proxies if proxy in FUTURE] if isinstance(rule, ProxyPolicy) else []


def _closes(segments: list[TokenSegment]) -> bool:
    """Whether the next segment, unless a tool response, begins a turn."""
    return bool(segments) and segments[-1].kind in ("assistant", "tool")


def _what_follows(
    rule: Policy, needed: list[str], ids: list[int], turn: int, loaded: LoadedModel
) -> list[TokenSegment]:
    if len(needed) > 1:
        raise UserError(f"policy {rule}: future_ids are one segment, so give one of {', '.join(needed)}")
    if not ids:
        instead = ", or another proxy" if isinstance(rule, ProxyPolicy) else ""
        raise UserError(f"policy {rule}: {needed[0]} queries come after the prompt: give future_ids{instead}")
    follows = [segment_of_ids(cast(Any, needed[0]), turn, ids, loaded.tokenizer)]
    return follows if needed[0] == "assistant" else [TokenSegment("assistant", turn, ()), *follows]
