import pytest

from kvmill.simulator import recursions
from kvmill.simulator.laws import Law, open_queue
from kvmill.simulator.queues import SERVICE_S, STEP_S, lengths
from kvmill.simulator.recursions import in_order, recursion_checks
from kvmill.simulator.replica import Replica


@pytest.fixture(autouse=True)
def fewer_turns(monkeypatch):
    monkeypatch.setattr(recursions, "TURNS", 1500)


def test_the_engine_is_the_recursion_turn_by_turn():
    for name, value, truth, limit in recursion_checks():
        assert abs(value - truth) <= limit, name


def test_servers_in_order_wait_for_the_first_that_is_free():
    seen = open_queue(Law(step_s=STEP_S, cap=1), 0.5 / SERVICE_S, lengths(0.25), 50, seed=0)
    seen.turns[:4] = [[0.0, 0, 100], [0.0, 0, 300], [1.0, 0, 50], [2.0, 0, 10]]
    assert in_order(seen, 2)[:4] == pytest.approx([3.0, 9.0, 3.5, 2.8])


def test_a_queue_that_is_served_last_come_first_is_caught(monkeypatch):
    """Its means are those of the closed forms; turn by turn it is another queue."""
    receive = Replica.receive

    def pushed(self, session):
        receive(self, session)
        self.waiting.rotate(1)

    monkeypatch.setattr(Replica, "receive", pushed)
    wrong = [name for name, value, truth, limit in recursion_checks() if abs(value - truth) > limit]
    assert len(wrong) == 4
