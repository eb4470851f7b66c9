"""A second replay, written from the definitions alone: one head, one token list and one turn at a time, in float64.

It shares nothing with the engine but the weights and the tokens: its own decoder, cache, scores and evictions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from kvmill.traces.tokens import ProbeTokens, TokenSegment


class PlainLlama:
    """The Llama decoder over caches that are lists (by layer) of lists (by KV head) of rows."""

    def __init__(self, module: Any) -> None:
        c = module.config
        self.layers, self.heads, self.kv_heads, self.eps = (
            c.num_hidden_layers,
            c.num_attention_heads,
            c.num_key_value_heads,
            c.rms_norm_eps,
        )
        self.group, self.dim = self.heads // self.kv_heads, c.hidden_size // self.heads
        self.weights = {name: tensor.double() for name, tensor in module.state_dict().items()}
        self.frequencies = 1e4 ** (-torch.arange(0, self.dim, 2).double() / self.dim)

    def feed(self, ids: Sequence[int], position: int, cache: Cache) -> tuple[Tensor, list[Tensor]]:
        """Append the tokens; log-probabilities (L, vocabulary), and by layer the turned queries (heads, L, D)."""
        x = self.weights["model.embed_tokens.weight"][torch.tensor(ids)]
        queries: list[Tensor] = []
        for layer in range(self.layers):
            name = f"model.layers.{layer}."
            normed = self._norm(x, f"{name}input_layernorm.weight")
            q, k, v = (self._heads(normed, f"{name}self_attn.{part}_proj.weight") for part in "qkv")
            angles = torch.arange(position, position + len(ids))[:, None] * self.frequencies
            q, k = self._turned(q, angles), self._turned(k, angles)
            queries.append(q)
            said = []
            for head in range(self.heads):
                kv = head // self.group
                if head % self.group == 0:
                    cache[layer][kv].append(range(position, position + len(ids)), k[kv], v[kv])
                keys, values = cache[layer][kv].keys, cache[layer][kv].values
                logits = q[head] @ keys.T / math.sqrt(self.dim)
                hidden = torch.ones_like(logits, dtype=torch.bool).triu(len(keys) - len(ids) + 1)
                said.append(logits.masked_fill(hidden, -math.inf).softmax(-1) @ values)
            x = x + linear(torch.cat(said, -1), self.weights[f"{name}self_attn.o_proj.weight"])
            normed = self._norm(x, f"{name}post_attention_layernorm.weight")
            gate, up, down = (self.weights[f"{name}mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
            x = x + linear(silu(linear(normed, gate)) * linear(normed, up), down)
        out = linear(self._norm(x, "model.norm.weight"), self.weights["lm_head.weight"])
        return out.log_softmax(-1), queries

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weights[name]

    def _heads(self, x: Tensor, name: str) -> Tensor:
        return linear(x, self.weights[name]).unflatten(-1, (-1, self.dim)).transpose(0, 1)

    def _turned(self, x: Tensor, angles: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        return torch.cat([left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()], -1)


@dataclass
class Held:
    """The rows of one KV head and the logical tokens they are of."""

    tokens: list[int]
    keys: Tensor
    values: Tensor

    def append(self, tokens: Sequence[int], keys: Tensor, values: Tensor) -> None:
        self.tokens = [*self.tokens, *tokens]
        self.keys, self.values = torch.cat([self.keys, keys]), torch.cat([self.values, values])

    def keep(self, wanted: Callable[[int], bool]) -> None:
        rows = [row for row, token in enumerate(self.tokens) if wanted(token)]
        self.tokens = [self.tokens[row] for row in rows]
        self.keys, self.values = self.keys[rows], self.values[rows]


Cache = list[list[Held]]


@dataclass
class PlainRun:
    """One policy's past: its cache, where every segment began, and the queries that its tokens asked."""

    model: PlainLlama
    cache: Cache = field(init=False)
    fed: list[tuple[TokenSegment, int, list[Tensor]]] = field(default_factory=list)
    position: int = 0
    peak: int = 0

    def __post_init__(self) -> None:
        none = torch.zeros(0, self.model.dim, dtype=torch.float64)
        self.cache = [[Held([], none, none) for _ in range(self.model.kv_heads)] for _ in range(self.model.layers)]

    def feed(self, segment: TokenSegment) -> Tensor:
        """Log-probabilities after each token of a recorded segment."""
        found, queries = self.model.feed(segment.ids, self.position, self.cache)
        self.fed.append((segment, self.position, queries))
        self.position += len(segment.ids)
        self.peak = max(self.peak, len(self.cache[0][0].tokens))
        return found

    def evict(self, turn: int, delay: int, keep: float, sources: Sequence[str]) -> None:
        """`te` at the close of a turn: of each segment of turn − delay the tokens that its sources read most."""
        for segment, begin, own in self.fed:
            count = len(segment.ids)
            m = max(1, math.ceil(keep * count), len(segment.structural))
            if segment.turn != turn - delay or segment.kind not in ("assistant", "tool") or m >= count:
                continue
            for layer in range(self.model.layers):
                asked = [self._asked(layer, source, segment, own, turn) for source in sources]
                for kv, held in enumerate(self.cache[layer]):
                    rows = [held.tokens.index(token) for token in range(begin, begin + count)]
                    heads = slice(kv * self.model.group, (kv + 1) * self.model.group)
                    kept = set(segment.structural)
                    free = m - len(kept)
                    for number, queries in enumerate(asked):
                        logits = queries[heads].flatten(0, 1) @ held.keys[rows].T / math.sqrt(self.model.dim)
                        score = logits.softmax(-1).square().mean(0).sqrt()
                        goal = len(segment.structural) + free * (number + 1) // len(asked)
                        best = [at for at in score.argsort(descending=True).tolist() if at not in kept]
                        kept |= set(best[: goal - len(kept)])
                    held.keep(lambda token: not begin <= token < begin + count or token - begin in kept)  # noqa: B023

    def _asked(self, layer: int, source: str, segment: TokenSegment, own: list[Tensor], now: int) -> Tensor:
        if source == "boundary":
            return own[layer][:, len(segment.ids) - segment.closing :]
        return torch.cat([q[layer] for s, _, q in self.fed if s.kind == source and segment.turn < s.turn <= now], 1)

    def window(self, keep: float) -> None:
        """`sink_window` at the close of a turn: P, users' tokens, and of the rest the last ones up to the budget."""
        every = [(s, begin + at) for s, begin, _ in self.fed for at in range(len(s.ids))]
        always = {token for s, token in every if s.kind in ("prefix", "user")}
        users = sum(s.kind == "user" for s, _ in every)
        beyond = sum(s.kind != "prefix" for s, _ in every)
        others = [token for _, token in every if token not in always]
        last = others[len(others) - max(0, max(1, math.ceil(keep * beyond)) - users) :]
        for layer in self.cache:
            for held in layer:
                held.keep(lambda token: token in always or token in last)

    def answers(self, probe: ProbeTokens) -> list[float]:
        """The log-likelihood of every candidate after the stem, from the cache as it is."""
        out: list[float] = []
        for candidate in probe.candidates:
            cache = [[Held(h.tokens, h.keys, h.values) for h in layer] for layer in self.cache]
            found, _ = self.model.feed([*probe.stem, *candidate[:-1]], self.position, cache)
            rows = range(len(probe.stem) - 1, len(found))
            out.append(sum(float(found[row, token]) for row, token in zip(rows, candidate, strict=True)))
        return out
