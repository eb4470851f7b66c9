"""A global normaliser: the weights of the model's own attention, queries of every source."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from families import family_model
from proxies import begun, close, feed
from tiny import trajectory
from torch import Tensor

from kvmill.replay.lockstep import Lockstep
from kvmill.replay.policies.proxy_state import ProxyState
from kvmill.replay.policies.states import Chunk


class Watch:
    """Every query that the state was shown: its weights over the whole cache in float64, by logical token."""

    def __init__(self, step: Lockstep, state: ProxyState) -> None:
        self.group = step.forward.shape.group
        self.seen: dict[tuple[object, ...], list[list[tuple[Tensor, Tensor]]]] = {}
        self.compared = 0
        branch, observe, observe_copy = step.branches[1], state.observe, state.observe_copy
        begin, select, now = state.begin, state.select, [None]

        def on_begin(chunk: Chunk) -> bool:
            now[0] = chunk  # type: ignore[call-overload]
            return begin(chunk)

        def on_observe(layer, sight, index):
            chunk = now[0]
            assert chunk is not None
            own = range(chunk.first, chunk.first + sight.queries.shape[1])
            for at, weights in self.weights(sight, index, own):
                s = chunk.segment
                self.note(("future", s.kind, s.turn), layer, weights)
                if chunk.begin + at >= len(s.ids) - s.closing:
                    self.note(("own", s.kind, s.turn), layer, weights)
            observe(layer, sight, index)

        def on_copy(copy, begin, layer, sight):
            index, fed = branch.index[layer], sight.keys.shape[1] - branch.index.shape[2]
            turns = [s for s in step.trajectory.segments if s.turn == copy.key and s.kind in ("assistant", "tool")]
            names = [None] * 3 + [s for s in turns for _ in s.ids]
            for at, weights in self.weights(sight, index, range(-fed, 0)):
                if (s := names[begin + at]) is not None:
                    self.note(("copy", s.kind, s.turn), layer, weights)
            observe_copy(copy, begin, layer, sight)

        def on_select(sources, view, keep, forced):
            asked = [s for s in state.proxy.proxies if state.source_rows(s, view) is not None]
            assert len(asked) == len(sources)
            for source, rows in zip(asked, sources, strict=True):
                want = self.score(source, view)
                torch.testing.assert_close(state.score(rows, view).double(), want, atol=2e-6, rtol=2e-5)
                self.compared += 1
            return select(sources, view, keep, forced)

        state.begin, state.observe, state.observe_copy, state.select = on_begin, on_observe, on_copy, on_select

    def weights(self, sight, index, own) -> Iterator[tuple[int, list[tuple[Tensor, Tensor]]]]:
        queries, keys, scaling, bias = sight.queries, sight.keys, sight.scaling, sight.bias
        length, rows = queries.shape[1], keys.shape[1]
        for at in range(length):
            out = []
            for head in range(queries.shape[0]):
                kv = head // self.group
                tokens = torch.cat([index[kv].long(), torch.tensor(own)])
                logits = keys[kv].double() @ queries[head, at].double() * scaling
                logits = logits if bias is None else logits + bias[kv].double()
                seen = rows - length + at + 1
                out.append((tokens[:seen], logits[:seen].softmax(0)))
            yield at, out

    def note(self, key: tuple[object, ...], layer: int, weights: list[tuple[Tensor, Tensor]]) -> None:
        self.seen.setdefault((layer, *key), []).append(weights)

    def score(self, source: str, view) -> Tensor:
        """sqrt(mean w²) of every token of the segment, (H_kv, n)."""
        kind, turn, n = view.segment.kind, view.segment.turn, view.keys.shape[1]
        keys = [("future", source, later) for later in range(turn + 1, view.now + 1)]
        if source in ("boundary", "repeat"):
            keys = [("own" if source == "boundary" else "copy", kind, turn)]
        squares, count = torch.zeros(view.keys.shape[0], n, dtype=torch.float64), 0
        for query in (q for key in keys for q in self.seen.get((view.layer, *key), [])):
            for head, (tokens, weights) in enumerate(query):
                inside = (tokens >= view.first) & (tokens < view.first + n)
                squares[head // self.group, tokens[inside] - view.first] += weights[inside] ** 2
            count += self.group
        return (squares / count).sqrt()


@pytest.mark.parametrize(
    "policy",
    [
        "te(proxy=assistant+boundary+repeat,keep=0.3,normaliser=global)",
        "te(proxy=tool,delay=2,keep=0.3,normaliser=global)",
        "am(proxy=assistant,delay=2,keep=0.3,normaliser=global,fallback=none)",  # β of older turns counts
        "am(proxy=repeat,keep=0.3,normaliser=global,fallback=none)",
    ],
)
@pytest.mark.parametrize("name", ["llama", "gemma4"])
def test_a_global_normaliser_is_the_models_own_attention_when_the_query_ran(policy: str, name: str) -> None:
    step, state = begun(family_model(name), policy, trajectory(turns=4, users=False, long_tool=60))
    watch = Watch(step, state)
    for turn in range(4):
        feed(step, turn)
        close(step, turn)
    assert watch.compared >= 8
    assert (step.branches[1].lane.cache.bias(0) is not None) == policy.startswith("am")
