from types import SimpleNamespace

import pytest
from worlds import TE, closed

from kvmill.simulator.bench import Bench, Variant
from kvmill.simulator.hardware import find_gpu
from kvmill.simulator.models import find_geometry
from kvmill.simulator.plan import deploy
from kvmill.simulator.run import Scenario
from kvmill.simulator.search import Side, bracket, mean_meets
from kvmill.simulator.sensitivity import AT_WINDOW, FEW, GROWTH_STEP, assumed, break_even, moved
from kvmill.simulator.slo import parse_slo

EASY = parse_slo(["ttft_p95=4", "tpot_p95=0.1"])
SEEDS = range(4)


def bench_of(load, model="llama-3.1-8b"):
    place = deploy(load, find_geometry(model), find_gpu("h100"), 1)
    return Bench([Scenario(load, policy, place, EASY, turns=400) for policy in ("full", TE)])


def sides(bench):
    return [bracket(bench, Variant(i), SEEDS, 64) for i in range(2)]


@pytest.fixture(scope="module")
def roomy():
    with bench_of(closed(60, tool=2500, out=150, turns=8)) as bench:
        yield bench, *sides(bench)


def test_break_even_is_the_last_growth_that_the_fleet_of_full_still_serves(roomy):
    bench, full, te = roomy
    found = break_even(bench, te, full.count, SEEDS)
    assert found["turns_break_even_note"] is None
    assert found["turns_break_even_cut_share"] <= 0.05
    base = bench.shelf.get(Variant(1)).positions.mean_turns
    served = [bench.shelf.get(Variant(1, extra_turns=step * GROWTH_STEP)).positions.mean_turns for step in range(20)]
    growth = [turns / base - 1 for turns in served]
    step = min(range(20), key=lambda i: abs(growth[i] - found["turns_break_even"]))
    assert found["turns_break_even"] > 0
    assert found["turns_break_even"] == pytest.approx(growth[step], abs=0.006)
    at, beyond = (Variant(1, extra_turns=s * GROWTH_STEP) for s in (step, step + 1))
    assert mean_meets(bench.run(at, full.count, SEEDS[:FEW]), EASY)
    assert not mean_meets(bench.run(beyond, full.count, SEEDS[:FEW]), EASY)


def test_nothing_saved_is_broken_even_at_once(roomy):
    bench, full, te = roomy
    assert break_even(bench, te, te.count, SEEDS) == {"turns_break_even": 0.0}
    assert "turns_break_even" not in moved(bench, full, full, SEEDS, 64)


def test_at_the_window_break_even_is_only_a_bound():
    """Sessions that the window ends cannot grow: what is counted is the turns they are served."""
    load = closed(24, tool=3000, out=150, turns=8)
    with bench_of(load) as bench:
        full, te = sides(bench)
        found = break_even(bench, te, full.count, SEEDS)
        steps = [bench.shelf.get(Variant(1, extra_turns=step * GROWTH_STEP)).positions for step in range(1, 41)]
        base = bench.shelf.get(Variant(1)).positions
    assert found["turns_break_even_note"] == AT_WINDOW
    assert found["turns_break_even_cut_share"] > 0.05
    growths = [round(positions.mean_turns / base.mean_turns - 1, 2) for positions in steps]
    asked = (growths.index(found["turns_break_even"]) + 1) * GROWTH_STEP
    assert found["turns_break_even"] < asked - 0.02, "fewer turns than asked for were served"


def test_slower_machines_need_more_and_faster_ones_fewer():
    load = closed(340, tool=1500, out=150, wait=0.5, turns=6)
    with bench_of(load) as bench:
        full, te = sides(bench)
        rows = [moved(bench, side, side, SEEDS, 64) for side in (full, te)]
    assert all(
        row["gpus_if_faster"] <= side.count <= row["gpus_if_slower"] for row, side in zip(rows, (full, te), strict=True)
    )
    assert rows[0]["gpus_if_faster"] < rows[0]["gpus_if_slower"]


class ByTable:
    """A bench whose fleets meet by a table of sizes for each slowdown, however odd."""

    def __init__(self, meeting):
        place = deploy(closed(5), find_geometry("llama-3.1-8b"), find_gpu("h100"), 1)
        self.scenarios, self.meeting = [Scenario(closed(5), "full", place, EASY)], meeting

    def run(self, variant, replicas, seeds):
        late = 0.0 if replicas in self.meeting[round(variant.slowdown - 1, 3) > 0, variant.slowdown < 1] else 9.0
        return [SimpleNamespace(values={slo.key: late for slo in EASY}) for _ in seeds]


@pytest.mark.parametrize(
    ("plain", "slow", "fast", "expected"),
    [
        (range(10, 65), range(12, 65), range(9, 65), (12, 9)),
        (range(10, 65), range(5, 65), range(15, 65), (10, 10)),
        (range(8, 65), range(9, 65), range(6, 65), (11, 8)),
        (range(64, 65), range(0), range(40, 65), (None, 1)),
        (range(0), range(0), range(0), (None, None)),
    ],
    ids=["in order", "slower meets with fewer by chance", "few replications say 8", "slower never", "few never meet"],
)
def test_a_slower_machine_never_needs_fewer_nor_a_faster_one_more(plain, slow, fast, expected):
    bench = ByTable({(False, False): plain, (True, False): slow, (False, True): fast})
    side = Side(Variant(0), 1, 10, 10, 10, {}, 64)
    found = moved(bench, side, side, SEEDS, 64)
    assert (found["gpus_if_slower"], found["gpus_if_faster"]) == expected


def test_the_replications_behind_each_figure_are_stated():
    assert "headroom and more turns rest on 4 replications, other shapes on 2" in assumed(10)
