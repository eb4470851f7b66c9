"""Made recall probes: what they ask, what they never tell, and where they come from."""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import trajectories
from hypothesis import given

from kvmill.errors import UserError
from kvmill.traces.facts import KINDS, context, facts, kind_of, outline, skeleton
from kvmill.traces.files import read_file
from kvmill.traces.recall import MOST, recall_probes, scored_as, with_probes
from kvmill.traces.record import tool_call
from kvmill.traces.samples import load
from kvmill.traces.trajectory import Label, Message, Probe, Trajectory, Turn

FLIGHTS = (
    '{"number": "HAT069", "leaves": "06:00:00", "price": 121, "gate": "/north/a12", "pilot": "Ada Lovelace"}, '
    '{"number": "HAT083", "leaves": "01:30:00", "price": 276, "gate": "/south/b07", "pilot": "Max Planck"}, '
    '{"number": "HAT214", "leaves": "17:45:00", "price": 453, "gate": "/north/c31", "pilot": "Lise Meitner"}'
)


def run(*results: str, said: str = "Look.", user: str = "find a flight", **more: object) -> Trajectory:
    """One tool result per turn and a closing turn without any; `said` is what the assistant says at the end."""
    turns = [
        Turn(
            Message("assistant", "", (tool_call(f"c{n}", "search", "{}"),)),
            (Message("tool", result, tool_call_id=f"c{n}"),),
        )
        for n, result in enumerate(results)
    ]
    turns.append(Turn(Message("assistant", said)))
    return replace(Trajectory("run", "chat", "f", (Message("user", user),), tuple(turns)), **more)  # type: ignore[arg-type]


def right(probe: Probe) -> str:
    return probe.candidates[probe.answer]


def plain(candidate: str) -> str:
    return candidate.strip("\"'`")


def check(trajectory: Trajectory, probes: tuple[Probe, ...]) -> None:
    """What holds for every made probe."""
    said = context(trajectory)
    whole = "\n".join(one.text for one in said)
    assert len(probes) <= MOST
    assert len({probe.id for probe in probes}) == len(probes)
    assert len({skeleton(right(probe)) for probe in probes}) == len(probes)
    for probe in probes:
        value, others = right(probe), [c for n, c in enumerate(probe.candidates) if n != probe.answer]
        results = [one for one in said if one.kind == "tool" and one.turn == probe.fact_turn]
        assert 1 <= len(others) <= 3
        assert len(set(map(skeleton, probe.candidates))) == len(probe.candidates)
        # The quote stands once in the run, and there the right candidate follows.
        assert whole.count(probe.answer_prefix) == 1
        assert any(
            re.search(re.escape(probe.answer_prefix) + r"\s*" + re.escape(value), one.text) for one in results
        ), probe
        # The value stands in nothing said before, and nothing of the candidates in the question.
        before = said[: min(n for n, one in enumerate(said) if one in results)]
        assert not any(skeleton(value) in skeleton(one.text) for one in before)
        asked = skeleton(f"{probe.question} {probe.answer_prefix}")
        assert not any(skeleton(candidate) in asked for candidate in probe.candidates)
        assert 0 <= probe.fact_turn < len(trajectory.turns) - 1
        # Wrong ones are of the same kind and outline, stand elsewhere in tool results and are about as long.
        tools = "\n".join(one.text for one in said if one.kind == "tool")
        for other in others:
            assert outline(plain(other)) == outline(plain(value))
            assert abs(len(other) - len(value)) <= max(1, len(plain(value)) // 4)
            assert plain(other) in tools
        later = [one for one in said if one.turn > probe.fact_turn]
        if not probe.kind.endswith("-restated"):
            assert not any(skeleton(value) in skeleton(one.text) for one in later)
        assert probe.kind.removesuffix("-restated").removeprefix("recall-") in KINDS


def test_every_kind_of_fact_is_asked_for_among_values_under_the_same_key() -> None:
    trajectory = run(FLIGHTS)
    probes = recall_probes(trajectory, most=30)
    assert {probe.kind for probe in probes} == {f"recall-{kind}" for kind in KINDS}
    flight = next(p for p in probes if right(p) == '"HAT083"')
    assert flight.candidates == ('"HAT069"', '"HAT083"', '"HAT214"')
    assert flight.answer_prefix.endswith('"number":')
    assert "the result of search" in flight.question
    price = next(p for p in probes if right(p) == "121")
    assert price.candidates == ("121", "276", "453")


def test_what_was_known_before_the_result_is_no_fact() -> None:
    schema = {"function": {"name": "book", "description": "such as HAT214"}}
    trajectory = run(FLIGHTS, user="is it HAT083, or the one of Ada Lovelace?", tools=(schema,))
    asked = {plain(right(probe)) for probe in recall_probes(trajectory, most=30)}
    assert asked.isdisjoint({"HAT083", "Ada Lovelace", "HAT214"})
    assert {"121", "Max Planck"} <= asked


def test_what_is_said_again_is_marked_however_it_is_written() -> None:
    trajectory = run(FLIGHTS, said="I take hat-083 for $1,276.00, and at gate /south/b07.")
    kinds = {plain(right(probe)): probe.kind for probe in recall_probes(trajectory, most=30)}
    assert kinds["HAT083"] == "recall-id"  # hat 083 is not told to be HAT083: another wording goes unseen
    assert kinds["/south/b07"] == "recall-path-restated"
    again = run(FLIGHTS, said="I take HAT_083; it costs $276.00.")
    kinds = {plain(right(probe)): probe.kind for probe in recall_probes(again, most=30)}
    assert kinds["276"] == "recall-number-restated"


def test_facts_that_only_stand_once_come_before_restated_ones() -> None:
    trajectory = run(FLIGHTS, said="HAT069 and HAT083 leave at 06:00:00 and 01:30:00.")
    kinds = Counter(probe.kind.endswith("-restated") for probe in recall_probes(trajectory))
    assert kinds[False] == MOST


def test_a_fact_of_the_last_turn_is_not_asked_for() -> None:
    trajectory = run(FLIGHTS)
    assert recall_probes(replace(trajectory, turns=trajectory.turns[:1])) == ()


def test_probes_are_spread_over_turns_and_kinds() -> None:
    rows = [FLIGHTS.replace("HAT", f"K{n}T").replace("06", f"1{n}").replace("121", f"3{n}9") for n in range(4)]
    probes = recall_probes(run(*rows))
    assert len(probes) == MOST
    assert max(Counter(probe.fact_turn for probe in probes).values()) <= 3


def test_keys_line_numbers_and_single_digits_are_no_facts() -> None:
    text = '{"first_name": "Ada", "last_name": "Max"}\n10: import os\n11: x = 5\nname = value'
    found = {fact.value for fact in facts(context(run(text)))}
    assert {"Ada", "Max"} <= found
    assert found.isdisjoint({"first_name", "last_name", "10", "11", "5", "name"})


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("2024-05-20", "date"),
        ("2024-05-15T15:00:00", "date"),
        ("06:00", "date"),
        ("121", "number"),
        ("$1200", "number"),
        ("3.5 kg", "number"),
        ("/usr/bin/env", "path"),
        ("src/main.py", "path"),
        ("https://a.org/x", "path"),
        ("HAT069", "id"),
        ("mia_li_3668", "id"),
        ("setup.py", "id"),
        ("getUser", "id"),
        ("Ada Lovelace", "name"),
        ("hello there", None),
        ("7", None),
        ("--", None),
        ("x" * 81, None),
    ],
)
def test_values_have_kinds(value: str, kind: str | None) -> None:
    assert kind_of(value) == kind


def test_the_same_trajectory_gets_the_same_probes_and_another_id_others() -> None:
    rows = run(", ".join(FLIGHTS.replace("HAT", f"K{n}T").replace("1", str(n)) for n in range(2, 8)))
    assert recall_probes(rows) == recall_probes(rows)
    assert recall_probes(rows) != recall_probes(replace(rows, id="another"))


def test_recorded_probes_are_kept_and_others_made_only_where_there_are_none() -> None:
    sample, unlabelled = load()[0], run(FLIGHTS)
    assert with_probes(sample) is sample
    assert with_probes(sample, "none").probes == ()
    assert with_probes(unlabelled, "recorded").probes == ()
    assert with_probes(unlabelled).probes == recall_probes(unlabelled)
    with pytest.raises(UserError, match=r"unknown choice of probes 'some' in --probes.*auto, none, recorded"):
        with_probes(sample, "some")


def test_made_probes_are_scored_as_recall_whatever_the_label() -> None:
    labelled = with_probes(run(FLIGHTS, label=Label("reward", 1.0)))
    assert scored_as(labelled) == "recall"
    assert scored_as(replace(load()[0], label=Label("exact", "x"))) == "choice"
    assert scored_as(run("nothing")) is None


def test_nothing_to_ask_makes_no_probe() -> None:
    for text in ("", "ok", "121", '"', "[" * 200, "a" * 500, "HAT069 " * 50):
        assert recall_probes(run(text)) == ()


@given(trajectories.trajectories())
def test_any_trajectory_gets_probes_that_hold_what_they_promise(trajectory: Trajectory) -> None:
    check(trajectory, recall_probes(trajectory))


@pytest.mark.parametrize("trial", [0, 1])
def test_real_airline_runs_get_probes_without_a_leak(shared_data: Path, trial: int) -> None:
    runs = _runs(shared_data / f"traces/tau-bench/gpt-4o-airline.trial{trial}.json")
    made = [recall_probes(each) for each in runs]
    for each, probes in zip(runs, made, strict=True):
        check(each, probes)
    # Runs of 50 in which no tool was called, or only in the end, have none.
    assert sum(len(probes) == MOST for probes in made) >= 35
    kinds = Counter(probe.kind for probes in made for probe in probes)
    assert min(kinds[f"recall-{kind}"] for kind in ("number", "id", "name", "date")) >= 20
    assert sum(len(probe.candidates) == 4 for probes in made for probe in probes) > 0.6 * kinds.total()


def test_real_coding_runs_get_probes_without_a_leak(shared_data: Path) -> None:
    runs = [each for path in sorted((shared_data / "traces/swe-agent").glob("*.traj")) for each in _runs(path)]
    made = [recall_probes(each) for each in runs]
    for each, probes in zip(runs, made, strict=True):
        check(each, probes)
    assert all(made)
    assert sum(map(len, made)) >= 40


def test_long_runs_take_no_product_of_facts_and_text() -> None:
    rows = [f'{{"order": "Z{n:06d}", "total": {1000 + n}.50, "by": "user_{n}"}}' for n in range(5_000)]
    trajectory = run(*("\n".join(rows[i : i + 250]) for i in range(0, len(rows), 250)))
    began = time.process_time()
    probes = recall_probes(trajectory)
    assert time.process_time() - began < 6  # 280,000 characters, 15,000 facts: about 1 s
    check(trajectory, probes)
    assert len(probes) == MOST


def _runs(path: Path) -> list[Trajectory]:
    _, items, _ = read_file(path)
    return [item.value for item in items if isinstance(item.value, Trajectory)]
