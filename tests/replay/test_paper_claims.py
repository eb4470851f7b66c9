"""What the paper claims (arXiv 2608.00902), on the bundled samples with the real small model. Slow: `make test-slow`.

One run of 24 trajectories; every claim is a paired difference over trajectories with its 95 % interval.
"""

from __future__ import annotations

import pytest

from kvmill.replay.fanout import run_replay
from kvmill.replay.statistics import Estimate, difference
from kvmill.traces import samples
from kvmill.traces.store import Store

SOON = "te(proxy=boundary,keep=0.2)"
LATE = "te(proxy=assistant,delay=1,keep=0.2)"
LATE_TENTH = "te(proxy=assistant,delay=1,keep=0.1)"
MATCHING = "am(proxy=assistant,delay=1,keep=0.2)"
FEW = 12  # of each family

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

Answers = dict[tuple[str, str], dict[str, float]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """By (policy, figure): one number per trajectory."""
    store = Store.open(tmp_path_factory.mktemp("claims"))
    everything = samples.load()
    families = sorted({t.family for t in everything})
    chosen = [t for family in families for t in [t for t in everything if t.family == family][:FEW]]
    run = run_replay(
        store=store,
        trajectories=chosen,
        model="smollm2-135m",
        policies=[SOON, LATE, LATE_TENTH, MATCHING],
        progress=False,
    )
    found: Answers = {}
    for row in store.query("select * from cells where run_id = ?", [run]).to_pylist():
        assert row["status"] == "ok", row["error"]
        for figure in ("answer_accuracy", "answer_ll", "kv_tokens_final"):
            found.setdefault((row["policy"], figure), {})[row["trajectory_id"]] = row[figure]
    assert {len(values) for values in found.values()} == {2 * FEW}
    return found


def paired(answers: Answers, one: str, other: str, figure: str = "answer_accuracy") -> Estimate:
    first, second = answers[one, figure], answers[other, figure]
    names = sorted(first)
    return difference([first[n] for n in names], [second[n] for n in names])


def test_waiting_a_turn_loses_less_than_compacting_at_once(answers: Answers) -> None:
    for figure in ("answer_accuracy", "answer_ll"):
        gain = paired(answers, LATE, SOON, figure)
        assert gain.low is not None
        assert gain.low > 0, f"{figure}: {gain}"


def test_it_still_does_when_it_keeps_half_as_much(answers: Answers) -> None:
    """The delayed form holds one raw turn more: at keep 0.1 it ends up no larger than the immediate one at 0.2."""
    assert paired(answers, LATE_TENTH, SOON, "kv_tokens_final").value <= 0  # type: ignore[operator]
    gain = paired(answers, LATE_TENTH, SOON)
    assert gain.low is not None
    assert gain.low > 0, str(gain)


def test_immediate_compaction_loses_against_the_full_cache(answers: Answers) -> None:
    loss = paired(answers, SOON, "full")
    assert loss.high is not None
    assert loss.high < 0, str(loss)


def test_token_eviction_and_attention_matching_are_of_one_kind(answers: Answers) -> None:
    """The paper finds no significant difference at 0.2; here attention matching may gain, but must not lose much."""
    gain = paired(answers, MATCHING, LATE)
    assert gain.low is not None
    assert gain.low > -0.10, str(gain)
