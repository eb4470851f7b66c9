"""`Bench`: policies that come to the same are simulated once."""

from worlds import TE, closed, deployment, scenario

from kvmill.simulator.bench import Bench, Variant
from kvmill.simulator.run import run_fleet
from kvmill.simulator.session import SessionSpec
from kvmill.simulator.workload import Workload, assemble

SINGLE = Workload("log", tuple(SessionSpec(assemble(500 + i, [20], []), (0.0,)) for i in range(9)), rate=5.0)


def benched(load, **fields):
    ticks = []
    worlds = [scenario(load, policy, deployment(60_000), turns=200, **fields) for policy in ("full", TE)]
    return worlds, ticks, Bench(worlds, tick=ticks.append)


def test_on_single_turns_a_policy_that_waits_a_turn_is_full_and_not_simulated_again():
    worlds, ticks, bench = benched(SINGLE)
    full, policy = (bench.run(Variant(index), 1, range(2)) for index in (0, 1))
    assert len(ticks) == 2
    assert policy == full
    assert policy[1].row() | {"wall_s": 0} == run_fleet(worlds[1], 1, 1).row() | {"wall_s": 0}


def test_policies_that_differ_in_a_turn_are_both_simulated():
    _, ticks, bench = benched(closed(5))
    full, policy = (bench.run(Variant(index), 1, [0]) for index in (0, 1))
    assert len(ticks) == 2
    assert policy != full


def test_a_variant_with_other_sessions_is_simulated_for_each_policy():
    """More turns are something to compact, where there was nothing."""
    _, ticks, bench = benched(SINGLE)
    for variant in (Variant(0, extra_turns=2.0), Variant(1, extra_turns=2.0)):
        bench.run(variant, 1, [0])
    assert len(ticks) == 2
