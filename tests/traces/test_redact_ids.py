"""National ids are found by their check digits, and numbers that merely have as many digits stay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.traces.redact import Redactor
from kvmill.traces.redact_ids import DIGITS, LETTERS, luhn, verhoeff

KEY = b"of the tests"
# Numbers that the issuers use as examples, or made by their rules; anywhere in a text.
ANYWHERE = {
    "us": "078-05-1120",
    "br": "529.982.247-25",
    "be": "85.07.30-033.28",
    "ch": "756.9217.0769.85",
    "kr": "760121-1234564",
    "se": "811218-9876",
    "fi": "131052-308T",
    "ca": "130-692-544",
    "in": "2341 2341 2346",
    "fr": "2 55 08 14 168 025 38",
    "cn": "11010519491231002X",
    "es": "12345678Z",
    "gb": "AB 12 34 56 C",
    "nie": "X1234567L",
    "it": "RSSMRA85T10A562S",
    "mx": "HEGG560427MVZRRL04",
}
# Only after a word that names them.
NAMED = {
    "us_named": ("SSN ", "078051120"),
    "nl": ("BSN: ", "111222333"),
    "ca_named": ("SIN ", "130692544"),
    "au": ("TFN ", "123456782"),
    "gb_health": ("NHS number ", "943 476 5919"),
    "de": ("Steuer-ID ", "86095742719"),
    "br_named": ('"cpf": "', "52998224725"),
    "pl": ("PESEL ", "44051401359"),
    "in_named": ("Aadhaar no. ", "234123412346"),
    "dk": ("CPR ", "211062-5629"),
    "passport": ("passport number ", "123456789"),
    "passport_letters": ("Passport: ", "C01234567"),
}


def redacted(text: str) -> tuple[str, dict[str, int]]:
    redactor = Redactor(KEY)
    return redactor.text(text), dict(redactor.counts)


def test_every_rule_has_an_example() -> None:
    assert {rule.country for rule in (*DIGITS.rules, *LETTERS.rules)} == set(ANYWHERE) | set(NAMED)


@pytest.mark.parametrize("number", ANYWHERE.values(), ids=list(ANYWHERE))
def test_found_anywhere_by_its_check(number: str) -> None:
    out, counts = redacted(f"the number is {number}, thanks")
    assert counts == {"national_id": 1}
    assert number not in out
    assert len(out) == len(f"the number is {number}, thanks")


@pytest.mark.parametrize(("word", "number"), NAMED.values(), ids=list(NAMED))
def test_found_only_where_a_word_names_it(word: str, number: str) -> None:
    assert redacted(f"{word}{number}")[1] == {"national_id": 1}
    assert redacted(f"order {number}") == (f"order {number}", {})


@pytest.mark.parametrize("country", sorted(set(ANYWHERE) - {"us", "gb"}))
def test_one_wrong_digit_and_it_is_just_a_number(country: str) -> None:
    number = ANYWHERE[country]
    place = max(n for n, c in enumerate(number) if c.isdigit())
    wrong = number[:place] + str((int(number[place]) + 1) % 10) + number[place + 1 :]
    assert redacted(f"the number is {wrong}") == (f"the number is {wrong}", {})


@given(st.text("0123456789", min_size=1, max_size=18))
def test_check_digits_catch_every_single_error(digits: str) -> None:
    for check in (luhn, verhoeff):
        whole = next(digits + c for c in "0123456789" if check(digits + c))
        for place, digit in enumerate(whole):
            other = str((int(digit) + 1) % 10)
            assert not check(whole[:place] + other + whole[place + 1 :])
