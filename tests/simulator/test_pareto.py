from hypothesis import given, settings
from hypothesis import strategies as st

from kvmill.simulator.pareto import front, pareto

POINTS = st.lists(st.none() | st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(POINTS)
def test_the_front_is_what_nothing_else_beats(points):
    on = front(points)
    for point, is_on in zip(points, on, strict=True):
        beaten = point is not None and any(
            other is not None and other != point and other[0] <= point[0] and other[1] <= point[1] for other in points
        )
        assert is_on == (point is not None and not beaten)
    known = [point for point in points if point is not None]
    assert not known or any(on), "something is always on the front"


def row(policy, cost, difference, **more):
    return {"policy": policy, "feasible": True, "gpus": cost, "cost_per_month": cost, "difference": difference} | more


def test_full_loses_nothing_and_what_was_not_measured_is_on_no_front():
    rows = [
        row("full", 100, None),
        row("te", 60, -0.1),
        row("am", 70, -0.2),
        row("snapkv", 10, None),
        row("none", None, -0.3, feasible=False),
    ]
    assert [r["policy"] for r in pareto(rows)] == ["te", "full"]
    assert [r["accuracy_loss"] for r in rows] == [0.0, 0.1, 0.2, None, 0.3]
    assert [r["on_front"] for r in rows] == [True, True, False, None, False]


def test_without_a_price_gpus_are_the_cost():
    rows = [row("full", None, None, gpus=9), row("te", None, -0.1, gpus=4), row("am", None, -0.1, gpus=5)]
    assert [r["policy"] for r in pareto(rows)] == ["te", "full"]
