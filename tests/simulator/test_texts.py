import pytest
from worlds import TE, closed

from kvmill.simulator.hardware import find_gpu
from kvmill.simulator.models import find_geometry
from kvmill.simulator.plan import plan
from kvmill.simulator.slo import parse_slo
from kvmill.simulator.texts import plan_text

SLO = parse_slo(["ttft_p95=4", "tpot_p95=0.1"])


@pytest.fixture(scope="module")
def found():
    load = closed(60, tool=2500, out=150, turns=8)
    options = {"replications": 3, "turns": 250, "tp": 1, "attribute": [TE]}
    return plan(load, find_geometry("llama-3.1-8b"), find_gpu("h100"), ["full", TE], SLO, **options) | {
        "answer": "So it is."
    }


def test_the_answer_comes_first_and_what_was_assumed_last(found):
    parts = plan_text(found).split("\n\n")
    heads = [part.splitlines()[0] for part in parts]
    assert heads[0] == "So it is."
    assert heads[2] == "Why not one replica fewer:"
    assert heads[3].startswith("Headroom, more load before a promise breaks: full ")
    assert heads[4] == "GPUs that each effect of compaction saves (costs, below 0):"
    assert heads[5].startswith("Fleet sizes looked at (geometric mean over replications, 95 % interval of Student's t")
    assert heads[5].endswith("2 degrees of freedom):")
    assert heads[-1] == "Assumed:"


def test_one_policys_saving_is_explained_and_the_other_rows_have_none(found):
    full, te = found["plans"]
    assert full["attribution"] is None
    assert sum(te["attribution"].values()) == te["gpus_saved"] > 0
    assert te["headroom"] is not None


def test_a_fleet_without_a_price_says_so(found):
    unpriced = found | {"price_per_hour": None}
    assert "price: not known for this GPU (give --price)" in plan_text(unpriced)
