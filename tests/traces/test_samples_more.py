"""The sets beside `samples`: two more families that can be asked, and long runs that cannot."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from kvmill.errors import UserError
from kvmill.traces import record, samples
from kvmill.traces.samples import generate, stress, words
from kvmill.traces.select import select, stream
from kvmill.traces.store import Store
from kvmill.traces.tokens import tokenize
from kvmill.traces.trajectory import NOT_JUDGED

MORE = samples.load("samples-more")
STRESS = samples.load("stress")
_PIECES = re.compile(r"[^\W\d]+|\d|[^\w\s]")
KINDS = {"coding": {"call": 4, "module": 4}, "planning": {"leader": 4, "day": 4}}


def test_the_sets_hold_what_they_promise_under_ids_of_their_own() -> None:
    assert Counter(run.family for run in MORE) == {"coding": 40, "planning": 40}
    assert Counter(run.family for run in STRESS) == dict.fromkeys(stress.SIZES, 4)
    every = [run for name in samples.SETS for run in samples.load(name)]
    assert len({run.id for run in every}) == len(every) == 172
    assert len({record.dump(run).partition('"prefix"')[2] for run in every}) == 172
    for runs in (MORE, STRESS):
        assert [run.id for run in runs] == sorted(run.id for run in runs)
    assert {run.source for run in every} == {"samples"}


@pytest.mark.parametrize("run", MORE, ids=lambda run: run.id)
def test_every_probe_asks_for_what_a_tool_said_once_early(run: samples.Trajectory) -> None:
    assert len(run.turns) == 11
    assert run.label is not None
    assert run.label.scorer == "choice"
    assert Counter(probe.kind for probe in run.probes) == KINDS[run.family]
    for probe in run.probes:
        assert len(set(probe.candidates)) == 4
        fact = f"{probe.answer_prefix} {probe.candidates[probe.answer]}."
        holders = [n for n, turn in enumerate(run.turns) if fact in turn.tools[0].content]
        assert holders == [probe.fact_turn], "the answer prefix repeats the fact, and a tool says it once"
        restated = [n for n, turn in enumerate(run.turns) if fact in turn.assistant.content]
        assert restated == [probe.fact_turn + 1]
        for other in set(probe.candidates) - {probe.candidates[probe.answer]}:
            assert all(f"{probe.answer_prefix} {other}." not in message.content for message in run.messages())


@pytest.mark.parametrize("run", MORE[::3], ids=lambda run: run.id)
def test_the_end_of_the_context_favours_no_candidate(run: samples.Trajectory) -> None:
    ending = [turn.tools[0].content for turn in run.turns[8:]] + [turn.assistant.content for turn in run.turns[9:]]
    ending_words = {word.strip('.,:"()') for text in ending for word in text.split()}
    for probe in run.probes:
        assert not ending_words & set(probe.candidates)


def test_right_candidates_are_spread_and_no_filler_holds_one() -> None:
    answers = Counter(probe.answer for run in MORE for probe in run.probes)
    assert min(answers.values()) > 100
    held = {word.strip('.,:"()[]') for text in words.CODE_LINES for word in text.split()}
    assert not held & {*words.JOBS, *words.CLASSES, *words.FUNCTIONS, *words.MODULES}
    assert not {*words.JOBS} & {*words.MODULES, *words.FUNCTIONS}
    said = {word.strip(".,") for text in (*words.PLANS, *words.BUILDINGS, *words.NUMBERS) for word in text.split()}
    assert not said & {*words.TEAMS, *words.DAYS, *words.NAMES}


def test_another_seed_gives_other_runs_and_an_index_gives_the_shipped_one() -> None:
    for family, index in (("coding", 7), ("planning", 39), ("stress-6k", 2)):
        made = generate.generate(family, index)
        assert samples.named(made.id) == made
        assert generate.generate(family, index, seed=1).turns != made.turns
    assert samples.named("coding-40") is None


@pytest.mark.parametrize("run", STRESS, ids=lambda run: run.id)
def test_a_stress_run_has_its_length_and_long_results_and_is_not_judged(run: samples.Trajectory) -> None:
    assert run.probes == ()
    assert run.label is not None
    assert (run.label.scorer, run.label.value) == (NOT_JUDGED, "for memory and latency only")
    # Without a tokenizer: words, digits and marks, of which most are one token.
    results = [len(_PIECES.findall(turn.tools[0].content)) for turn in run.turns]
    assert 400 < min(results) <= max(results) <= 2_000
    assert 0.7 < sum(results) / stress.SIZES[run.family] < 1.1


@pytest.mark.slow
def test_stress_runs_in_tokens_of_the_bundled_model() -> None:
    from kvmill.replay.model import load_tokenizer

    tokenizer = load_tokenizer("smollm2-135m")
    for run in STRESS:
        found = tokenize(run, tokenizer)
        results = [len(segment.ids) for segment in found.segments if segment.kind == "tool"]
        assert found.tokens == pytest.approx(stress.SIZES[run.family], rel=0.02)
        assert found.tokens < 8192, "they fit the model's window"
        assert 500 <= min(results) <= max(results) <= 2_000


def test_sets_and_their_runs_are_selected_by_name_without_a_store(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "none")
    assert select(store, "samples-more") == MORE
    assert select(store, "stress") == STRESS
    assert [run.id for run in select(store, "samples-more", 3)] == ["coding-00", "coding-01", "planning-00"]
    assert [run.family for run in select(store, "stress", 3)] == list(stress.SIZES)
    assert select(store, "planning-11") == [generate.generate("planning", 11)]
    assert list(stream(store, "stress")[1]) == STRESS
    with pytest.raises(UserError, match="samples, samples-more, stress, last, all"):
        select(store, "samples-less")
    assert not (tmp_path / "none").exists()
