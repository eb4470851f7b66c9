"""The bundled samples follow their recipe, value by value; what a model makes of them is measured elsewhere."""

from __future__ import annotations

import gzip
import hashlib
from collections import Counter
from pathlib import Path

import pytest

from kvmill.traces import record, samples
from kvmill.traces.samples import generate, words

FOLDER = Path(samples.__file__).parent
RUNS = samples.load()
FACT = {"registry": "{} lives in {}.", "operations": "{} works in {}."}


@pytest.mark.parametrize("file", generate.FILES)
def test_the_shipped_file_is_what_the_generator_makes(file: str) -> None:
    shipped = (FOLDER / f"{file}.jsonl.gz").read_bytes()
    assert gzip.decompress(shipped) == generate.text(file).encode()
    assert shipped[4:8] == bytes(4), "a time in the file would change it at every generation"


def test_writing_twice_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(generate, "__file__", str(tmp_path / name / "generate.py"))
        generate.main()
        written.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert written[0] == written[1]
    assert set(written[0]) == {f"{file}.jsonl.gz" for file in generate.FILES}
    assert sum(map(len, written[0].values())) < 150_000


def test_forty_runs_a_family_each_with_its_own_id_and_text() -> None:
    assert Counter(run.family for run in RUNS) == {"registry": 40, "operations": 40}
    assert len({run.id for run in RUNS}) == 80
    assert len({record.dump(run).partition('"prefix"')[2] for run in RUNS}) == 80
    assert [run.id for run in RUNS] == sorted(run.id for run in RUNS)
    assert {run.source for run in RUNS} == {"samples"}
    assert {run.label and run.label.scorer for run in RUNS} == {"choice"}


def test_the_runs_that_published_figures_rest_on_are_what_they_were() -> None:
    lines = "".join(record.dump(run) + "\n" for run in RUNS).encode()
    assert hashlib.sha256(lines).hexdigest() == "3947ef846e4cb8556743fd003ab7ba5630c2dcd1e78f4fa6018c51ac3e60c3ca"


def test_another_seed_gives_other_runs() -> None:
    assert generate.generate("registry", 3, seed=1).turns != generate.generate("registry", 3).turns
    assert generate.generate("registry", 3) == next(run for run in RUNS if run.id == "registry-03")


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.id)
def test_every_probe_asks_for_a_fact_that_is_where_it_says(run: samples.Trajectory) -> None:
    assert len(run.turns) == 11
    assert [message.role for message in run.prefix] == ["system", "user"]
    assert Counter(probe.kind for probe in run.probes) == {"one-hop": 4, "two-hop": 4}
    texts = [turn.tools[0].content for turn in run.turns]
    for probe in run.probes:
        city = probe.candidates[probe.answer]
        assert len(set(probe.candidates)) == 4
        holders = [n for n, text in enumerate(texts) if city in text]
        assert holders == [probe.fact_turn], "the answer is read once, in the turn that the probe names"
        assert f"{probe.answer_prefix} {city}." in texts[probe.fact_turn] or probe.kind == "two-hop"
        person = texts[probe.fact_turn].split(FACT[run.family].format("", city).strip())[0].split()[-1]
        assert FACT[run.family].format(person, city) in texts[probe.fact_turn]
        assert person in (probe.question if probe.kind == "one-hop" else texts[probe.fact_turn - 1])
        restated = run.turns[probe.fact_turn + 1].assistant.content.splitlines()[0]
        assert restated.endswith(FACT[run.family].format(person, city))
    assert len({probe.candidates for probe in run.probes}) == 1
    closing = run.turns[9:]
    ending = " ".join([texts[8], *(m.content for turn in closing for m in (turn.assistant, *turn.tools))])
    for city in run.probes[0].candidates:
        assert city not in ending, "the end of the context must not favour a candidate"


def test_the_place_of_the_fact_and_of_the_right_candidate_are_spread() -> None:
    places: Counter[int] = Counter()
    answers: Counter[int] = Counter()
    for run in RUNS:
        for probe in run.probes[::2]:
            answers[probe.answer] += 1
            parts = run.turns[probe.fact_turn].tools[0].content.replace("\n", ". ").split(". ")
            places[next(i for i, part in enumerate(parts) if probe.candidates[probe.answer] in part) // 4] += 1
    assert min(answers.values()) > 50
    assert min(places[0], places[1], places[2]) > 60


def test_no_filler_holds_a_word_that_a_probe_is_about() -> None:
    filler = {word.strip(".,").lower() for text in (*words.SENTENCES, *words.LOG_LINES) for word in text.split()}
    filler |= {word.lower() for name in (*words.BUILDINGS, *words.NUMBERS, *words.WEEKDAYS) for word in name.split()}
    asked = {word.lower() for word in (*words.CITIES, *words.NAMES, *words.STATIONS, *words.SERVICES)}
    assert not filler & (asked - {"metrics"}), "'metrics flushed to disk' names a service only by accident of words"
    sizes = [len(pool) for pool in (words.STATIONS, words.SERVICES, words.NAMES, words.CITIES, words.TOPICS)]
    assert sizes == [30, 16, 24, 20, 6]
    assert (len(words.SENTENCES), len(words.LOG_LINES), len(words.CLOSING_LOGS)) == (20, 16, 6)


def test_a_run_survives_its_own_line() -> None:
    for run in RUNS[::13]:
        assert record.load(record.dump(run)) == run
