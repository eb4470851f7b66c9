"""Times of what is compared: in turn, in seconds, and a form that fails costs only its own row."""

from __future__ import annotations

import itertools
import time

import pytest
import torch

from kvmill.benchmarks import machine, timing
from kvmill.benchmarks.roofline import Roofline, measure
from kvmill.benchmarks.timing import FEWEST, Times, compared

CPU = torch.device("cpu")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call is made again, however busy the machine."""
    monkeypatch.setattr(timing._Waits, "seconds", lambda _: 0.0)


@pytest.mark.usefixtures("alone")
def test_the_median_is_that_of_one_call_and_the_forms_take_turns() -> None:
    calls: list[str] = []

    def slow(given: float) -> None:
        calls.append("slow")
        time.sleep(given)

    found = compared({"slow": slow, "quick": lambda _: calls.append("quick")}, [0.01], CPU, 0.05)
    slow_times, quick_times = found["slow"], found["quick"]
    assert isinstance(slow_times, Times)
    assert isinstance(quick_times, Times)
    assert 0.01 <= slow_times.p20_s <= slow_times.seconds <= slow_times.p80_s
    assert quick_times.seconds < 0.005
    assert slow_times.repeats == quick_times.repeats >= FEWEST
    rounds = list(
        zip(calls[4::2], calls[5::2], strict=True)
    )  # after a call each to warm up and one to see how many fit
    assert {frozenset(turn) for turn in rounds} == {frozenset(("slow", "quick"))}
    assert set(rounds) == {("slow", "quick"), ("quick", "slow")}


@pytest.mark.usefixtures("alone")
def test_no_form_gets_what_the_one_before_has_just_read() -> None:
    seen: list[int] = []
    compared({"one": seen.append, "other": seen.append}, [0, 1, 2], CPU, 0.001)
    timed = seen[2:]  # after the warm-up
    assert len(timed) >= 2 * FEWEST
    assert all(a != b for a, b in itertools.pairwise(timed))


def test_a_call_whose_threads_waited_for_a_core_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = iter([0.0, 0.0] + [0.0, 9.0, 9.0, 9.0] + [9.0] * 100)
    monkeypatch.setattr(timing._Waits, "seconds", lambda _: next(waited))
    monkeypatch.setattr(timing, "SETTLE_S", 0.0)
    calls: list[None] = []
    found = compared({"it": calls.append}, [None], CPU, 1e-9)["it"]
    assert isinstance(found, Times)
    assert found.repeats == FEWEST
    assert len(calls) == 1 + 1 + FEWEST + 1  # to warm up, to see how many fit, and the first again


@pytest.mark.usefixtures("alone")
def test_a_form_that_fails_first_or_later_has_a_reason_and_the_others_go_on() -> None:
    left = iter(range(4))

    def later(_: object) -> None:
        if next(left, None) is None:
            raise RuntimeError("out of memory\nand more")

    def first(_: object) -> None:
        raise ValueError("no such shape")

    found = compared({"first": first, "later": later, "good": lambda _: None}, [None], CPU, 0.001)
    assert found["first"] == "ValueError: no such shape"
    assert found["later"] == "RuntimeError: out of memory"
    assert isinstance(found["good"], Times)


def test_the_floor_is_the_slower_of_bytes_and_operations() -> None:
    roofline = Roofline(100.0, {"float32": 1000.0})
    assert roofline.floor_s(200, 500, "float32") == 2.0
    assert roofline.floor_s(20, 5000, "float32") == 5.0


def test_the_ceilings_are_measured() -> None:
    found = measure(CPU, [torch.float32], 0.01, toy=True)
    assert found.copy_bytes_per_s > 1e6
    assert found.flops_per_s["float32"] > 1e6


def test_the_cores_of_others_are_those_that_are_busy_without_us(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, own = iter((10.0, 10.3)), iter((5.0, 5.1))
    monkeypatch.setattr(machine, "_busy_s", lambda: next(busy))
    monkeypatch.setattr(machine, "_own_s", lambda: next(own))
    assert 1.0 < (machine.other_cores(0.1) or 0) <= 2.0  # two tenths of a second in one, or in somewhat more
    monkeypatch.setattr(machine, "_busy_s", lambda: None)
    monkeypatch.setattr(machine, "_own_s", lambda: 0.0)
    assert machine.other_cores(0.0) is None


def test_a_row_says_where_and_with_what_it_was_measured() -> None:
    found = machine.identity(CPU)
    assert found["device"] == "cpu"
    assert found["threads"] == torch.get_num_threads()
    assert found["versions"]["torch"] == torch.__version__
