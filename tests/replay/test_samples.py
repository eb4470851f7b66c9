"""The bundled samples with the real small model: what their recipe promises, and the finding they exist to show."""

from __future__ import annotations

import pytest

from kvmill.replay.engine import replay
from kvmill.replay.forward import Forward
from kvmill.replay.model import load_model
from kvmill.replay.policies.registry import parse_policies
from kvmill.replay.statistics import difference, estimate
from kvmill.traces import samples
from kvmill.traces.tokens import tokenize, tokenize_probe

POLICIES = ["full", "truncate(keep=0.2)", "te(proxy=boundary,keep=0.2)", "te(proxy=assistant,delay=1,keep=0.2)"]
PER_FAMILY = 8


@pytest.fixture(scope="module")
def answers() -> dict[str, list[tuple[int, float]]]:
    """Per policy, one (right answers of 8, mean log-likelihood of the right answer) for each trajectory."""
    model = load_model("smollm2-135m")
    forward = Forward(model)
    policies = parse_policies(POLICIES)
    out: dict[str, list[tuple[int, float]]] = {str(policy): [] for policy in policies}
    families = [[t for t in samples.load() if t.family == f][:PER_FAMILY] for f in ("operations", "registry")]
    for trajectory in [t for family in families for t in family]:
        tokens = tokenize(trajectory, model.tokenizer)
        probes = [tokenize_probe(probe, model.tokenizer) for probe in trajectory.probes]
        for run in replay(forward, tokens, policies, probes):
            assert run.error is None
            right = sum(probe.correct for probe in run.probes)
            out[str(run.policy)].append((right, sum(probe.answer_ll for probe in run.probes) / len(run.probes)))
    return out


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_full_cache_answers_most_and_truncation_is_at_chance(answers: dict[str, list[tuple[int, float]]]) -> None:
    eights = [8] * (2 * PER_FAMILY)
    full = estimate([right for right, _ in answers[POLICIES[0]]], eights)
    cut = estimate([right for right, _ in answers[POLICIES[1]]], eights)
    assert full.value is not None
    assert 0.60 <= full.value <= 0.95
    assert cut.low is not None
    assert cut.high is not None
    assert cut.low - 0.02 <= 0.25 <= cut.high + 0.02


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_waiting_a_turn_beats_compacting_at_once(answers: dict[str, list[tuple[int, float]]]) -> None:
    at_once, waited = answers[POLICIES[2]], answers[POLICIES[3]]
    for column in (0, 1):
        gain = difference([row[column] for row in waited], [row[column] for row in at_once])
        assert gain.low is not None
        assert gain.low > 0
