"""`te` and `am` on the activations of the real small model: half precision keeps the same keys, and the fit is one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from torch import Tensor

from kvmill.kernels.reference import output_error
from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Lockstep
from kvmill.replay.model import load_model
from kvmill.replay.policies.am_state import AttentionMatchingState
from kvmill.replay.policies.captures import Rows
from kvmill.replay.policies.registry import parse_policies
from kvmill.replay.policies.segment_state import Chosen, SegmentView
from kvmill.replay.segments import turns_of
from kvmill.traces import samples
from kvmill.traces.tokens import tokenize

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass
class Choice:
    """One layer of one segment: what was asked, and what `am` made of it."""

    view: SegmentView
    keep: int
    forced: Tensor
    rows: Rows
    chosen: Chosen


@dataclass
class Seen:
    state: AttentionMatchingState
    choices: list[Choice] = field(default_factory=list)


@pytest.fixture(scope="module")
def seen() -> Seen:
    """Three turns of a sample in float32: every choice of am(keep=0.2)."""
    model = load_model("smollm2-135m", dtype="float32", threads=1)
    text = tokenize(samples.load()[0], model.tokenizer)
    step = Lockstep(Forward(model), text, parse_policies(["am(keep=0.2)"]), seed=0)
    state = step.branches[1].state
    assert isinstance(state, AttentionMatchingState)
    out, choose = Seen(state), state.choose

    def spied(view: SegmentView, keep: int, forced: Tensor) -> Chosen:
        chosen, rows = choose(view, keep, forced), state.together(view)
        assert rows is not None
        held = replace(view, keys=view.keys.clone(), values=view.values.clone())
        out.choices.append(Choice(held, keep, forced, rows, chosen))
        return chosen

    state.choose = spied  # type: ignore[method-assign]
    for turn, segments in enumerate(turns_of(text)[:3]):
        for s in segments:
            for chunk in step.chunks(s):
                step.feed(chunk)
        step.compact(turn)
        step.settle(turn)
    assert step.branches[1].error is None
    assert len(out.choices) == 2 * 2 * step.forward.shape.layers
    return out


def test_half_precision_keeps_nearly_the_same_keys(seen: Seen) -> None:
    """Jaccard overlap of the rows kept with bfloat16 and with float32 queries and keys (compaction.md 9)."""
    overlaps = []
    for c in seen.choices:
        half = replace(c.view, keys=c.view.keys.bfloat16(), values=c.view.values.bfloat16())
        rounded = seen.state.select([c.rows._replace(queries=c.rows.queries.bfloat16())], half, c.keep, c.forced)
        for a, b in zip(c.chosen.index.tolist(), rounded.tolist(), strict=True):
            overlaps.append(len({*a} & {*b}) / len({*a} | {*b}))
    assert sum(overlaps) / len(overlaps) >= 0.95


def test_the_fit_brings_the_output_nearer_where_it_is_used(seen: Seen) -> None:
    """On the query rows of the fit, against plain eviction; every head is one or the other."""
    better = used = 0
    for c in seen.choices:
        problem = (c.rows.queries, c.view.keys, c.view.values, c.chosen.index, c.view.scaling)
        assert c.chosen.bias is not None
        fitted = output_error(*problem, c.chosen.bias, c.chosen.values)
        plain = output_error(*problem)
        for head in range(len(fitted)):
            if bool(c.chosen.bias[head].any()):
                used += 1
                better += float(fitted[head]) < float(plain[head])
            else:
                assert float(fitted[head]) == float(plain[head])
    assert used == seen.state.fits
    assert used > seen.state.fallbacks
    assert better / used > 0.98
