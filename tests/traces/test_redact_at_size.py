"""Redaction takes time linear in the text whatever the text is, and leaves real traces as they are but for people."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.traces.files import read_file
from kvmill.traces.record import dump
from kvmill.traces.redact import Redactor
from kvmill.traces.trajectory import Trajectory

# A collection of all that other tests left behind would be timed with the code.
pytestmark = pytest.mark.usefixtures("uncollected")

KEY = b"of the tests"
SIZE = 1_000_000
# Each is the beginning of what some rule looks for, or a find of it; repeated without end, none may take long.
UNITS = (
    *("a", "@", "a@b.", "a@b.co", "a@b.co ", "%40", "a%40b.", "\\u0040"),
    *(
        "eyJ",
        "eyJ-",
        "eyJ.",
        "eyJaaaaaaaa.",
        "sk-",
        "sk-a ",
        "AKIA",
        "ghp_",
        "SG.",
        "-us",
        "1:AA",
        "dp.",
        "/services/T",
    ),
    *(
        "-----BEGIN RSA PRIVATE KEY-----",
        "://a:",
        "token=",
        'password="a',
        "password=a1",
        "api_key",
        "bearer a1",
        "basic ",
    ),
    *(
        "::",
        ":a:",
        "1:2:3:4:5:6:7:8 ",
        "aa:",
        "-aa",
        "00:aa:",
        "1",
        "1 ",
        "1.",
        "1.1.",
        "12 ",
        "1234-",
        "12345678 ",
        "+1 ",
    ),
    *("(1", "(123)", "phone: 12 34 ", "ssn 1", "A", "AB12 ", "DE89 3704 ", "X1", "AAAAAA00A", "10.0.0.1 "),
    *(
        '"',
        '"name": "',
        '"name": "Ann", ',
        '{"name": "Ann", "email": 1, ',
        '"first_name": "A',
        'customer": "',
        "'name': 'Ann', ",
        "<a@",
        "%41",
        "%41 a",
        "A Bc <a@",
        "'",
    ),
    *(
        *(
            " -u a:",
            "mysql ",
            "machine a login a ",
            "x_pass=",
            "my password is ",
            "authorization: a ",
            "cookie: a=",
            "a=1;",
        ),
        *("cookie: ", "&sig=", "A_KEY=", "$6$", "$", "cvv: 1", "<password>", "://a:b@"),
        "\\",
        "\\n",
        "\\u00e9",
        "%20",
        "\x1b[",
        "/home/",
        "/home/a",
        "C:\\Users\\",
        "drwxr-xr-x 1 a ",
        "\x1e",
        "İ",
        "{",
        "}",
    ),
)


def seconds(text: str) -> float:
    begun = time.process_time()
    Redactor(KEY).text(text)
    return time.process_time() - begun


@pytest.mark.parametrize("unit", UNITS)
def test_a_quarter_of_a_megabyte_of_anything_takes_a_fraction_of_a_second(unit: str) -> None:
    """An eighth of the text may not take less than a share of the time: quadratic rules would take 64 times as long."""
    text = (unit * (SIZE // len(unit)))[: SIZE // 4]
    whole, part = seconds(text), seconds(text[: len(text) // 8])
    assert whole < 0.5 or whole < 24 * part, f"{whole:.2f} s against {part:.2f} s"
    assert whole < 5


def test_a_megabyte_of_every_beginning_at_once() -> None:
    assert seconds(("".join(UNITS) * SIZE)[:SIZE]) < 10


def test_many_names_in_one_run_are_no_product_of_names_and_text() -> None:
    people = [
        {"first_name": f"Q{n:05d}".translate(str.maketrans("0123456789", "abcdefghij")).title()} for n in range(5000)
    ]
    text = json.dumps(people)
    out = Redactor(KEY).text(text + " ".join(person["first_name"] for person in people))
    assert not any(person["first_name"] in out for person in people)
    assert seconds(text * 2) < 10


@given(st.text("ab1 .@:+-\\\"%'{}/\né", max_size=60) | st.text(max_size=60))
def test_any_text_is_redacted_without_an_exception_and_the_same_way_twice(text: str) -> None:
    assert Redactor(KEY).text(text) == Redactor(KEY).text(text)
    json.dumps(Redactor(KEY).value([text, {text: text}]))


def runs(path: Path) -> list[Trajectory]:
    _, items, _ = read_file(path)
    return [item.value for item in items if isinstance(item.value, Trajectory)]


@pytest.mark.parametrize("trial", [0, 1])
def test_real_airline_runs_lose_their_people_and_no_id_date_flight_or_price(shared_data: Path, trial: int) -> None:
    redactor, words, changed = Redactor(KEY), 0, Counter[str]()
    for run in runs(shared_data / f"traces/tau-bench/gpt-4o-airline.trial{trial}.json"):
        before, after = re.findall(r"\w+|\W", dump(run)), re.findall(r"\w+|\W", dump(redactor.trajectory(run)))
        assert len(before) == len(after)
        words += len(before)
        changed.update(a for a, b in zip(before, after, strict=True) if a != b)
    # A customer who types an address at a real mail provider; those at example.com are nobody's and stay.
    assert set(redactor.counts) <= {"name", "email"}
    assert redactor.counts["email"] == (1, 0)[trial]
    assert 500 < redactor.counts["name"] < 1500
    # Names, and user names made of two of them; digits only where a user name ends in some: no reservation is touched.
    assert [
        word for word in changed if re.search(r"\d", word) and not re.fullmatch(r"[a-z]+(_[a-z]+_|\.?[a-z]*)\d+", word)
    ] == []
    assert [word for word in changed if word.isupper() and len(word) < 5] == []
    assert sum(changed.values()) < 0.02 * words


def test_shas_versions_and_diffs_of_real_coding_runs_stay(shared_data: Path) -> None:
    redactor = Redactor(KEY)
    for path in sorted((shared_data / "traces/swe-agent").glob("*.traj")):
        redactor.value(json.loads(path.read_text()))
    # Two machines of one capture-the-flag network, each named twice.
    assert dict(redactor.counts) == {"ipv4": 4}
