from dataclasses import replace

import pytest
from worlds import SLOS, TE, closed, deployment, scenario

from kvmill.simulator.attribution import attribution, attribution_text, idle
from kvmill.simulator.bench import Bench, Shelf, Variant
from kvmill.simulator.run import run_fleet
from kvmill.simulator.search import Side, bracket
from kvmill.simulator.session import EFFECTS

LOAD = closed(40, tool=1500, out=150)
FULL = scenario(LOAD, "full", deployment(40_000), turns=150)
SEEDS = range(4)


def world(policy=TE, **fields):
    return scenario(LOAD, policy, deployment(40_000), turns=150, **fields)


def explained(scenarios):
    with Bench(scenarios) as bench:
        full, side = (bracket(bench, Variant(i), SEEDS, 64) for i in range(2))
        return full, side, attribution(bench, side, full, SEEDS, 64)


@pytest.mark.parametrize("policy", [TE, "te(proxy=boundary,keep=0.1)", "truncate(keep=0.2)", "am(keep=0.2)"])
def test_with_every_effect_off_a_policy_is_full(policy):
    off = run_fleet(world(policy, without=frozenset(EFFECTS), extra_turns=0.5), 5, 0)
    full = run_fleet(FULL, 5, 0)
    assert off.values == pytest.approx(full.values, rel=1e-9)
    assert off.preemptions == full.preemptions


def test_effects_and_what_they_do_together_add_up_to_the_saving():
    full, side, found = explained([FULL, world(extra_turns=0.3)])
    worth = found["attribution"]
    assert set(worth) == {*EFFECTS, "together"}
    assert sum(worth.values()) == full.count - side.count > 0
    assert worth["held"] > 0, "what is not held is what saves"
    assert worth["turns"] < 0, "turns cost"
    assert abs(worth["seconds"]) <= 1, "a few milliseconds each"
    for effect in EFFECTS:
        assert found["attribution_low"][effect] <= found["attribution_high"][effect]


def test_turns_that_nobody_takes_and_seconds_that_nobody_spends_are_worth_nothing_without_a_simulation():
    with Bench([FULL, world()]) as bench:
        assert idle(bench, Variant(1), "turns")
        assert not idle(bench, Variant(1), "held")
        assert all(idle(bench, Variant(0), effect) for effect in EFFECTS)
        assert not bench.results


class ByTable:
    """A bench of replicas of two GPUs each, whose fleets meet from a size on, by what is switched off.

    In the last replication one replica more is needed where `held` is off.
    """

    def __init__(self, sizes):
        self.scenarios = [scenario(LOAD, policy, deployment(40_000, tp=2)) for policy in ("full", TE)]
        self.shelf, self.sizes = Shelf(self.scenarios), sizes

    def run(self, variant, replicas, seeds):
        (effect,) = variant.without or [None]
        needs = [self.sizes[effect] + (effect == "held" and seed == max(SEEDS)) for seed in seeds]
        times = [0.5 if replicas >= need else 4.0 for need in needs]
        return [Ran({slo.key: x * slo.limit_s for slo in SLOS}) for x in times]


class Ran:
    def __init__(self, values):
        self.values = values

    def meets(self, slos):
        return all(self.values[slo.key] <= slo.limit_s for slo in slos)


def test_effects_are_counted_in_gpus_not_in_replicas():
    bench = ByTable({None: 10, "held": 15, "prefix": 9, "seconds": 10})
    full, side = (Side(Variant(i), 1, count, count, count, {}, 64) for i, count in enumerate((16, 10)))
    found = attribution(bench, side, full, SEEDS, 64)
    assert found["attribution"] == {"held": 10, "prefix": -2, "seconds": 0, "turns": 0, "together": 12 - 8}
    assert found["attribution_low"] == {"held": 10, "prefix": -2, "seconds": 0, "turns": 0}
    assert found["attribution_high"] == {"held": 12, "prefix": -2, "seconds": 0, "turns": 0}


def test_the_table_shows_signs_and_spans():
    row = {
        "policy": TE,
        "gpus_saved": 26,
        "attribution": {"held": 31, "prefix": -2, "seconds": 0, "turns": None, "together": None},
        "attribution_low": {"held": 29, "prefix": -2, "seconds": 0, "turns": None},
        "attribution_high": {"held": 33, "prefix": -2, "seconds": 0, "turns": None},
    }
    text = attribution_text([row, replace_row(row)])
    assert "+31 (+29…+33)" in text
    assert "−2" in text.splitlines()[2]
    assert "held bytes" in text.splitlines()[0]


def replace_row(row):
    return row | {"attribution": None, "policy": "full"}


def test_an_infeasible_side_has_nothing_to_explain():
    with Bench([FULL, world()]) as bench:
        side = bracket(bench, Variant(1), SEEDS, 64)
        assert attribution(bench, replace(side, count=None), side, SEEDS, 64) == {}
