import pickle

import pytest
from worlds import TE, closed, deployment, scenario

from kvmill.simulator import run
from kvmill.simulator.run import run_fleet


def test_session_plans_travel_with_a_scenario_and_are_not_made_again(monkeypatch):
    made = scenario(closed(5), TE, deployment(), turns=50).compiled()
    copy = pickle.loads(pickle.dumps(made))
    monkeypatch.setattr(run, "compile_session", lambda *_: pytest.fail("a plan is made again"))
    assert copy == made
    assert copy.plan_of(3) == made.plan_of(3)
    assert run_fleet(copy, 1, 0).row() | {"wall_s": 0} == run_fleet(made, 1, 0).row() | {"wall_s": 0}


def test_a_scenario_without_plans_is_pickled_too():
    fresh = scenario(closed(5), TE)
    assert "plans" not in pickle.loads(pickle.dumps(fresh)).__dict__
